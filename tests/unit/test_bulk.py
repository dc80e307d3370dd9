"""Bulk operations between two of their slices."""

from __future__ import annotations

import pytest

from penstock import NewMessage, QueueNotFound
from penstock.backends.embedded.bulk import SLICE, Bulk, Work
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
