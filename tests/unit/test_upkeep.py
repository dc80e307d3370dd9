"""Upkeep takes its kinds of work in turn: one that fails does not keep the others from theirs."""

from __future__ import annotations

import pytest

from penstock.backends.embedded.bulk import Bulk
from tests.unit.memory_system import MemorySystem


def test_a_kind_of_work_that_always_fails_is_told_and_the_others_get_their_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(bulk: Bulk, slices: int) -> int:
        raise RuntimeError("injected")

    monkeypatch.setattr(Bulk, "resume", fail)
    system = MemorySystem()
    q = system.create("q", journal_retention_s=1)
    q.enqueue(b"")
    system.clock.advance(5)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="injected"):
            system.backend.sweep(100)
    assert q.stats().first_seq == 2
