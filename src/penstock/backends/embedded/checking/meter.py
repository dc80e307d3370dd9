"""How far a long pass is: told to the caller every so many rows, and when a phase ends."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

from penstock.backends.base import Progress

T = TypeVar("T")

#: Rows between two calls.
TICK_ROWS = 10_000


class Meter:
    """Calls `progress`, if there is one, as items go by."""

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress

    def over(self, items: Iterable[T], what: str, total: int) -> Iterator[T]:
        """The items; `total` is what the counters make one expect."""
        tell = self._progress
        if tell is None:
            yield from items
            return
        done = 0
        for item in items:
            if done % TICK_ROWS == 0:
                tell(what, done, max(done, total))
            done += 1
            yield item
        tell(what, done, done)
