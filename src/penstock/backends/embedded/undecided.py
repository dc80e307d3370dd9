"""Ended leases whose messages a script decides about: those of one queue that wait for it."""

from __future__ import annotations

from itertools import islice

#: So many are kept at least, and a slice more at most. The others are read again when these are decided.
MOST_KEPT = 10_000

NO_MORE_NS = 1 << 63

#: When a lease ended, and its message.
Ended = tuple[int, bytes]


class Undecided:
    """The first of them, in the order in which they were found, and where the others start."""

    __slots__ = ("_items", "more_from_ns")

    def __init__(self) -> None:
        #: Each once, though it may be found again: after a clock was set back, or with others that were.
        self._items: dict[Ended, None] = {}
        self.more_from_ns = NO_MORE_NS

    def add(self, items: list[Ended]) -> None:
        """Some that were found, earliest first."""
        if len(self._items) < MOST_KEPT:
            self._items.update(dict.fromkeys(items))
        else:
            self.more_from_ns = min(self.more_from_ns, items[0][0])

    def first(self, count: int) -> list[Ended]:
        return list(islice(self._items, count))

    def remove(self, items: list[Ended]) -> bool:
        """Those that were decided; False if they were the last that are kept."""
        for item in items:
            self._items.pop(item, None)
        return bool(self._items)

    @property
    def from_ns(self) -> int:
        """None of them ended earlier."""
        return min(self.more_from_ns, *(at_ns for at_ns, _ in self._items))
