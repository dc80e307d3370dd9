"""The queues that a stream reads: which there are, how far their journals go, its cursor in each of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from time import monotonic
from typing import TypeVar

from penstock.backends.bulk import Extent
from penstock.errors import QueueNotFound
from penstock.penstock import Penstock
from penstock.queue import Queue
from penstock.spark.offsets import Noted, Offset, unchanged
from penstock.spark.options import ReadOptions
from penstock.spark.store import Store

T = TypeVar("T")

#: A store that nobody has open changes only when somebody opens it, and to look is to open it.
LOOK_EVERY_S = 1.0

#: A queue that was not there at the last look.
_NEW = Extent(first_seq=1, last_seq=0, rows=0)


class Watched:
    """What the store says of the queues. It is opened for each question, and is others' in between."""

    def __init__(self, store: Store, options: ReadOptions) -> None:
        self._store = store
        self._names = options.names
        self._pattern = options.pattern
        self._cursor = options.cursor
        self._not_before_s = 0.0
        #: How far each journal went at the last look; queues that were not there are not in it.
        self.seen: dict[str, Extent] = {}
        #: Whatever comes after that is of no interest any more.
        self.frozen = False

    def look(self) -> dict[str, Extent]:
        """How far each journal goes now."""
        if not self.frozen and monotonic() >= self._not_before_s:
            with self._store.open() as ps:
                self.seen = self._each(ps, self._extent)
                owned_by_another = ps.info().default.attached_to is not None
            self._not_before_s = 0.0 if owned_by_another else monotonic() + LOOK_EVERY_S
        return self.seen

    def check_named(self, start: Mapping[str, object]) -> None:
        """A queue that the options name and that was never there is a mistake."""
        for name in self._names or ():
            if name not in self.seen and name not in start:
                raise QueueNotFound(name)

    def before(self, at_ns: int) -> Offset:
        """For each queue the seq after which its events are of that time or later."""
        with self._store.open() as ps:
            return self._each(ps, lambda queue: _seq_before(queue, self.seen.get(queue.name, _NEW), at_ns))

    def cursor_positions(self) -> Offset:
        with self._store.open() as ps:
            return self._each(ps, lambda queue: queue.cursor(self._cursor or "").position)

    def move_cursors(self, offset: Noted, *, back: bool = False) -> None:
        """Everything up to there is read. Without `back`, a cursor that is further stays there."""

        def move(queue: Queue) -> None:
            extent = self._extent(queue)
            read = unchanged(offset, {queue.name: extent})
            if queue.name in read and self._cursor is not None:
                cursor = queue.cursor(self._cursor, required=True)
                # A start that is not there is told as a loss: a cursor cannot stand there.
                seq = min(max(read[queue.name], extent.first_seq - 1), extent.last_seq)
                if cursor.position < seq or back:
                    cursor.commit(seq)

        if self._cursor is not None:
            with self._store.open() as ps:
                self._each(ps, move)

    def _extent(self, queue: Queue) -> Extent:
        if self._cursor is not None:
            queue.cursor(self._cursor, required=True)  # First: what is seen is kept.
        stats = queue.stats()
        rows = stats.last_seq - stats.first_seq + 1
        return Extent(stats.first_seq, stats.last_seq, rows, stats.created_at_ns)

    def _each(self, ps: Penstock, ask: Callable[[Queue], T]) -> dict[str, T]:
        """The answers, by name, in the order of the names."""
        answers: dict[str, T] = {}
        for name in sorted(settings.name for settings in ps.queues()):
            if self._names is not None and name not in self._names:
                continue
            if self._pattern is not None and not re.fullmatch(self._pattern, name):
                continue
            with suppress(QueueNotFound):  # Deleted just now.
                answers[name] = ask(ps.queue(name))
        return answers


def _seq_before(queue: Queue, extent: Extent, at_ns: int) -> int:
    """By halves: the times of a journal's events go up, as far as the clock of the store did."""
    low, high = extent.first_seq - 1, extent.last_seq
    while low < high:
        middle = (low + high + 1) // 2
        found = queue.events(after=middle - 1, limit=1)
        if found and found[0].seq == middle and found[0].at_ns >= at_ns:
            high = middle - 1
        else:
            low = middle
    return low
