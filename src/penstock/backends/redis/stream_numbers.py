"""Numbers of streams: length, what is pending, and how far consumers are behind."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from penstock.backends.redis.engine import Engine, Known
from penstock.backends.redis.stream_keeping import StreamKeeping
from penstock.errors import QueueNotFound, StorageError


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
    done: int
    max_length: int | None


class StreamNumbering:
    """Counts the streams of one store."""

    def __init__(self, engine: Engine, keeping: StreamKeeping) -> None:
        self._engine = engine
        self._keeping = keeping

    def of_queue(self, queue: str) -> StreamNumbers:
        return self._engine.with_queue(queue, self._of)

    def _of(self, q: Known) -> StreamNumbers:
        _, _, length, pending, consumers, lag, done = self._engine.run("stream", [q])
        most, _ = self._keeping.limit(q.name)
        return StreamNumbers(
            queue=q.name,
            group=q.group,
            length=length,
            pending=pending,
            consumers=consumers,
            lag=lag,
            done=done,
            max_length=most if isinstance(most, int) else None,
        )

    def of_groups(self, queue: str) -> list[StreamNumbers]:
        """The own line's first."""
        own = self.of_queue(queue)
        return [own, *map(self.of_queue, self._engine.queue(queue).further_lines)]

    def reasons(self) -> Iterator[str]:
        """What is wrong with streams; one sentence each."""
        max_lag = self._engine.server.settings.health.max_lag
        for name in self._engine.all_queues():
            try:
                found = self.of_groups(name)
            except (QueueNotFound, StorageError):
                continue  # Deleted meanwhile; what is damaged is told by others.
            for one in found:
                if one.lag > max_lag:
                    yield (
                        f"queue {name!r}: {one.lag} messages wait for group {one.group!r:.60}; "
                        f"health.max_lag is {max_lag}"
                    )
            own = found[0]
            kept = own.length - own.done
            if own.max_length is not None and kept >= own.max_length:
                yield (
                    f"queue {name!r}: {kept} entries are not done, max_length is {own.max_length}; "
                    "nothing of them is dropped"
                )
