"""Buckets of a store: one object for all queues, written with the leases that draw on it, or not at all."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest

from penstock import NewMessage, StorageError, StorageFull
from penstock.backends.embedded.buckets import RECENT, throttle_key
from penstock.backends.embedded.keys import SPACES, Meta
from penstock.backends.embedded.rows import MARK
from penstock.kv.base import Batch
from penstock.kv.memory import Faults, MemoryBatch, MemoryStore
from tests.unit.memory_system import GARBAGE, MemorySystem


class Recording(MemoryStore):
    """Remembers which rows of throttles each write put."""

    def __init__(self) -> None:
        super().__init__(SPACES)
        self.put: list[list[bytes]] = []

    def write(self, batch: Batch, *, sync: bool = False) -> None:
        assert isinstance(batch, MemoryBatch)
        meta = [args[0] for what, space, args in batch.changes if (what, space) == ("put", "meta")]
        self.put.append([key[1:] for key in meta if key[0] == Meta.THROTTLE])
        super().write(batch, sync=sync)


def tokens(system: MemorySystem, key: str = "api") -> float:
    found = system.backend.get_throttle(key)
    assert found is not None
    return found.tokens


def throttled(count: int, *keys: str) -> list[NewMessage]:
    return [NewMessage(throttle_keys=keys or ("api",))] * count


def test_a_lease_writes_each_throttle_that_it_draws_on_once() -> None:
    store = Recording()
    system = MemorySystem(store)
    q = system.create("q")
    for key in ("a", "b", "untouched"):
        system.backend.set_throttle(key, 1, 1000)
    q.enqueue_many([NewMessage(fairness_key=str(n), throttle_keys=("a",)) for n in range(40)])
    q.enqueue_many([NewMessage(fairness_key=str(n), throttle_keys=("b", "a", "free")) for n in range(40)])
    store.put.clear()
    assert len(q.lease(100)) == 80
    assert [sorted(put) for put in store.put] == [[b"a", b"b"]]


def test_a_failed_write_gives_the_tokens_back() -> None:
    faults = Faults(recovers=True)
    store = MemoryStore(SPACES, faults)
    system = MemorySystem(store)
    q, other = system.create("q"), system.create("other")
    system.backend.set_throttle("api", 0, 5)
    for queue in (q, other):
        queue.enqueue_many(throttled(9))
    assert len(q.lease(2)) == 2
    faults.fail_write_at = faults.writes + 1
    with pytest.raises(StorageFull):
        q.lease(9)
    assert tokens(system) == 3
    assert len(other.lease(2)) == 2
    assert len(q.lease(9)) == 1
    assert (q.lease(9), other.lease(9)) == ([], [])


def test_a_failed_change_of_a_limit_changes_nothing() -> None:
    faults = Faults(recovers=True)
    system = MemorySystem(MemoryStore(SPACES, faults))
    q = system.create("q")
    system.backend.set_throttle("api", 0, 1)
    q.enqueue_many(throttled(9))
    q.lease(9)
    backend = system.backend
    changes: list[Callable[[], None]] = [
        lambda: backend.set_throttle("api", 9, 9),
        lambda: backend.delete_throttle("api"),
    ]
    for change in changes:
        faults.fail_write_at = faults.writes + 1
        with pytest.raises(StorageFull):
            change()
        found = system.backend.get_throttle("api")
        assert found is not None
        assert (found.rate_per_s, found.burst, found.tokens) == (0, 1, 0)
        system.clock.advance(100)
        assert q.lease(9) == []


def test_a_store_that_stopped_hands_out_no_tokens() -> None:
    faults = Faults()
    system = MemorySystem(MemoryStore(SPACES, faults), durability="sync")
    q = system.create("q")
    system.backend.set_throttle("api", 0, 5)
    q.enqueue_many(throttled(9))
    faults.fail_sync_at = faults.syncs + 1
    with pytest.raises(StorageError):
        q.lease(9)
    with pytest.raises(StorageError):
        system.backend.get_throttle("api")


def test_a_bucket_is_one_object_while_anything_needs_it_and_read_again_when_nothing_does() -> None:
    system = MemorySystem()
    q = system.create("q")
    system.backend.set_throttle("api", 0, 5)
    buckets = system.engine.buckets
    q.enqueue_many(throttled(9))
    q.lease(2)
    held = buckets.get("api")
    for n in range(RECENT + 1):  # Whatever is kept for later is pushed out.
        buckets.get(f"other {n}")
    assert buckets.get("api") is held
    del held
    q.purge()
    system.engine.queue("q").unload()
    system.engine.queue("q")
    gc.collect()
    assert "api" not in buckets._known
    assert tokens(system) == 3


def test_a_damaged_limit_closes_its_key_and_is_named_until_it_is_set_again() -> None:
    system = MemorySystem()
    q = system.create("q")
    system.backend.set_throttle("api", 10, 10)
    system.put("meta", throttle_key("api"), GARBAGE)
    system.engine.buckets.forget()
    q.enqueue_many(throttled(3))
    q.enqueue_many([NewMessage(b"free")] * 3)
    assert [one.payload for one in q.lease(9)] == [b"free"] * 3
    health = system.backend.health()
    assert health.status == "degraded"
    assert "'api'" in health.reasons[0]
    system.backend.set_throttle("api", 10, 10)
    assert system.backend.health().status == "healthy"
    system.clock.advance(1)
    assert len(q.lease(9)) == 3


def test_a_repair_makes_a_damaged_limit_anew_without_tokens() -> None:
    system = MemorySystem()
    q = system.create("q")
    system.backend.set_throttle("api", 2, 7)
    q.enqueue_many(throttled(9))
    assert len(q.lease(3)) == 3
    system.put("meta", throttle_key("api"), MARK + b"?")
    report = system.backend.check(repair=True)
    assert report.ok
    found = system.backend.get_throttle("api")
    assert found is not None
    assert (found.rate_per_s, found.burst, found.tokens) == (2, 7, 0)
    assert q.lease(9) == []
    system.clock.advance(1)
    assert len(q.lease(9)) == 2
