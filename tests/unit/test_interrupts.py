"""Ctrl-C at any moment: the lock is free, memory agrees with the store, and all others go on."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from penstock import Entry, ManualClock, NewMessage, Queue
from penstock.backends.embedded.calls import Calls
from penstock.backends.embedded.engine import Durability
from penstock.backends.embedded.group_commit import GroupCommit, _Ticket
from penstock.backends.embedded.keys import Meta
from penstock.backends.meters import Meter
from penstock.errors import BackendUnavailable
from penstock.journal import Journal
from penstock.kv.memory import MemoryStore
from penstock.settings import queue_settings
from penstock.testing.background import Background
from tests.unit.interrupts import MEMORY, Interrupter
from tests.unit.memory_system import MemorySystem
from tests.unit.test_group_commit import Disk, wait_for

#: Where a generator that is dropped is interrupted in its closing, Python says so and goes on.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

Operation = Callable[[MemorySystem, Queue], object]


def waiting(system: MemorySystem, q: Queue) -> list[str]:
    return [message.id for message in q.list("ready", limit=2).items]


OPERATIONS: dict[str, Operation] = {
    "enqueue": lambda system, q: q.enqueue_many([NewMessage(b"new"), NewMessage(b"", fairness_key="n")]),
    "enqueue with more to it": lambda system, q: q.enqueue(b"", dedup_id="d", ttl_s=50),
    "upsert": lambda system, q: q.upsert([NewMessage(b"new", id=waiting(system, q)[0])]),
    "lease": lambda system, q: q.lease(3),
    "ack": lambda system, q: q.ack([delivery.receipt for delivery in q.lease(2)]),
    "reject": lambda system, q: q.reject([delivery.receipt for delivery in q.lease(2)]),
    "move": lambda system, q: q.move(waiting(system, q), "other"),
    "purge": lambda system, q: q.purge(),
    "stats": lambda system, q: q.stats(),
    "append": lambda system, q: Journal(system.backend, "w").append([Entry("k")]),
    "create a queue": lambda system, q: system.backend.create_queue(queue_settings("new", {})),
    "delete a queue": lambda system, q: system.backend.delete_queue("third"),
    "sweep": lambda system, q: system.backend.sweep(10),
}


def arranged(durability: Durability) -> tuple[MemorySystem, Queue]:
    """Something of everything, some of it due."""
    system = MemorySystem(durability=durability)
    system.create("other", retention_s=1, journal_retention_s=1).enqueue(b"")
    system.create("third").enqueue(b"")
    q = system.create("q", dead_letter="other", retention_s=1)
    q.enqueue_many([NewMessage(b"1"), NewMessage(b"2", fairness_key="a"), NewMessage(b"3", ttl_s=2)])
    q.enqueue_many([NewMessage(b"4", delay_s=1), NewMessage(b"5", delay_s=100)])
    q.lease(1, lease_s=1)
    system.clock.advance(1.5)
    return system, q


@pytest.mark.parametrize(
    ("name", "durability"),
    [*((name, "os") for name in OPERATIONS), ("enqueue", "sync"), ("create a queue", "sync")],
)
def test_an_operation_that_is_interrupted_leaves_a_store_that_all_others_can_use(
    name: str, durability: Durability
) -> None:
    at = 1
    while interrupts(name, durability, at):
        at += 1 + at // 100  # Every place of a short one; a long one does much the same again and again.


def interrupts(name: str, durability: Durability, at: int) -> bool:
    """Whether there was such a place in the operation; the others go on in any case."""
    system, q = arranged(durability)
    interrupter = Interrupter(at)
    interrupter.run(lambda: OPERATIONS[name](system, q))

    def others() -> list[bytes]:
        system.create("afterwards")
        q.enqueue(b"goes on")
        q.stats()
        return [delivery.payload for delivery in q.lease(50)]

    assert b"goes on" in Background(others).result(), f"at place {at}"
    assert system.problems() == [], f"at place {at}"
    stored = [key[1:].decode() for key, _ in system.rows("meta") if key[0] == Meta.QUEUE]
    assert [settings.name for settings in system.backend.queues()] == sorted(stored), f"at place {at}"
    return not interrupter.over


def test_a_write_to_memory_that_is_interrupted_is_whole() -> None:
    at = 1
    while interrupts_a_write(at):
        at += 1


def interrupts_a_write(at: int) -> bool:
    store = MemoryStore(["a", "b"])
    a, b = store.space("a"), store.space("b")
    for n in range(5):
        a.put(b"%d" % n, b"old")
    batch = store.batch()
    batch.put(b"2", b"new", a)
    batch.put(b"new", b"new", b)
    batch.delete_range(b"3", b"5", a)
    batch.put(b"5", b"new", a)
    interrupter = Interrupter(at, MEMORY)
    interrupter.run(lambda: store.write(batch))
    found = [list(store.scan(space, b"", None)) for space in (a, b)]
    before = [[(b"%d" % n, b"old") for n in range(5)], []]
    after = [[(b"0", b"old"), (b"1", b"old"), (b"2", b"new"), (b"5", b"new")], [(b"new", b"new")]]
    assert found == after or (found == before and not interrupter.over), f"at place {at}"
    assert store.approximate_size() == sum(len(key) + len(value) for rows in found for key, value in rows)
    return not interrupter.over


def test_whoever_is_interrupted_in_a_group_keeps_nobody_waiting() -> None:
    at = 1
    while interrupts_a_group(at):
        at += 1


def interrupts_a_group(at: int) -> bool:
    disk = Disk()
    group = GroupCommit(disk.sync, Calls(), Meter(()))
    first = Background(lambda: group.run(lambda: 1))
    disk.entered.acquire()
    interrupter, started = Interrupter(at), threading.Event()

    def interrupted() -> object:
        started.set()
        return interrupter.run(lambda: group.run(lambda: 2))

    second = Background(interrupted)
    started.wait()
    third = Background(lambda: answered(group))
    wait_for(group, 1)
    disk.go.release(9)
    assert first.result() == 1
    assert second.result() in (2, None)
    assert third.result() in (3, BackendUnavailable), f"at place {at}"
    assert Background(lambda: group.run(lambda: 4)).result() == 4
    return not interrupter.over


def answered(group: GroupCommit) -> object:
    try:
        return group.run(lambda: 3)
    except BackendUnavailable:
        return BackendUnavailable


def test_a_leader_that_is_interrupted_twice_leaves_its_place_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    group, hand_over = GroupCommit(lambda: None, Calls(), Meter(())), GroupCommit._hand_over
    interrupts = [KeyboardInterrupt(), KeyboardInterrupt()]

    def interrupted(self: GroupCommit, ticket: _Ticket) -> None:
        if interrupts:
            raise interrupts.pop()
        hand_over(self, ticket)

    monkeypatch.setattr(GroupCommit, "_hand_over", interrupted)
    with pytest.raises(KeyboardInterrupt):
        group.run(lambda: 1)
    assert Background(lambda: group.run(lambda: 2)).result() == 2


def test_a_call_in_the_middle_of_another_of_its_thread_is_refused_and_harms_nothing() -> None:
    system = MemorySystem()
    q = system.create("q")
    q.enqueue_many([NewMessage(b"x")] * 3)
    engine = system.engine
    refused = 0

    class Handler(ManualClock):
        """Asks for numbers whenever it is asked for the time, as a signal handler might."""

        def now_ns(self) -> int:
            nonlocal refused
            if engine.open_transaction is not None:
                try:
                    q.stats()
                except BackendUnavailable:
                    refused += 1
            return super().now_ns()

    clock, engine.clock = engine.clock, Handler(engine.clock.now_ns())
    with engine.lock, engine.transaction() as txn:
        txn.changed = True
        engine.clock.now_ns()
        txn.mark(engine.queue("q"))
    engine.clock = clock
    assert refused == 1
    assert (q.stats().ready, system.problems()) == (3, [])
