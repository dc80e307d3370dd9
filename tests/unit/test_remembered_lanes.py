"""An enqueue remembers the lane of a key: what it remembers never outlives that lane."""

from __future__ import annotations

import pytest

from penstock import NewMessage, Queue, StorageError
from penstock.backends.embedded import enqueue, ready
from penstock.backends.embedded.keys import SPACES
from penstock.kv.memory import Faults, MemoryStore
from tests.unit.memory_system import MemorySystem

KEYS = [f"key-{n}" for n in range(12)]


def enqueued(q: Queue, number: int) -> list[tuple[str, bytes]]:
    """One message of each key, none beside another of its key."""
    sent = [(key, b"%d" % number) for key in KEYS]
    q.enqueue_many([NewMessage(payload, fairness_key=key) for key, payload in sent])
    return sent


def drained(q: Queue) -> list[tuple[str, bytes]]:
    found = []
    while held := q.lease(5):
        found += [(one.fairness_key, one.payload) for one in held]
        q.ack([one.receipt for one in held])
    return found


@pytest.mark.parametrize("settings", [{}, {"fifo": True}, {"max_leased_per_key": 2}])
def test_lanes_that_were_forgotten_are_made_anew(
    settings: dict[str, bool | int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ready, "IDLE_LANES", 3)
    system = MemorySystem()
    q = system.create("q", **settings)
    for number in range(8):
        sent = enqueued(q, number) + enqueued(q, number)
        assert {one.key: one.ready for one in q.key_stats()} == dict.fromkeys(KEYS, 2)
        assert sorted(drained(q)) == sorted(sent)
    assert system.problems() == []


def test_shapes_that_were_forgotten_in_the_middle_of_a_batch_are_made_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(enqueue, "SHAPES_KEPT", 5)
    system = MemorySystem()
    first, second = system.create("first"), system.create("second")
    for number in range(4):
        sent = enqueued(first, number)
        assert enqueued(second, number) == sent
        assert sorted(drained(first)) == sorted(drained(second)) == sorted(sent)
    assert system.problems() == []


def test_after_a_write_that_failed_rows_go_where_leases_look_for_them() -> None:
    faults = Faults(recovers=True)
    system = MemorySystem(MemoryStore(SPACES, faults))
    q = system.create("q")
    sent = enqueued(q, 0) + enqueued(q, 0)
    faults.fail_write_at = faults.writes + 1
    with pytest.raises(StorageError):
        enqueued(q, 1)
    sent += enqueued(q, 2)
    assert sorted(drained(q)) == sorted(sent)
    assert system.problems() == []


def test_lanes_that_are_not_found_yet_when_a_key_is_remembered() -> None:
    system = MemorySystem()
    q = system.create("q")
    sent = enqueued(q, 0)
    system = MemorySystem(system.store.reopen())
    q = Queue(system.backend, "q")
    sent += enqueued(q, 1) + enqueued(q, 2)
    held = q.lease(1)  # They are found now.
    assert [one.payload for one in held] == [b"0"]
    q.ack([one.receipt for one in held])
    sent += enqueued(q, 3)
    found = [(one.fairness_key, one.payload) for one in held] + drained(q)
    assert sorted(found) == sorted(sent)
    for key in KEYS:
        assert [payload for name, payload in found if name == key] == [b"0", b"1", b"2", b"3"]
    assert system.problems() == []
