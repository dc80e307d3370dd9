"""Upkeep: what fails stops nothing else, and `health` says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock import Entry, NewMessage
from penstock.backends.embedded import bulk, history, keys
from penstock.backends.embedded.calls import Call
from penstock.backends.embedded.keys import Meta
from penstock.backends.embedded.worlds import Worlds
from penstock.journal import Journal
from tests.unit.memory_system import GARBAGE, MemorySystem


def failing(error: BaseException) -> Callable[..., Any]:
    def fail(*_: object) -> Any:
        raise error

    return fail


def test_a_step_that_fails_keeps_no_other_from_its_turn_and_is_told_by_health(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    system = MemorySystem()
    q = system.create("q", retention_s=1, journal_retention_s=5)
    q.enqueue(b"", ttl_s=1)
    q.enqueue(b"")
    q.ack([delivery.receipt for delivery in q.lease(2)][1:])
    system.clock.advance(10)
    with monkeypatch.context() as broken:
        broken.setattr(bulk.Bulk, "resume", failing(RuntimeError("no jobs")))
        with pytest.raises(RuntimeError, match="no jobs"):
            system.backend.sweep(100)
        assert (q.stats().done, q.stats().first_seq > 1) == (0, True)
        health = system.backend.health()
        assert health.status == "degraded"
        assert any("no jobs" in reason for reason in health.reasons)
    system.sweep()
    assert system.backend.health().status == "healthy"


def test_a_damaged_journal_is_told_by_health_until_its_queue_is_gone() -> None:
    system = MemorySystem()
    q = system.create("q", journal_retention_s=1)
    q.cursor("archive", required=True)
    q.enqueue(b"")
    system.damage("journal", "q")
    system.clock.advance(5)
    system.sweep()
    assert any("queue 'q'" in reason for reason in system.backend.health().reasons)
    system.backend.delete_queue("q")
    assert system.backend.health().status == "healthy"


def test_a_queue_or_world_that_fails_otherwise_is_passed_over_too(monkeypatch: pytest.MonkeyPatch) -> None:
    system = MemorySystem()
    queues = [system.create(name, journal_retention_s=1) for name in ("a", "b")]
    for q in queues:
        q.enqueue(b"")
    worlds = [Journal(system.backend, name) for name in ("v", "w")]
    for world in worlds:
        world.append([Entry("k")])
        world.configure(retention_s=1)
    trim, trim_world = history.trim, Worlds.trim

    def trim_b(txn: Any, q: Any, limit: int) -> int:
        return trim(txn, q, limit) if q.name == "b" else 1 // 0

    def trim_w(self: Any, txn: Any, world: str, limit: int) -> int:
        return trim_world(self, txn, world, limit) if world == "w" else 1 // 0

    monkeypatch.setattr(history, "trim", trim_b)
    monkeypatch.setattr(Worlds, "trim", trim_w)
    system.clock.advance(5)
    system.sweep()
    assert [q.stats().first_seq for q in queues] == [1, 2]
    assert [world.stats()["entries"] for world in worlds] == [1, 0]
    assert len(system.backend.health().reasons) == 2


def test_a_job_that_fails_keeps_no_other_job_from_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    system = MemorySystem()
    a, b = system.create("a"), system.create("b")
    for q in (a, b):
        q.enqueue_many([NewMessage(b"")] * 600)
    with monkeypatch.context() as stopped:
        stopped.setattr(bulk.Bulk, "_slice", failing(KeyboardInterrupt()))
        for q in (a, b):
            with pytest.raises(KeyboardInterrupt):
                q.purge()
    purge = bulk._purge_slice
    monkeypatch.setitem(
        bulk._STEPS, "purge", lambda txn, q, work: purge(txn, q, work) if q.name == "b" else 1 // 0
    )
    system.sweep()
    assert (a.stats().ready, b.stats().ready) == (600, 0)
    assert any("job" in reason for reason in system.backend.health().reasons)


def test_a_damaged_job_keeps_no_other_from_its_turn() -> None:
    system = MemorySystem()
    system.put("meta", keys.meta(Meta.JOB, keys.u32(0)), GARBAGE)
    q = system.create("q")
    q.enqueue_many([NewMessage(b"")] * 10)
    system.backend.delete_queue("q")
    system.sweep()
    assert system.rows("messages") == []
    assert any("job 0" in reason for reason in system.backend.health().reasons)


def test_whoever_asked_for_a_job_that_is_not_at_its_end_is_known_to_the_next_owner(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    system = MemorySystem()
    q = system.create("q")
    q.enqueue(b"")
    system.put("meta", keys.meta(Meta.JOB, keys.u32(0)), GARBAGE)
    call = Call(b"c" * 16, 1)
    monkeypatch.setattr(bulk.Bulk, "_slice", failing(KeyboardInterrupt()))
    with system.engine.calls.serving([(call, None)]), pytest.raises(KeyboardInterrupt):
        q.purge()
    assert system.backend.callers() == [call.caller]


def test_many_damaged_jobs_hide_none_behind_them() -> None:
    system = MemorySystem()
    queues = [system.create(f"q{n}") for n in range(bulk.JOBS_LOOKED_AT + 1)]
    for n in range(len(queues)):
        system.put("meta", keys.meta(Meta.JOB, keys.u32(n)), GARBAGE)
    queues[-1].enqueue(b"")
    system.backend.delete_queue(queues[-1].name)
    system.sweep()
    system.sweep()
    assert system.rows("messages") == []
