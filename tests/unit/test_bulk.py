"""Bulk operations between two of their slices."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from penstock import NewMessage, QueueNotFound, StorageError
from penstock.backends.embedded.bulk import SLICE, Bulk, Work
from penstock.backends.embedded.keys import SPACES
from penstock.kv.base import Row
from penstock.kv.memory import MemoryStore, Space
from tests.unit.memory_system import MemorySystem


def test_a_move_whose_queue_is_deleted_between_two_slices_answers_for_every_id(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    system = MemorySystem()
    q, target = system.create("q"), system.create("target")
    ids = [result.id or "" for result in q.enqueue_many([NewMessage()] * (SLICE + 100))]
    step = Bulk._slice

    def then_delete(self: Bulk, work: Work) -> bool:
        finished = step(self, work)
        if work.job.what == "move" and system.backend.queue("q") is not None:
            system.backend.delete_queue("q")
        return finished

    monkeypatch.setattr(Bulk, "_slice", then_delete)
    outcomes = q.move([*ids, "not an id"], "target")
    assert [outcome.ok for outcome in outcomes] == [True] * SLICE + [False] * 101
    assert isinstance(outcomes[SLICE].error, QueueNotFound)
    assert target.length() == SLICE
    system.sweep()
    assert system.problems() == []


@pytest.mark.parametrize("slices", [0, 1])
def test_a_long_job_that_fails_before_it_has_done_anything_is_withdrawn(
    monkeypatch: pytest.MonkeyPatch, slices: int
) -> None:
    system = MemorySystem()
    q = system.create("q")
    q.enqueue_many([NewMessage()] * (2 * SLICE))
    step, steps = Bulk._slice, []

    def fail(self: Bulk, work: Work) -> bool:
        steps.append(1)
        if len(steps) > slices:
            raise StorageError("the disk failed")
        return step(self, work)

    with monkeypatch.context() as patched:
        patched.setattr(Bulk, "_slice", fail)
        with pytest.raises(StorageError):
            q.purge()
    system.sweep()
    assert q.length() == (0 if slices else 2 * SLICE)
    assert system.problems() == []


class Noting(MemoryStore):
    """Remembers from where each space was scanned."""

    def __init__(self) -> None:
        super().__init__(SPACES)
        self.scanned: list[tuple[str, bytes]] = []

    def scan(self, space: Space, lower: bytes, *args: Any, **kwargs: Any) -> Iterator[Row]:
        self.scanned.append((space.name, lower))
        return super().scan(space, lower, *args, **kwargs)


def test_a_slice_of_a_dropped_queue_starts_where_the_one_before_it_ended() -> None:
    store = Noting()
    system = MemorySystem(store)
    q = system.create("q")
    q.enqueue_many([NewMessage(delay_s=100)] * (4 * SLICE))
    q.enqueue_many([NewMessage(dedup_id=str(n)) for n in range(4 * SLICE)])
    store.scanned.clear()
    system.backend.delete_queue("q")
    system.sweep()
    for space in ("state", "ready", "dedup"):
        starts = [lower for name, lower in store.scanned if name == space]
        assert len(starts) >= 4
        assert starts[:4] == sorted(set(starts[:4])), space
    assert system.problems() == []
    assert [space for space in ("messages", "state", "ready", "dedup", "due") if system.rows(space)] == []


def test_held_bodies_are_freed_from_where_the_last_slice_ended() -> None:
    store = Noting()
    system = MemorySystem(store)
    q = system.create("q")
    cursor = q.cursor("archive", required=True)
    q.enqueue_many([NewMessage()] * (3 * SLICE))
    q.ack([delivery.receipt for delivery in q.lease(3 * SLICE)])
    cursor.commit(q.stats().last_seq)
    store.scanned.clear()
    system.sweep()
    starts = [lower for name, lower in store.scanned if name == "held"]
    assert len(starts) >= 3
    assert starts[:3] == sorted(set(starts[:3]))
    assert (q.stats().held_bodies, system.problems()) == (0, [])
    q.enqueue(b"")
    q.ack([delivery.receipt for delivery in q.lease()])
    cursor.commit(q.stats().last_seq)
    system.sweep()
    assert q.stats().held_bodies == 0
