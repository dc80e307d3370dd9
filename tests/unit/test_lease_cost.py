"""What a lease works through before it answers comes in slices, and the lock is free between them."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from penstock import NewMessage, Queue
from penstock.backends.embedded import failures, lanes, polling, sweep
from penstock.backends.embedded.keys import SPACES
from penstock.backends.embedded.lanes import Lane, Lanes
from penstock.backends.embedded.sweep import SLICE
from penstock.kv.base import Batch
from penstock.kv.memory import MemoryBatch, MemoryStore
from penstock.message import DEFAULT_PRIORITY
from penstock.scheduling.fairness import LEVELS
from tests.unit.memory_system import MemorySystem

#: Rows of one expired message: body, ready, due; and the few of a write. A turn of 100 may come on top.
ROWS_PER_SLICE = 3 * (SLICE + 100) + 20


RETRY = "function on_failure(m, f) return 'retry', m.payload == 'later' and 100 or 0 end"


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
    noted: list[int] = []
    discover, fill, note = Lanes.discover_some, Lanes.fill, Lanes.note_ages

    def discovering(self: Lanes) -> None:
        lock: Any = system.engine.lock
        state = lock._release_save()
        lock._acquire_restore(state)
        held.append(state[0])
        discover(self)

    def filling(self: Lanes, lane: Lane) -> None:
        filled.append(lane)
        fill(self, lane)

    def noting(self: Lanes, count: int) -> bool:
        noted.append(min(count, len(self._unaged)))
        return note(self, count)

    monkeypatch.setattr(Lanes, "note_ages", noting)
    monkeypatch.setattr(Lanes, "discover_some", discovering)
    monkeypatch.setattr(Lanes, "fill", filling)
    if first == "stats":
        assert q.stats().oldest_ready_age_s == 50
    else:
        assert system.backend.metrics().queues["q"].stats.oldest_ready_age_s == 50
    assert len(held) >= 5
    assert set(held) == {1}
    assert max(noted) <= 10 + LEVELS
    if first == "stats":
        assert len(filled) <= 2
    assert q.lease(1)[0].fairness_key == "0"
    assert q.stats().oldest_ready_age_s == 49


@pytest.mark.parametrize("fifo", [False, True])
@pytest.mark.parametrize("free", [0, 1])
def test_others_have_their_turn_while_the_first_lease_finds_keys_that_wait_for_tokens(
    fifo: bool, free: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    system = MemorySystem(durability="sync")
    q, other = system.create("q", fifo=fifo), system.create("other")
    system.backend.set_throttle("shut", 0, 0)
    q.enqueue_many([NewMessage(fairness_key=f"{n:02}", throttle_keys=["shut"]) for n in range(60)])
    q.enqueue_many([NewMessage(fairness_key="zz", priority=DEFAULT_PRIORITY if fifo else 0)] * free)
    monkeypatch.setattr(lanes, "DISCOVERY_SLICE", 10)
    monkeypatch.setattr(polling, "SLICE", 10)
    with system.engine.lock:
        system.engine.queue("q").unload()
    known = [0]

    def busy_elsewhere() -> None:
        known.append(len(system.engine.queue("q").ready.lanes()))
        other.enqueue(b"")  # It would wait for ever for a command of this thread to end.

    monkeypatch.setattr(polling, "give_way", busy_elsewhere)
    assert len(q.lease(1)) == free
    assert other.stats().ready >= 5
    assert max(after - before for before, after in pairwise(known)) <= 10 + LEVELS
    given_way = len(known)
    assert q.lease(1) == []
    assert len(known) == given_way


def test_a_batch_is_found_in_as_many_slices_as_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    system = MemorySystem()
    q = system.create("q")
    q.enqueue_many([NewMessage(fairness_key=f"{n:02}") for n in range(60)])
    monkeypatch.setattr(lanes, "DISCOVERY_SLICE", 10)
    monkeypatch.setattr(polling, "SLICE", 10)
    with system.engine.lock:
        system.engine.queue("q").unload()
    assert len(q.lease(60)) == 60


@pytest.mark.parametrize("script", [None, RETRY])
@pytest.mark.parametrize("settings", [{"fifo": True}, {"max_leased_per_key": 1}])
def test_a_lease_that_gets_nothing_of_what_seemed_enough_goes_on_releasing(
    settings: dict[str, Any], script: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Right after opening it is not known that what is ready has to wait for others of its key."""
    monkeypatch.setattr(sweep, "SLICE", 10)
    monkeypatch.setattr(failures, "SCRIPTED_SLICE", 10)
    system = MemorySystem()
    q = system.create("q", max_attempts=99, on_failure=script, **settings)
    busy = system.create("busy", max_attempts=99) if script is None else q
    busy.enqueue_many([NewMessage(b"later", fairness_key=f"{n}") for n in range(25)])
    assert len(busy.lease(25, lease_s=5)) == 25
    q.enqueue_many([NewMessage(fairness_key="k") for _ in range(3)])
    assert len(q.lease(9, lease_s=6)) == 1
    q = Queue(MemorySystem(system.store, clock=system.clock).backend, "q")
    system.clock.advance(7)
    assert len(q.lease(1)) == 1


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
