"""Two streams of rows that must be the same set: compared in one pass, and explained only if they differ."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from penstock.kv.base import Row

_BUCKETS = 256
#: Rows that an explanation keeps in memory at a time.
EXPLAINED_ROWS = 200_000

Rows = Callable[[], Iterable[Row]]


class Difference(NamedTuple):
    """A row that is not as it should be: None where there is none."""

    key: bytes
    expected: bytes | None
    found: bytes | None


class Ledger:
    """Sums over rows by bucket, in which each row that is both expected and found cancels out.

    A derived index can have as many rows as the store has messages. So that comparing it takes neither
    their memory nor a look-up each, both sides are hashed as they go by (64 bits, keyed anew in each
    process); the few buckets that do not cancel are read once more, to say which rows it is.
    """

    __slots__ = ("_sizes", "_sums")

    def __init__(self) -> None:
        self._sums = [0] * _BUCKETS
        self._sizes = [0] * _BUCKETS

    def add(self, key: bytes, value: bytes) -> None:
        """A row of either side."""
        bucket = hash(key) & 255
        self._sums[bucket] ^= hash(key + value)
        self._sizes[bucket] += 1

    def differences(self, expected: Rows, found: Rows) -> Iterator[Difference]:
        """Which rows differ, by reading both sides again as often as their number needs."""
        for group in self._groups():
            wanted = {key: value for key, value in expected() if hash(key) & 255 in group}
            for key, value in found():
                if hash(key) & 255 in group:
                    other = wanted.pop(key, None)
                    if other != value:
                        yield Difference(key, other, value)
            for key, value in wanted.items():
                yield Difference(key, value, None)

    def _groups(self) -> Iterator[set[int]]:
        group: set[int] = set()
        size = 0
        for bucket in range(_BUCKETS):
            if not self._sums[bucket]:
                continue
            if group and size + self._sizes[bucket] > EXPLAINED_ROWS:
                yield group
                group, size = set(), 0
            group.add(bucket)
            size += self._sizes[bucket]
        if group:
            yield group
