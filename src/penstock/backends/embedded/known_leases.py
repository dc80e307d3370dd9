"""What is known in memory of the leases of a queue: enough for most acks to need nothing else."""

from __future__ import annotations

from penstock.kv.base import Row

#: Leases of which a store knows the state rows, over all queues.
KNOWN_ROWS = 32_768


class KnownLeases:
    """Leases that were granted or changed since the queue was loaded, less those that are over.

    Where one ends that was there before, one that ends at the same time is taken for it. So too few are known
    and never too many: if as many are known as there are, these are all.
    """

    __slots__ = ("_by_end", "_count", "rows")

    def __init__(self) -> None:
        #: State rows of some of them by id, just as the store has them.
        self.rows: dict[bytes, bytes] = {}
        self._by_end: dict[int, int] = {}
        self._count = 0

    def granted(self, rows: list[Row], until_ns: int, queues: int) -> None:
        """Ids and state rows of leases that end at one time, in a store of so many queues."""
        if len(self.rows) + len(rows) > KNOWN_ROWS // queues:
            self.rows.clear()  # They are looked up then.
        self.rows.update(rows)
        self.entered(until_ns, len(rows))

    def entered(self, until_ns: int, count: int = 1) -> None:
        self._by_end[until_ns] = self._by_end.get(until_ns, 0) + count
        self._count += count

    def left(self, raw_id: bytes, until_ns: int) -> None:
        self.rows.pop(raw_id, None)
        self.over(until_ns, 1)

    def over(self, until_ns: int, count: int) -> None:
        known = self._by_end.pop(until_ns, 0)
        if known > count:
            self._by_end[until_ns] = known - count
        self._count -= min(known, count)

    def are_all(self, until_ns: int, count: int, leased: int) -> bool:
        """Whether so many leases are all that end at a time; there are `leased`, whenever they end."""
        return self._count == leased and self._by_end.get(until_ns) == count
