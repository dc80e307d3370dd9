"""What the journal says of single messages: their last events, and the state row that follows from one."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import msgspec

from penstock.backends.embedded import keys
from penstock.backends.embedded.checking.folding import has_state_row, is_hole
from penstock.backends.embedded.checking.standing import Placed
from penstock.backends.embedded.checking.view import View
from penstock.backends.embedded.keys import StateCode
from penstock.backends.embedded.lookup import CODES, fresh_row
from penstock.backends.embedded.queue_state import QueueState
from penstock.codec.body import Body
from penstock.codec.frame import Run, decode_head, decode_runs
from penstock.errors import StorageCorrupt
from penstock.event import Event, Kind
from penstock.message import State, state_after

NO_LIMIT = 1 << 63


class Last(msgspec.Struct):
    """A message's last event; for an extended lease also the one that began it: receipts name that."""

    event: Event
    leased: Event | None = None

    @property
    def state(self) -> State | None:
        return state_after(self.event)


class Evidence(msgspec.Struct):
    """The last events of some messages. `complete`: the journal was read from its first event on.

    `cut`: it goes back further than one was willing to read.
    """

    last: dict[bytes, Last]
    complete: bool
    cut: bool = False

    def alive(self, raw_id: bytes) -> bool:
        """Whether the journal has it, or may have had it before what there is of it.

        What was not found because the reading was cut counts as gone: a counter that is too high harms nobody
        until a check, one that is too low keeps its queue from being leased.
        """
        last = self.last.get(raw_id)
        return not (self.complete or self.cut) if last is None else last.state is not None


def last_events(view: View, q: QueueState, ids: Collection[bytes], max_events: int = NO_LIMIT) -> Evidence:
    """By reading the journal backwards until each is found, or a hole, or its base, or so many events."""
    wanted, out = set(ids), dict[bytes, Last]()
    expected_seq = q.counters.next_seq - 1
    read = 0
    for run in _backwards(view, q, expected_seq):
        if run is None or is_hole(run):
            return Evidence(out, False)
        if read >= max_events:
            return Evidence(out, False, cut=True)
        read += len(run.ids)
        if wanted.isdisjoint(run.ids):
            continue
        for row in range(len(run.ids) - 1, -1, -1):
            raw_id = run.ids[row]
            if raw_id not in wanted:
                continue
            event = run.event(row)
            last = out.setdefault(raw_id, Last(event))
            if event.kind is Kind.LEASED:
                last.leased = event
            if event.kind is not Kind.EXTENDED:
                wanted.discard(raw_id)
        if not wanted:
            break
    return Evidence(out, q.counters.base_seq == 0)


def _backwards(view: View, q: QueueState, last_seq: int) -> Iterator[Run | None]:
    """Runs from the last to the first; None where events are missing."""
    rows = view.rows("journal", q.prefix, keys.u32(q.qid + 1), reverse=True)
    for _, raw in rows:
        try:
            head, runs = decode_head(raw), list(decode_runs(raw))
        except StorageCorrupt:
            yield None
            return
        if head.last_seq != last_seq:
            yield None
            return
        yield from reversed(runs)
        last_seq = head.first_seq - 1
    if last_seq != q.counters.base_seq:
        yield None


def restored(q: QueueState, raw_id: bytes, body: Body, last: Last) -> Placed | None:
    """Where the last event left a message, as its state row would say; None: not in the queue."""
    event, state = last.event, last.state
    if state is None:
        return None
    code, row = CODES[state], fresh_row(q, body)
    if not has_state_row(event):
        return Placed(raw_id, StateCode.READY, row, fresh=True)
    began = last.leased or event
    row.attempts, row.seq, row.since_ns = event.attempt, began.seq, began.at_ns
    in_line = code == StateCode.DELAYED and q.settings.delay_s > 0 and not event.attempt
    row.until_ns = 0 if code == StateCode.READY or in_line else event.due_ns
    row.consumer, row.reason = (event.consumer if code == StateCode.LEASED else ""), event.reason
    if event.kind is Kind.REDRIVEN:
        row.expires_at_ns = 0
    if not q.settings.fifo and code in (StateCode.READY, StateCode.DELAYED):
        row.order_ns = max(event.due_ns, event.at_ns)
    return Placed(raw_id, code, row, fresh=False)
