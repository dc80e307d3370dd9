"""Numbers of streams: length, what is pending, and how far consumers are behind."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import msgspec

from penstock.backends.redis.engine import Engine, Known
from penstock.backends.redis.stream_keeping import StreamKeeping
from penstock.errors import PenstockError


class StreamNumbers(msgspec.Struct, frozen=True, kw_only=True):
    """Of the line of one consumer group. `group` is '' where nobody has leased yet."""

    queue: str
    group: str
    #: Entries of the stream: waiting, leased, done and kept, dead, and held for required cursors.
    length: int
    pending: int
    consumers: int
    #: What no consumer of the group was given yet, or has to be given again.
    lag: int
    #: What waits, is leased or is dead: its entries are never dropped.
    undone: int
    max_length: int | None


class StreamNumbering:
    """Counts the streams of one store."""

    def __init__(self, engine: Engine, keeping: StreamKeeping) -> None:
        self._engine = engine
        self._keeping = keeping

    def of_queue(self, queue: str) -> StreamNumbers:
        return self._engine.with_queue(queue, self._of)

    def _of(self, q: Known) -> StreamNumbers:
        _, _, length, pending, consumers, lag, undone = self._engine.run("stream", [q])
        most, _ = self._keeping.limit(q.name)
        return StreamNumbers(
            queue=q.name,
            group=q.group,
            length=length,
            pending=pending,
            consumers=consumers,
            lag=lag,
            undone=undone,
            max_length=most if isinstance(most, int) else None,
        )

    def of_groups(self, queue: str) -> list[StreamNumbers]:
        """The own line's first."""
        own = self.of_queue(queue)
        return [own, *map(self.of_queue, self._engine.queue(queue).further_lines)]

    def reasons(self) -> Iterator[str]:
        """What is wrong with streams; one sentence each."""
        for groups in self._all():
            one = max(groups, key=lambda group: group.undone)
            if one.max_length is not None and one.undone > one.max_length:
                where = f" in group {one.group!r}" if len(groups) > 1 else ""
                yield (
                    f"queue {one.queue!r}: {one.undone} entries are not done{where}, max_length is "
                    f"{one.max_length}; nothing of them is dropped"
                )

    def totals(self) -> tuple[int, int]:
        """Entries of all streams, and what waits for the group that is farthest behind."""
        length = lag = 0
        for groups in self._all():
            length += groups[0].length
            lag = max(lag, *(one.lag for one in groups), 0)
        return length, lag

    def _all(self) -> Iterator[list[StreamNumbers]]:
        """Of each queue; nothing where the server does not answer, which others tell."""
        try:
            names = list(self._engine.all_queues())
        except PenstockError:
            return
        for name in names:
            with contextlib.suppress(PenstockError):  # Deleted meanwhile, or damaged.
                yield self.of_groups(name)
