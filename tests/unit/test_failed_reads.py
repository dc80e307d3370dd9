"""A read that fails half-way leaves the ready index as it was: nothing is lost, doubled or out of order."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from penstock import NewMessage, Queue, StorageError
from penstock.backends.embedded.keys import SPACES
from penstock.backends.embedded.lanes import FILL_ROWS
from penstock.kv.base import Row, Space
from penstock.kv.memory import MemoryStore
from tests.unit.memory_system import MemorySystem


class FailingScans(MemoryStore):
    """Scans of many ready rows fail after so many of them, while told to."""

    fails_after: int | None = None

    def scan(
        self,
        space: Space,
        lower: bytes,
        upper: bytes | None,
        *,
        reverse: bool = False,
        limit: int | None = None,
    ) -> Iterator[Row]:
        rows = super().scan(space, lower, upper, reverse=reverse, limit=limit)
        for number, row in enumerate(rows):
            if space.name == "ready" and limit != 1 and number == self.fails_after:
                raise StorageError("a block cannot be read (injected)")
            yield row


#: What fills the cache of a lane.
CALLS: dict[str, Callable[[Queue], object]] = {
    "lease": lambda q: q.lease(10),
    "stats": lambda q: q.stats(),
}


@pytest.mark.parametrize("taken_before", [0, FILL_ROWS])
@pytest.mark.parametrize("call", CALLS)
def test_after_a_scan_that_failed_half_way_leasing_goes_on_in_order(call: str, taken_before: int) -> None:
    store, count = FailingScans(SPACES), FILL_ROWS + 100
    MemorySystem(store).create("q").enqueue_many([NewMessage(b"%d" % n) for n in range(count)])
    system = MemorySystem(store)  # Opened again: its index is empty and has to be read.
    q = Queue(system.backend, "q")
    order = [delivery.payload for delivery in q.lease(taken_before)]

    store.fails_after = 5
    for _ in range(2):
        with pytest.raises(StorageError, match="injected"):
            CALLS[call](q)
    store.fails_after = None

    while deliveries := q.lease(64):
        order += [delivery.payload for delivery in deliveries]
    assert order == [b"%d" % n for n in range(count)]
    assert system.problems() == []
