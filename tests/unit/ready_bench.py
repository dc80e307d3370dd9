"""A ready index on a store of its own, and beside it what it must hold."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from penstock.backends.embedded import keys
from penstock.backends.embedded.engine import Engine
from penstock.backends.embedded.fifo import FifoIndex
from penstock.backends.embedded.keys import SPACES
from penstock.backends.embedded.lanes import Lane, ReadyRow
from penstock.backends.embedded.ready import ReadyIndex
from penstock.backends.embedded.rows import encode_ready
from penstock.clock import ManualClock
from penstock.kv.base import Row, Space
from penstock.kv.memory import MemoryStore

QID = 7

#: priority, fairness key
Name = tuple[int, str]
#: lane, place in it
Item = tuple[Name, int]


class CountingStore(MemoryStore):
    """Counts what is read."""

    def __init__(self, spaces: Sequence[str]) -> None:
        super().__init__(spaces)
        self.forget()

    def forget(self) -> None:
        self.rows_read = 0
        #: From where, and up to where, each scan of the ready rows may go.
        self.ranges: list[tuple[bytes, bytes | None]] = []

    @property
    def lowers(self) -> list[bytes]:
        return [lower for lower, _ in self.ranges]

    def walked_over(self, key: bytes) -> bool:
        """Whether a scan had this key in its range, though it may be deleted long ago."""
        return any(lower <= key and (upper is None or key < upper) for lower, upper in self.ranges)

    def scan(
        self,
        space: Space,
        lower: bytes,
        upper: bytes | None,
        *,
        reverse: bool = False,
        limit: int | None = None,
    ) -> Iterator[Row]:
        if space.name == "ready":
            self.ranges.append((lower, upper))
        for row in super().scan(space, lower, upper, reverse=reverse, limit=limit):
            self.rows_read += space.name == "ready"
            yield row


def lane_of(name: Name) -> bytes:
    return keys.lane(name[0], name[1].encode(), ())


def id_of(order_ns: int) -> bytes:
    return order_ns.to_bytes(16, "big")


class Bench:
    """A ready index on a store of its own, and beside it what it must hold: a plain dict."""

    def __init__(self, *, fifo: bool = False) -> None:
        self.store = CountingStore(SPACES)
        self.engine = Engine(self.store, ManualClock(), random.Random(1), "os")
        self.fifo = fifo
        self.live: dict[Item, int] = {}
        self.index = self.opened()

    def opened(self) -> ReadyIndex:
        return FifoIndex(self.engine, QID) if self.fifo else ReadyIndex(self.engine, QID)

    def reopen(self) -> None:
        """As after a failed write, or in a new process."""
        self.index = self.opened()

    def row(self, name: Name, order_ns: int, weight: int) -> ReadyRow:
        key = keys.ready(QID, lane_of(name), order_ns, id_of(order_ns))
        return key, encode_ready(weight, 0, 0, has_row=False), None, None

    def add(self, name: Name, orders: list[int], weight: int = 1) -> None:
        """One transaction's rows of one lane, in order."""
        with self.engine.lock, self.engine.transaction() as txn:
            txn.changed = True
            rows = [self.row(name, order_ns, weight) for order_ns in sorted(orders)]
            for key, value, *_ in rows:
                txn.put(key, value, self.engine.ready)
            self.index.add(txn, lane_of(name), rows)
        self.live |= {(name, order_ns): weight for order_ns in orders}

    def take(self, count: int) -> list[Item]:
        taken: list[tuple[Lane, ReadyRow]] = []
        with self.engine.lock, self.engine.transaction() as txn:
            while len(taken) < count:
                more = self.index.take(txn, count - len(taken))
                if not more and self.index.discovered:
                    break
                taken += more
            for _, (key, *_) in taken:
                txn.delete(key, self.engine.ready)
        items = [(named(lane.lane), int.from_bytes(row[0][-24:-16], "big")) for lane, row in taken]
        for item in items:
            del self.live[item]  # Fails if it was taken before.
        return items

    def remove(self, item: Item) -> None:
        """Out of turn, as a purge or a move does."""
        with self.engine.lock, self.engine.transaction() as txn:
            txn.changed = True
            txn.delete(self.row(*item, 1)[0], self.engine.ready)
            self.index.forget(lane_of(item[0]))
        del self.live[item]

    def keys_of(self, items: list[Item]) -> list[bytes]:
        return sorted(self.row(*item, 1)[0] for item in items)


def named(lane: bytes) -> Name:
    return 9 - lane[0], keys.lane_fairness_key(lane)
