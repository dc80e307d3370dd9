"""The place where due rows start, as it is written down, is never past one that is still there."""

from __future__ import annotations

import random
from unittest import mock

import pytest

import penstock
from penstock import ManualClock, Penstock, StorageFull
from penstock.backends.embedded import engine, opening
from penstock.backends.embedded.keys import SPACES
from penstock.kv.memory import Faults, MemoryStore


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "DUE_HINT_EVERY", 1)


def opened(store: MemoryStore, clock: ManualClock) -> Penstock:
    with mock.patch.object(opening, "MemoryStore", return_value=store):
        return penstock.open("memory:", clock=clock, rng=random.Random(1))


def test_a_process_that_dies_between_the_queues_of_a_slice_leaves_nothing_behind() -> None:
    """What is due of one queue is written, and the process is gone before it writes that of the next."""
    faults, clock = Faults(recovers=True), ManualClock()
    store = MemoryStore(SPACES, faults)
    ps = opened(store, clock)
    for name in ("a", "b"):
        ps.create_queue(name, lease_s=10).enqueue(b"")
        ps.queue(name).lease()
    clock.advance(10)
    faults.fail_write_at = faults.writes + 2
    with pytest.raises(StorageFull):
        ps.sweep()
    with opened(store.reopen(), clock) as again:
        assert again.check().ok
        assert [len(again.queue(name).lease()) for name in ("a", "b")] == [1, 1]
    ps.close()
