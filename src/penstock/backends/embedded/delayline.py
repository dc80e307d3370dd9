"""Messages of fifo queues that wait for their queue's delay: in line, and due when the setting says now.

A row of such a line has the place of its message and since when it waits, not when it is due: a delay that
is changed counts for all of them, and nothing is written anew.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING

from penstock.backends.embedded import keys
from penstock.backends.embedded.keys import Due
from penstock.backends.embedded.rows import waiting_since
from penstock.clock import NS_PER_S
from penstock.errors import StorageCorrupt

if TYPE_CHECKING:
    from penstock.backends.embedded.engine import Engine

log = logging.getLogger("penstock")

FAR_FUTURE_NS = 1 << 63
#: When lines that cannot be read are tried again.
UNREADABLE_AGAIN_NS = 10 * NS_PER_S

#: Place, number of the queue, id.
LineRow = tuple[int, int, bytes]


class DelayLines:
    """The queues with such a line, and when the first of each may be due. Derived, and read when needed."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        #: By number: a time before which nothing of it is due. None: not read yet, or to be read anew.
        self._first_ns: dict[int, int] | None = None

    def forget(self) -> None:
        self._first_ns = None

    def kept(self) -> dict[int, int] | None:
        """What is known, for `take_back` once it was forgotten."""
        return None if self._first_ns is None else dict(self._first_ns)

    def take_back(self, kept: dict[int, int] | None) -> None:
        self._first_ns = kept

    def leave_alone(self, qid: int) -> None:
        """What is damaged keeps its rows from being applied: until a repair, which forgets all this."""
        if self._first_ns is not None:
            self._first_ns[qid] = FAR_FUTURE_NS
            self._engine.next_due_ns[Due.LINE] = min(self._first_ns.values())

    def note(self, qid: int, due_ns: int) -> None:
        """A message of the queue waits, or its delay is another: it may be due then."""
        if self._first_ns is not None and due_ns < self._first_ns.get(qid, FAR_FUTURE_NS):
            self._first_ns[qid] = due_ns
        engine = self._engine
        if due_ns < engine.next_due_ns[Due.LINE]:
            engine.next_due_ns[Due.LINE] = due_ns
            for q in engine.waiting:
                q.arrived.notify_all()

    def due_rows(self, most: int) -> list[LineRow]:
        """Rows that are due, in order in each queue; remembers when the next of each is.

        One that is not due stops its line: should a clock have been set back, what came later waits too.
        """
        engine, now_ns = self._engine, self._engine.clock.now_ns()
        out: list[LineRow] = []
        try:
            first_ns = self._lines()
            due = sorted((at_ns, qid) for qid, at_ns in first_ns.items() if at_ns <= now_ns)
            for _, qid in due:
                next_ns = self._take(qid, now_ns, most, out)
                if next_ns is None:
                    del first_ns[qid]
                else:
                    first_ns[qid] = next_ns
        except StorageCorrupt as error:
            # As of other due rows: what was read is applied, the rest is a repair's to rebuild.
            log.error("times of %s cannot be read: %s", Due.LINE.name.lower(), error)
            self._first_ns = None
            engine.next_due_ns[Due.LINE] = now_ns + UNREADABLE_AGAIN_NS
            return out
        engine.next_due_ns[Due.LINE] = min(first_ns.values(), default=FAR_FUTURE_NS)
        return out

    def _take(self, qid: int, now_ns: int, most: int, out: list[LineRow]) -> int | None:
        """What is due of a queue, up to so many in all; when the next is, or None after the last."""
        delay_ns = self._delay_ns(qid)
        for key, value in self._rows(qid, 0, most + 1 - len(out)):
            _, order_ns, _, raw_id = keys.parse_due(key)
            # Without a delay all of them are due, whatever the clock says.
            due_ns = waiting_since(value) + delay_ns if delay_ns else 0
            if due_ns > now_ns or len(out) == most:
                return due_ns
            out.append((order_ns, qid, raw_id))
        return None

    def last_since_ns(self, qid: int) -> int:
        """Since when the last one in line waits, by what is stored; 0 if there is none."""
        return max((waiting_since(value) for _, value in self._rows(qid, 0, 1, reverse=True)), default=0)

    def times(self, start_ns: int) -> Iterator[Iterator[tuple[int, int, int, bytes]]]:
        """For each queue (time, what, number, id) of what is due from a time on, in that order."""
        return (self._times(qid, start_ns) for qid in sorted(self._lines()))

    def _times(self, qid: int, start_ns: int) -> Iterator[tuple[int, int, int, bytes]]:
        delay_ns, last_ns = self._delay_ns(qid), 0

        def timed() -> Iterator[tuple[int, bytes]]:
            nonlocal last_ns
            # No place is earlier than the time from which on it was waited in.
            for key, value in self._rows(qid, max(0, start_ns - delay_ns)):
                last_ns = max(last_ns, waiting_since(value) + delay_ns)
                yield last_ns, key[-16:]

        for at_ns, those in groupby(timed(), key=itemgetter(0)):
            if at_ns >= start_ns:
                yield from (
                    (at_ns, int(Due.DELAY), qid, raw_id) for raw_id in sorted(one[1] for one in those)
                )

    def _rows(
        self, qid: int, from_ns: int, limit: int | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        lower = keys.line_prefix(qid) + keys.u64(from_ns)
        upper = keys.after_prefix(keys.line_prefix(qid))
        return iter(self._engine.kv.scan(self._engine.due, lower, upper, reverse=reverse, limit=limit))

    def _delay_ns(self, qid: int) -> int:
        q = self._engine.by_qid.get(qid)
        return 0 if q is None else q.delay_ns

    def _lines(self) -> dict[int, int]:
        """From queue to queue: one seek each."""
        if self._first_ns is None:
            engine, found = self._engine, dict[int, int]()
            lower, upper = bytes((Due.LINE,)), bytes((Due.LINE + 1,))
            while (row := next(iter(engine.kv.scan(engine.due, lower, upper, limit=1)), None)) is not None:
                qid = keys.due_number(row[0])
                found[qid] = 0
                lower = keys.after_prefix(keys.line_prefix(qid)) or upper
                if lower >= upper:
                    break
            self._first_ns = found
        return self._first_ns
