"""What is known in memory of the leases of a queue: enough for most acks of a batch to look nothing up."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from penstock.codec.frame import Column

#: Messages of which a store knows the grants, over all queues.
KNOWN_MESSAGES = 32_768
#: A single lease is not remembered: looking it up takes no longer.
GRANT_FROM = 2
#: Among so many grants one is searched for.
SEARCHED = 256


#: Leases that are over, in columns: ids, attempts, since when, until when.
Ended = tuple[list[bytes], Column, Sequence[int], Sequence[int]]


#: What one lease call handed out: number of the first event, which the others follow without gaps; ids, None
#: for one that is over; attempts, since when, until when. A tuple: every lease makes one.
_Grant = tuple[int, list[bytes | None], int, int, int]


class KnownLeases:
    """Most of the leases that were granted or changed since the queue was loaded, less those that are over.

    They are counted by their ends. Where one ends that was not counted, one that ends at the same time is
    taken for it. So too few are known and never too many: if as many are known as there are, these are all.
    """

    __slots__ = ("_by_end", "_by_start", "_count", "_grants", "_messages")

    def __init__(self) -> None:
        #: By the number of their first event, of which none has changed; and those by when they were made.
        self._grants: dict[int, _Grant] = {}
        self._by_start: dict[int, int] = {}
        self._messages = 0
        self._by_end: dict[int, int] = {}
        self._count = 0

    def granted(
        self,
        first_seq: int,
        ids: Sequence[bytes],
        attempts: Column,
        since_ns: int,
        until_ns: int,
        queues: int,
    ) -> None:
        """By one call, in a store of so many queues."""
        self.entered(until_ns, len(ids))
        if not isinstance(attempts, int):
            return
        self._messages += len(ids)
        if self._messages > KNOWN_MESSAGES // queues:
            self._grants.clear()
            self._by_start.clear()
            self._messages = len(ids)
        if since_ns in self._by_start:  # Of two of the same time, one is known.
            self.changed((since_ns,))
        self._grants[first_seq] = (first_seq, [*ids], attempts, since_ns, until_ns)
        self._by_start[since_ns] = first_seq

    def changed(self, since_ns: Sequence[int]) -> None:
        """Leases of these times are over, or end at others: of their grants, the store is asked."""
        if not self._grants:
            return
        for start in set(since_ns):
            grant = self._grants.pop(self._by_start.pop(start, -1), None)
            if grant is not None:
                self._messages -= len(grant[1])

    def all_of(self, receipts: Sequence[tuple[bytes, bytes] | None], queue_part: bytes) -> Ended | None:
        """The leases that these receipts hold, which are over then; None if one of them is not known."""
        first, count, known_attempts = 0, 0, -1
        since = until = 0
        grant_ids: list[bytes | None] = []
        ids: list[bytes] = []
        since_ns: list[int] = []
        until_ns: list[int] = []
        for receipt in receipts:
            if receipt is None:
                return None
            raw_id, token = receipt
            at = int.from_bytes(token[4:], "big") - first
            if not 0 <= at < count:
                grant = self._grant_of(first + at)
                if grant is None or known_attempts not in (-1, grant[2]):
                    return None
                at += first
                since_ns += [since] * (len(ids) - len(since_ns))
                until_ns += [until] * (len(ids) - len(until_ns))
                first, grant_ids, known_attempts, since, until = grant
                at, count = at - first, len(grant_ids)
                self.changed((since,))
            if grant_ids[at] != raw_id or token[:4] != queue_part:
                return None
            grant_ids[at] = None
            ids.append(raw_id)
        since_ns += [since] * (len(ids) - len(since_ns))
        until_ns += [until] * (len(ids) - len(until_ns))
        return (ids, known_attempts, since_ns, until_ns) if ids else None

    def _grant_of(self, seq: int) -> _Grant | None:
        """What an event is of. Mostly it is the first of its grant; else a few are searched."""
        grant = self._grants.get(seq)
        if grant is None and len(self._grants) <= SEARCHED:
            firsts = list(self._grants)  # In order: events are numbered upwards.
            at = bisect_right(firsts, seq) - 1
            grant = self._grants[firsts[at]] if at >= 0 else None
            if grant is not None and seq - grant[0] >= len(grant[1]):
                return None
        return grant

    def entered(self, until_ns: int, count: int = 1) -> None:
        self._by_end[until_ns] = self._by_end.get(until_ns, 0) + count
        self._count += count

    def left(self, since_ns: int, until_ns: int) -> None:
        self.changed((since_ns,))
        self.over(until_ns, 1)

    def over(self, until_ns: int, count: int) -> None:
        if not self._by_end:
            return
        known = self._by_end.pop(until_ns, 0)
        if known > count:
            self._by_end[until_ns] = known - count
        self._count -= min(known, count)

    def are_all(self, until_ns: int, count: int, leased: int) -> bool:
        """Whether so many leases are all that end at a time; there are `leased`, whenever they end."""
        return self._count == leased and self._by_end.get(until_ns) == count
