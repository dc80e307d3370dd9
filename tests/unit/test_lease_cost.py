"""What a lease works through before it answers comes in slices, and the lock is free between them."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import NewMessage
from penstock.backends.embedded import lanes, sweep
from penstock.backends.embedded.keys import SPACES
from penstock.backends.embedded.lanes import Lane, Lanes
from penstock.backends.embedded.sweep import SLICE
from penstock.kv.base import Batch
from penstock.kv.memory import MemoryBatch, MemoryStore
from tests.unit.memory_system import MemorySystem

#: Rows of one expired message: body, ready, due; and the few of a write. A turn of 100 may come on top.
ROWS_PER_SLICE = 3 * (SLICE + 100) + 20


class Counting(MemoryStore):
    """Remembers how many changes each write had."""

    def __init__(self) -> None:
        super().__init__(SPACES)
        self.changes: list[int] = []

    def write(self, batch: Batch, *, sync: bool = False) -> None:
        assert isinstance(batch, MemoryBatch)
        self.changes.append(len(batch.changes))
        super().write(batch, sync=sync)


@pytest.mark.parametrize("wanted", [1, 100])
@pytest.mark.parametrize("fifo", [False, True])
def test_expired_messages_ahead_of_a_live_one_go_in_slices(fifo: bool, wanted: int) -> None:
    store = Counting()
    system = MemorySystem(store)
    q = system.create("q", fifo=fifo)
    q.enqueue_many([NewMessage(b"", ttl_s=5)] * (4 * SLICE))
    q.enqueue(b"live")
    system.clock.advance(10)
    store.changes.clear()
    assert [delivery.payload for delivery in q.lease(wanted)] == [b"live"]
    assert max(store.changes) <= ROWS_PER_SLICE
    assert len(store.changes) >= 4
    assert system.problems() == []


def test_the_lock_is_free_between_the_slices_of_a_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    system = MemorySystem()
    q = system.create("q")
    q.enqueue_many([NewMessage(b"", delay_s=5)] * (3 * SLICE))
    q.enqueue_many([NewMessage(b"", ttl_s=5)] * (3 * SLICE))
    system.clock.advance(10)
    held: list[bool] = []
    apply = sweep._apply

    def noticing(*args: object) -> int:
        lock: Any = system.engine.lock
        state = lock._release_save()  # How often it is held, and by whom.
        lock._acquire_restore(state)
        held.append(state[0] > 1)
        return apply(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(sweep, "_apply", noticing)
    assert len(q.lease(1)) == 1
    system.sweep()
    assert (len(held) > 3, any(held)) == (True, False)


@pytest.mark.parametrize("first", ["stats", "metrics"])
def test_the_first_numbers_of_many_keys_are_found_in_slices_and_read_little(
    first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    system = MemorySystem()
    q = system.create("q")
    for n in range(50):
        q.enqueue(b"", fairness_key=f"{n * 7919 % 50}")
        system.clock.advance(1)
    monkeypatch.setattr(lanes, "DISCOVERY_SLICE", 10)
    with system.engine.lock:
        system.engine.queue("q").unload()
    held: list[int] = []
    filled: list[Lane] = []
    discover, fill = Lanes.discover_some, Lanes.fill

    def discovering(self: Lanes) -> None:
        lock: Any = system.engine.lock
        state = lock._release_save()
        lock._acquire_restore(state)
        held.append(state[0])
        discover(self)

    def filling(self: Lanes, lane: Lane) -> None:
        filled.append(lane)
        fill(self, lane)

    monkeypatch.setattr(Lanes, "discover_some", discovering)
    monkeypatch.setattr(Lanes, "fill", filling)
    if first == "stats":
        assert q.stats().oldest_ready_age_s == 50
    else:
        assert system.backend.metrics().queues["q"].stats.oldest_ready_age_s == 50
    assert len(held) >= 5
    assert set(held) == {1}
    if first == "stats":
        assert len(filled) <= 2
    assert q.lease(1)[0].fairness_key == "0"
    assert q.stats().oldest_ready_age_s == 49


def test_a_message_that_falls_due_behind_expired_ones_is_handed_out() -> None:
    system = MemorySystem()
    q, other = system.create("q"), system.create("other")
    other.enqueue_many([NewMessage(b"", delay_s=5)] * (2 * SLICE))
    system.clock.advance(1)
    q.enqueue(b"due", delay_s=5)
    other.enqueue_many([NewMessage(b"", ttl_s=5)] * SLICE)
    q.enqueue_many([NewMessage(b"", ttl_s=5)] * 2)
    system.clock.advance(10)
    assert [delivery.payload for delivery in q.lease(1)] == [b"due"]


def test_a_lease_leaves_to_the_sweep_what_its_queue_gains_nothing_from() -> None:
    system = MemorySystem()
    q, other = system.create("q"), system.create("other")
    other.enqueue_many([NewMessage(b"", delay_s=5)] * (3 * SLICE))
    other.enqueue_many([NewMessage(b"")] * (3 * SLICE))
    other.lease(3 * SLICE, lease_s=5)
    system.clock.advance(10)
    assert q.lease(1) == []
    counts = system.engine.queue("other").counters.counts
    assert (counts[0], counts[2]) == (2 * SLICE, 2 * SLICE)


def test_a_dead_letter_queue_gains_from_the_leases_of_others() -> None:
    system = MemorySystem()
    system.create("dead")
    other, busy = system.create("other", dead_letter="dead", max_attempts=1), system.create("busy")
    busy.enqueue_many([NewMessage(b"")] * (3 * SLICE))
    busy.lease(3 * SLICE, lease_s=5)
    system.clock.advance(1)
    other.enqueue(b"x")
    other.lease(1, lease_s=5)
    system.clock.advance(10)
    dead = system.backend.lease("dead", 1, None, 0, "")
    assert [delivery.payload for delivery in dead] == [b"x"]
