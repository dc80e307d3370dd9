"""The tables `messages`, `dead` and `bodies`: records and bodies as a snapshot shows them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from penstock.backends.bulk import BATCH_BYTES, BATCH_ROWS, BulkRequest, Span
from penstock.backends.redis.engine import Known
from penstock.backends.redis.records import GONE, IN_LINE_US, STATES
from penstock.backends.redis.tables.events import Events, frame_runs, wanted_runs
from penstock.backends.redis.tables.view import QueueView, View
from penstock.backends.tables import columns
from penstock.backends.tables.bodies import BODY_COLUMNS, BRINGING, Bodies, batches, taken
from penstock.backends.tables.columns import Array, Batch, Bytes, Joined, Mask, Numbers, pa
from penstock.backends.tables.damage import Damages, Unreadable
from penstock.clock import to_ns
from penstock.errors import StorageCorrupt
from penstock.message import format_id
from penstock.tables import arrow_schema

#: Messages that one call asks for.
SLICE = 1000

_STATE_NAMES = pa.array(["", *(str(STATES[code]) for code in sorted(STATES)), "gone"])
_DELAYED, _LEASED = 1, 3
_SMALLEST = 79

ReadRecord = Callable[[bytes, bytes], tuple[str, str]]


class Rows(NamedTuple):
    """Messages of one queue: ids, bodies and records, in the order of their index."""

    ids: Bytes
    values: Sequence[bytes]
    records: Sequence[bytes]
    #: Of the events that they were asked for by, if they were.
    seqs: Numbers | None
    #: Consumer and reason of a record.
    read: ReadRecord
    #: How long those of the queue wait that have no time of their own.
    delay_ns: int

    def only(self, wanted: Mask | slice) -> Rows:
        return Rows(
            self.ids[wanted],
            taken(self.values, wanted),
            taken(self.records, wanted),
            None if self.seqs is None else self.seqs[wanted],
            self.read,
            self.delay_ns,
        )

    def made(self, queue: str) -> Messages:
        return Messages(queue, self)


class Messages(Bodies):
    """Bodies, with what their records say: stored bodies have no times."""

    def __init__(self, queue: str, rows: Rows) -> None:
        super().__init__(queue, rows.ids, rows.values)
        self._raw_records = rows.records
        self._read = rows.read
        self._delay_ns = rows.delay_ns
        self._seqs = rows.seqs
        self._records = Joined(rows.records)
        self.codes = self._of_record(0, "u1")

    def _of_record(self, offset: int, kind: str) -> Numbers:
        return self._records.numbers(self._records.starts + offset, kind)

    def _time(self, offset: int) -> Numbers:
        return self._of_record(offset, ">u8") * 1000

    @functools.cached_property
    def enqueued_ns(self) -> Numbers:
        return self._time(46)

    @functools.cached_property
    def visible_ns(self) -> Numbers:
        return self._or_in_line(self._time(38))

    @functools.cached_property
    def expiries_ns(self) -> Numbers:
        return self._time(22)

    @functools.cached_property
    def orders_ns(self) -> Numbers:
        return self._time(54)

    @functools.cached_property
    def since_ns(self) -> Numbers:
        return self._time(6)

    @functools.cached_property
    def until_ns(self) -> Numbers:
        return self._or_in_line(self._time(14))

    def _or_in_line(self, times_ns: Numbers) -> Numbers:
        """What waits for the queue's delay is due by what that was for the snapshot."""
        until_us = self._of_record(14, ">u8")
        in_line = (self.codes == _DELAYED) & (until_us >= IN_LINE_US)
        if not in_line.any():
            return times_ns
        return np.where(in_line, (until_us - IN_LINE_US) * 1000 + self._delay_ns, times_ns)

    @functools.cached_property
    def attempts(self) -> Numbers:
        return self._of_record(2, ">u4")

    @functools.cached_property
    def record_seqs(self) -> Numbers:
        return self._of_record(30, ">u8")

    def seqs(self) -> Array:
        return pa.nulls(self.count, pa.int64()) if self._seqs is None else columns.longs(self._seqs)

    @functools.cached_property
    def leased(self) -> Mask:
        return np.equal(self.codes, _LEASED)

    @functools.cached_property
    def _texts(self) -> tuple[list[str | None], list[str | None]]:
        """Consumers and reasons; a record that is as short as it can be has none."""
        lanes = self._of_record(71, ">u2")
        consumers: list[str | None] = [None] * self.count
        reasons: list[str | None] = [None] * self.count
        errors: dict[int, StorageCorrupt] = {}
        for at in np.flatnonzero(self._records.lengths > _SMALLEST + lanes).tolist():
            try:
                consumer, reason = self._read(self.ids[at].tobytes(), self._raw_records[at])
                consumers[at], reasons[at] = consumer or None, reason or None
            except StorageCorrupt as error:
                errors[at] = error
        if errors:
            raise Unreadable(errors)
        return consumers, reasons

    def consumers(self) -> Array:
        found, leased = self._texts[0], self.leased.tolist()
        return columns.strings(
            [(one or "") if held else None for one, held in zip(found, leased, strict=True)]
        )

    def reasons(self) -> Array:
        return columns.strings(self._texts[1])


def _times(
    name: str, at_ns: Callable[[Any], Numbers], has: Callable[[Any], Mask] | None = None, exact: str = ""
) -> dict[str, Callable[[Any], Array]]:
    """The two columns of a time."""
    return {
        name: lambda m: columns.times(at_ns(m), None if has is None else has(m)),
        exact or f"{name}_ns": lambda m: columns.longs(at_ns(m), None if has is None else has(m)),
    }


_SHARED: dict[str, Callable[[Any], Array]] = {
    **BODY_COLUMNS,
    **_times("visible_at", lambda m: m.visible_ns),
    **_times("expires_at", lambda m: m.expiries_ns, lambda m: m.expiries_ns != 0),
}
_BODIES: dict[str, Callable[[Any], Array]] = {
    **_SHARED,
    "seq": Messages.seqs,
    "order_ns": lambda m: columns.longs(m.orders_ns),
}
_MESSAGES: dict[str, Callable[[Any], Array]] = {
    **_SHARED,
    "state": lambda m: _STATE_NAMES.take(pa.array(m.codes)),
    "attempts": lambda m: columns.ints(m.attempts),
    "consumer": Messages.consumers,
    **_times("leased_at", lambda m: m.since_ns, lambda m: m.leased),
    **_times("lease_expires_at", lambda m: m.until_ns, lambda m: m.leased),
    "reason": Messages.reasons,
    "seq": lambda m: columns.longs(m.record_seqs),
    **_times("since_at", lambda m: m.since_ns, exact="since_ns"),
    **_times("until_at", lambda m: m.until_ns, lambda m: m.until_ns != 0, exact="until_ns"),
    "order_ns": lambda m: columns.longs(m.orders_ns, m.orders_ns != 0),
}


def read_messages(
    view: View, queue: QueueView, request: BulkRequest, span: Span, damages: Damages
) -> Iterator[Batch]:
    schema = arrow_schema(request.table, request.columns)
    table = _BODIES if request.table == "bodies" else _MESSAGES
    by_seq = request.table == "bodies" and span.name in request.seqs
    for rows in (_by_seq if by_seq else _by_state)(view, queue, request, span, damages):
        yield from batches(schema, table, request, damages, rows)


def _by_state(
    view: View, queue: QueueView, request: BulkRequest, span: Span, damages: Damages
) -> Iterator[Rows]:
    code, on, to = span.lower[0], span.lower[1:], span.upper[1:]
    fetching = _Fetching(view, queue, damages)
    while True:
        _, _, on, ids, records, changed = view.call("shown", queue.known, code, on, to, SLICE)
        found = [one for one in zip(ids, records, strict=True) if fetching.is_sound(*one)]
        if changed:  # They come first: in the order of the index again.
            found.sort(key=lambda one: _standing(*one))
        yield from fetching.rows([row[0] for row in found], [row[1] for row in found], None)
        if on == to:
            break
    yield from fetching.rest()


def _standing(raw_id: bytes, record: bytes) -> bytes:
    """Where a message stands among those of its state, as `_core.lua` says it."""
    if record[0] == 2:
        return record[70 : 73 + int.from_bytes(record[71:73], "big")] + record[54:70] + raw_id
    key = record[30:38] if record[0] == GONE else record[14:22]
    return (b"\xff" * 8 if key == bytes(8) else key) + raw_id


def _by_seq(
    view: View, queue: QueueView, request: BulkRequest, span: Span, damages: Damages
) -> Iterator[Rows]:
    """What the events of the span brought: a body that has gone since is not there."""
    low, high = int.from_bytes(span.lower, "big"), int.from_bytes(span.upper, "big")
    fetching = _Fetching(view, queue, damages)
    for runs in frame_runs(view, queue, request, span, damages):
        kept = wanted_runs(runs, request, BRINGING)
        if not kept:
            continue
        events = Events(kept, low, high)
        ids = [one.tobytes() for one in events.ids()]
        for start in range(0, len(ids), SLICE):
            some = slice(start, start + SLICE)
            yield from fetching.rows(ids[some], None, events.seqs[some])
    yield from fetching.rest()


class _Fetching:
    """Gathers bodies, slice by slice, into rows for batches."""

    def __init__(self, view: View, queue: QueueView, damages: Damages) -> None:
        self._view = view
        self._q: Known = queue.known
        self._damages = damages
        #: A store that was never encrypted: nothing has to be opened.
        self._plain = view.engine.seals.row is None
        self._ids: list[bytes] = []
        self._bodies: list[bytes] = []
        self._records: list[bytes] = []
        self._seqs: list[int] = []
        self._size = 0

    def is_sound(self, raw_id: bytes, raw: bytes | None) -> bool:
        if raw is None:
            return False
        if len(raw) >= _SMALLEST and 1 <= raw[0] <= GONE:
            return True
        error = StorageCorrupt(f"state record of {len(raw)} bytes does not decode")
        self._damages.found(f"the state of message {format_id(raw_id)}", error)
        return False

    def rows(
        self, ids: Sequence[bytes], records: Sequence[bytes] | None, seqs: Numbers | None
    ) -> Iterator[Rows]:
        """Without records, those that the snapshot has of the ids; what it has not is left out."""
        at = 0
        while at < len(ids):
            _, _, found, bodies = self._view.call(
                "contents", self._q, int(records is None), b"".join(ids[at:])
            )
            for place, body in enumerate(bodies, start=at):
                record = found[place - at] if records is None else records[place]
                self._add(ids[place], record, body, None if seqs is None else int(seqs[place]))
                if self._size >= BATCH_BYTES or len(self._ids) >= BATCH_ROWS:
                    yield from self.rest()
            at += len(bodies)

    def _add(self, raw_id: bytes, record: bytes | None, body: bytes | None, seq: int | None) -> None:
        if record is None or (seq is not None and not self.is_sound(raw_id, record)):
            return
        if body is None:
            if seq is None:
                error = StorageCorrupt("it has no body; run check with repair")
                self._damages.found(f"message {format_id(raw_id)}", error)
            return
        opened = body if self._plain else self._view.engine.opened_body(self._q, raw_id, body)
        self._ids.append(raw_id)
        self._bodies.append(opened)
        self._records.append(record)
        if seq is not None:
            self._seqs.append(seq)
        self._size += len(opened)

    def rest(self) -> Iterator[Rows]:
        if not self._ids:
            return
        ids = np.frombuffer(b"".join(self._ids), np.uint8).reshape(-1, 16)
        seqs = np.array(self._seqs, np.int64) if self._seqs else None
        delay_ns = to_ns(self._q.settings.delay_s)
        yield Rows(ids, self._bodies, self._records, seqs, self._texts, delay_ns)
        self._ids, self._bodies, self._records, self._seqs, self._size = [], [], [], [], 0

    def _texts(self, raw_id: bytes, raw: bytes) -> tuple[str, str]:
        record = self._view.engine.record(self._q, raw_id, raw)
        return record.consumer, record.reason
