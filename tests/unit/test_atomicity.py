"""Message, lease, expiry and event are one write: whatever fails, all of it is there or none.

Every operation is run with each of its writes failing in turn, and with the process dying before and after
each step. What is left must be, byte for byte, what an undisturbed run had after as many writes.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple
from unittest import mock

import pytest

from penstock import Delivery, Entry, NewMessage, Queue, StorageError, StorageFull
from penstock.backends.embedded import bulk
from penstock.backends.embedded.backend import EmbeddedBackend
from penstock.backends.embedded.keys import SPACES
from penstock.clock import ManualClock
from penstock.kv.base import Batch
from penstock.kv.memory import Faults, MemoryStore, SimulatedCrash
from penstock.message import STORED_STATES, State
from penstock.settings import queue_settings

Content = dict[str, list[tuple[bytes, bytes]]]

ID = "018bcfe5-6800-7000-8000-000000000001"
OTHER_ID = "018bcfe5-6800-7000-8000-000000000002"
SETTINGS: dict[str, dict[str, Any]] = {
    "dead": {},
    "q": {"dead_letter": "dead", "max_attempts": 2, "retry": {"delay_s": 5}},
    "kept": {"retention_s": 60, "dead_retention_s": 60, "journal_retention_s": 100},
    "line": {"fifo": True},
}


def content(store: MemoryStore) -> Content:
    return {name: list(store.scan(store.space(name), b"", None)) for name in SPACES}


class RecordingStore(MemoryStore):
    """Remembers what it held after each write."""

    def __init__(self, spaces: Sequence[str], faults: Faults) -> None:
        super().__init__(spaces, faults)
        self.history: list[Content] = [content(self)]

    def write(self, batch: Batch, *, sync: bool = False) -> None:
        super().write(batch, sync=sync)
        self.history.append(content(self))


class System:
    """A backend on a store that fails when told to; the same every time it is made."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.faults = Faults(recovers=True)
        self.store = RecordingStore(SPACES, self.faults)
        self.backend = opened(self.store, self.clock)
        for name, settings in SETTINGS.items():
            self.backend.create_queue(queue_settings(name, settings))

    def __getitem__(self, name: str) -> Queue:
        return Queue(self.backend, name)

    def leased(self, name: str = "q", count: int = 3, lease_s: float = 30) -> list[Delivery]:
        """Fresh messages under leases."""
        self[name].enqueue_many([NewMessage(b"%d" % n, fairness_key=str(n)) for n in range(count)])
        return self[name].lease(count, lease_s=lease_s, consumer="w")

    def failing_in_the_end(self, name: str) -> list[Delivery]:
        """Messages whose next failure kills them."""
        deliveries = self.leased(name)
        for _ in range(self.backend_settings(name).max_attempts - 1):
            self[name].nack(receipts(deliveries), delay_s=0)
            deliveries = self[name].lease(3)
        return deliveries

    def backend_settings(self, name: str) -> Any:
        return next(one for one in self.backend.queues() if one.name == name)


def opened(store: MemoryStore, clock: ManualClock) -> EmbeddedBackend:
    return EmbeddedBackend(store, engine_name="memory", clock=clock, rng=random.Random(1))


def receipts(deliveries: list[Delivery]) -> list[str]:
    return [delivery.receipt for delivery in deliveries]


def summary(backend: EmbeddedBackend) -> dict[str, object]:
    """What an operation has achieved, without the ids and numbers that a second try has of its own."""
    found: dict[str, object] = {}
    for settings in backend.queues():
        stats = backend.stats(settings.name)
        found[settings.name] = [settings, *(getattr(stats, state) for state in STORED_STATES)]
        found[f"cursors of {settings.name}"] = [
            (one.name, one.required) for one in backend.cursors(settings.name)
        ]
    for world in ("world", "other"):
        found[f"world {world}"] = backend.world_stats(world)["entries"]
    found["state"] = [backend.get_state(key) for key in ("key", "other")]
    return found


# The operations


class Case(NamedTuple):
    """`arrange` prepares and may hand something to `act`, whose writes are disturbed."""

    act: Callable[[System, Any], object]
    arrange: Callable[[System], Any] = lambda system: None
    writes: int | None = 1
    """How many writes it takes; None: several, each of them whole by itself."""


def arrange_waiting(system: System) -> list[str]:
    """A ready, a delayed and an expiring message."""
    batch = [NewMessage(b"1"), NewMessage(b"2", delay_s=9), NewMessage(b"3", ttl_s=9)]
    return [result.id or "" for result in system["q"].enqueue_many(batch)]


def arrange_returning(system: System) -> None:
    """A lease, a delay and a ttl that have ended."""
    arrange_waiting(system)
    system.leased(lease_s=1)
    system.clock.advance(9)


def arrange_dead(name: str) -> Callable[[System], None]:
    def arrange(system: System) -> None:
        system[name].reject(receipts(system.leased(name)), "bad")

    return arrange


def arrange_many(system: System) -> list[str]:
    """More than one slice of a bulk operation."""
    results = system["q"].enqueue_many([NewMessage(b"", ttl_s=n or None) for n in range(8)])
    return [result.id or "" for result in results]


def arrange_required(system: System) -> list[Delivery]:
    system.backend.open_cursor("q", "archive", True)
    return system.leased()


def arrange_everything_due(system: System) -> None:
    """Leases, delays, ttls, retention, dedup entries, old events and held bodies: all there for the sweep."""
    arrange_waiting(system)
    system["q"].enqueue(b"", dedup_id="once")
    system.leased(lease_s=1)
    system["kept"].ack(receipts(system.leased("kept")))
    arrange_dead("kept")(system)
    system.backend.open_cursor("line", "archive", True)
    system["line"].ack(receipts(system.leased("line")))
    system.backend.commit_cursor("line", "archive", system["line"].stats().last_seq)
    system.clock.advance(400)


def arrange_full_queue(system: System) -> None:
    arrange_waiting(system)
    system["q"].enqueue(b"", dedup_id="once")
    system.leased()


CASES: dict[str, Case] = {
    "enqueue": Case(lambda s, _: s["q"].enqueue(b"payload")),
    "enqueue a batch of all kinds": Case(
        lambda s, _: s["q"].enqueue_many(
            [
                NewMessage(b"plain"),
                NewMessage(b"delayed", delay_s=5, ttl_s=9),
                NewMessage(b"deduplicated", dedup_id="d"),
                NewMessage(b"again", dedup_id="d"),
                NewMessage(b"given", id=ID),
                NewMessage(b"refused", priority=10),
            ]
        )
    ),
    "upsert a new message": Case(lambda s, _: s["q"].upsert([NewMessage(b"", id=ID), NewMessage(b"")])),
    "upsert waiting messages": Case(
        lambda s, ids: s["q"].upsert(
            [NewMessage(b"new", id=ids[0], delay_s=3), NewMessage(b"new", id=ids[1], fairness_key="k")]
        ),
        arrange_waiting,
    ),
    "upsert one message twice": Case(
        lambda s, _: s["q"].upsert([NewMessage(b"1", id=ID), NewMessage(b"2", id=ID)]), writes=None
    ),
    "lease": Case(lambda s, _: s["q"].lease(2, consumer="w"), arrange_waiting),
    "lease what leases, delays and ttls give back": Case(
        lambda s, _: s["q"].lease(10),
        arrange_returning,
        writes=None,
    ),
    "lease from a fifo queue": Case(
        lambda s, _: s["line"].lease(2), lambda s: s["line"].enqueue_many([NewMessage(b"")] * 3)
    ),
    "ack": Case(lambda s, deliveries: s["q"].ack(receipts(deliveries)), System.leased),
    "ack with retention": Case(
        lambda s, deliveries: s["kept"].ack(receipts(deliveries)), lambda s: s.leased("kept")
    ),
    "ack before a required cursor has read": Case(
        lambda s, deliveries: s["q"].ack(receipts(deliveries)), arrange_required
    ),
    "ack in a fifo queue": Case(
        lambda s, deliveries: s["line"].ack(receipts(deliveries)), lambda s: s.leased("line")
    ),
    "nack": Case(lambda s, deliveries: s["q"].nack(receipts(deliveries), delay_s=0), System.leased),
    "nack by the retry policy": Case(
        lambda s, deliveries: s["q"].nack(receipts(deliveries), reason="why"), System.leased
    ),
    "nack to death in the dead-letter queue": Case(
        lambda s, deliveries: s["q"].nack(receipts(deliveries)), lambda s: s.failing_in_the_end("q")
    ),
    "nack to death at home": Case(
        lambda s, deliveries: s["kept"].nack(receipts(deliveries)), lambda s: s.failing_in_the_end("kept")
    ),
    "reject": Case(lambda s, deliveries: s["kept"].reject(receipts(deliveries)), lambda s: s.leased("kept")),
    "extend": Case(lambda s, deliveries: s["q"].extend(receipts(deliveries), 99), System.leased),
    "move": Case(lambda s, ids: s["q"].move(ids, "kept"), arrange_waiting),
    "move many": Case(lambda s, ids: s["q"].move(ids, "kept"), arrange_many, writes=None),
    "redrive at home": Case(lambda s, _: s["kept"].redrive(), arrange_dead("kept")),
    "redrive to the origin": Case(lambda s, _: s["dead"].redrive(), arrange_dead("q")),
    "redrive many": Case(
        lambda s, _: s["kept"].redrive(),
        lambda s: [arrange_dead("kept")(s) for _ in range(3)],
        writes=None,
    ),
    "purge": Case(lambda s, _: s["q"].purge(), arrange_waiting),
    "purge leased messages": Case(lambda s, _: s["q"].purge(State.LEASED), System.leased),
    "purge many": Case(lambda s, _: s["q"].purge(), arrange_many, writes=None),
    "sweep": Case(lambda s, _: s.backend.sweep(100), arrange_everything_due, writes=None),
    "look at what time has changed": Case(lambda s, _: s["q"].stats(), arrange_returning, writes=None),
    "create a queue": Case(lambda s, _: s.backend.create_queue(queue_settings("new", {}))),
    "update a queue": Case(lambda s, _: s.backend.update_queue(queue_settings("q", {"lease_s": 1}))),
    "delete a queue": Case(lambda s, _: s.backend.delete_queue("q"), arrange_full_queue, writes=None),
    "replace the queues": Case(
        lambda s, _: s.backend.replace_queues(
            [queue_settings("new", {}), queue_settings("kept", {"lease_s": 1})]
        ),
        arrange_full_queue,
    ),
    "append to a new journal": Case(
        lambda s, _: s.backend.append_entries("world", [Entry("k", b"1"), Entry("k", b"2", vector=[1.0])])
    ),
    "append to a journal": Case(
        lambda s, _: s.backend.append_entries("world", [Entry("k")]),
        lambda s: s.backend.append_entries("world", [Entry("k")]),
    ),
    "configure a journal": Case(lambda s, _: s.backend.configure_world("world", 5, None)),
    "open a cursor": Case(lambda s, _: s.backend.open_cursor("q", "archive", True)),
    "commit a cursor": Case(lambda s, _: s.backend.commit_cursor("q", "archive", 2), arrange_required),
    "drop a cursor": Case(lambda s, _: s.backend.drop_cursor("q", "archive"), arrange_required),
    "put state": Case(lambda s, _: s.backend.put_state("key", b"value")),
    "delete state": Case(
        lambda s, _: s.backend.delete_state("key"), lambda s: s.backend.put_state("key", b"value")
    ),
}


class Run(NamedTuple):
    """An undisturbed run: what the store held before and after each of its writes, and what it achieved."""

    history: list[Content]
    first: int
    steps: int
    achieved: dict[str, object]

    @property
    def contents(self) -> list[Content]:
        return self.history[self.first :]

    @property
    def writes(self) -> int:
        return len(self.contents) - 1


@pytest.fixture(autouse=True)
def small_slices() -> Any:
    """Bulk operations of a few messages are long ones."""
    with mock.patch.object(bulk, "SLICE", 3):
        yield


def arranged(case: Case) -> tuple[System, Any]:
    system = System()
    return system, case.arrange(system)


def undisturbed(case: Case) -> Run:
    system, given = arranged(case)
    first, steps = len(system.store.history) - 1, system.faults.steps
    case.act(system, given)
    history, steps = system.store.history, system.faults.steps - steps
    assert system.backend.check().problems == []
    return Run(list(history), first, steps, summary(system.backend))


@pytest.mark.parametrize("name", CASES)
def test_an_operation_is_one_write(name: str) -> None:
    run = undisturbed(CASES[name])
    assert run.writes == CASES[name].writes or (CASES[name].writes is None and run.writes > 1)
    assert run.contents[0] != run.contents[-1]


@pytest.mark.parametrize("name", CASES)
def test_a_failed_write_surfaces_and_changes_nothing_and_a_second_try_succeeds(name: str) -> None:
    case = CASES[name]
    run = undisturbed(case)
    for failing in range(run.writes):
        system, given = arranged(case)
        system.faults.fail_write_at = system.faults.writes + failing + 1
        if (name, failing) == ("delete a queue", 1):
            case.act(system, given)  # The queue is gone by the first write; its rows are for the sweep.
            system.backend.sweep(100)
        else:
            with pytest.raises(StorageFull):
                case.act(system, given)
            assert content(system.store) == run.contents[failing], f"after {failing} of {run.writes} writes"
            assert system.backend.check().problems == []
            case.act(system, given)
        assert system.backend.check().problems == []
        assert summary(system.backend) == run.achieved


@pytest.mark.parametrize("name", CASES)
def test_a_store_that_refuses_writes_after_a_failed_one_works_again_when_reopened(name: str) -> None:
    case = CASES[name]
    run = undisturbed(case)
    for failing in range(run.writes):
        system, given = arranged(case)
        system.faults.recovers = False
        system.faults.fail_write_at = system.faults.writes + failing + 1
        if (name, failing) == ("delete a queue", 1):
            case.act(system, given)
        else:
            with pytest.raises(StorageFull):
                case.act(system, given)
            if name == "sweep":  # It takes the queues in turn: the one that failed may come last now.
                with contextlib.suppress(StorageError):
                    case.act(system, given)
            with pytest.raises(StorageError):
                case.act(system, given)
        store = system.store.reopen()
        assert content(store) == run.contents[failing]
        system.backend = opened(store, system.clock)
        assert system.backend.check().problems == []
        if failing == 0:
            case.act(system, given)
            assert summary(system.backend) == run.achieved


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("name", CASES)
def test_a_process_that_dies_leaves_the_store_as_it_was_after_some_whole_writes(
    name: str, moment: Literal["before", "after"]
) -> None:
    case = CASES[name]
    run = undisturbed(case)
    for step in range(run.steps):
        system, given = arranged(case)
        system.faults.crash_at_step = system.faults.steps + step + 1
        system.faults.crash_moment = moment
        with pytest.raises(SimulatedCrash):
            case.act(system, given)
        store = system.store.reopen()
        assert content(store) in run.contents
        backend = opened(store, system.clock)
        assert backend.check().problems == []
        finish(backend)
        assert backend.check().problems == []


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("name", CASES)
def test_a_power_cut_leaves_the_store_as_it_was_after_some_whole_writes(
    name: str, moment: Literal["before", "after"]
) -> None:
    case = CASES[name]
    run = undisturbed(case)
    for step in range(run.steps):
        system, given = arranged(case)
        system.faults.crash_at_step = system.faults.steps + step + 1
        system.faults.crash_moment = moment
        with pytest.raises(SimulatedCrash):
            case.act(system, given)
        for seed in range(3):
            store = system.store.crash(random.Random(seed))
            # What nobody was told of may be gone as well: the releases of a sweep before, say.
            assert content(store) in run.history
            assert opened(store, system.clock).check().problems == []


#: Time does the same again when it is asked: nobody is told of it, so nobody waits for the disk.
UNPROMISED = {"sweep", "look at what time has changed"}


@pytest.mark.parametrize("name", sorted(set(CASES) - UNPROMISED))
def test_what_an_operation_has_answered_survives_a_power_cut(name: str) -> None:
    case = CASES[name]
    run = undisturbed(case)
    system, given = arranged(case)
    case.act(system, given)
    for seed in range(3):
        store = system.store.crash(random.Random(seed))
        if name == "delete a queue":  # The dropping of its rows is housekeeping.
            assert content(store) in run.contents[1:]
        else:
            assert content(store) == run.contents[-1]
        backend = opened(store, system.clock)
        assert backend.check().problems == []
        assert summary(backend) == run.achieved


def finish(backend: EmbeddedBackend) -> None:
    """Whatever a crash left half done is done by sweeping."""
    while backend.sweep(100):
        pass


@pytest.mark.parametrize("name", ["move many", "redrive many", "purge many", "delete a queue"])
def test_a_bulk_operation_that_a_crash_cut_short_is_finished_by_the_sweep(name: str) -> None:
    case = CASES[name]
    run = undisturbed(case)
    for step in range(2, run.steps):
        system, given = arranged(case)
        system.faults.crash_at_step = system.faults.steps + step
        with pytest.raises(SimulatedCrash):
            case.act(system, given)
        backend = opened(system.store.reopen(), system.clock)
        finish(backend)
        assert summary(backend) == run.achieved
        assert backend.check().problems == []


# A failed sync


CALLS: dict[str, Callable[[EmbeddedBackend], object]] = {
    "create_queue": lambda b: b.create_queue(queue_settings("new", {})),
    "create_queue of one that exists": lambda b: b.create_queue(queue_settings("q", {})),
    "update_queue": lambda b: b.update_queue(queue_settings("q", {})),
    "delete_queue": lambda b: b.delete_queue("q"),
    "delete_queue of one that does not exist": lambda b: b.delete_queue("nowhere"),
    "replace_queues": lambda b: b.replace_queues([]),
    "queue": lambda b: b.queue("q"),
    "queues": lambda b: b.queues(),
    "enqueue": lambda b: b.enqueue("q", [NewMessage(b"")]),
    "enqueue nothing": lambda b: b.enqueue("q", []),
    "upsert": lambda b: b.upsert("q", [NewMessage(b"")]),
    "lease": lambda b: b.lease("q", 1, None, 0, ""),
    "ack": lambda b: b.ack("q", ["x"]),
    "nack": lambda b: b.nack("q", ["x"], None, ""),
    "reject": lambda b: b.reject("q", ["x"], ""),
    "extend": lambda b: b.extend("q", ["x"], 5),
    "move": lambda b: b.move("q", [ID], "kept"),
    "redrive": lambda b: b.redrive("q", 9, None),
    "purge": lambda b: b.purge("q", [State.READY]),
    "get_many": lambda b: b.get_many("q", [ID]),
    "peek": lambda b: b.peek("q", 1, 0),
    "page": lambda b: b.page("q", State.READY, None, None, 5),
    "stats": lambda b: b.stats("q"),
    "due": lambda b: b.due(0, None, 5, None),
    "events": lambda b: b.events("q", 0, 5),
    "open_cursor": lambda b: b.open_cursor("q", "c", False),
    "read_cursor": lambda b: b.read_cursor("q", "c", 5),
    "commit_cursor": lambda b: b.commit_cursor("q", "c", 0),
    "drop_cursor": lambda b: b.drop_cursor("q", "c"),
    "cursors": lambda b: b.cursors("q"),
    "append_entries": lambda b: b.append_entries("world", [Entry("k")]),
    "scan_entries": lambda b: b.scan_entries("world"),
    "get_entries": lambda b: b.get_entries([ID]),
    "world_stats": lambda b: b.world_stats("world"),
    "configure_world": lambda b: b.configure_world("world", 1, None),
    "put_state": lambda b: b.put_state("key", b""),
    "get_state": lambda b: b.get_state("key"),
    "delete_state": lambda b: b.delete_state("key"),
    "check": lambda b: b.check(),
    "sweep": lambda b: b.sweep(5),
}


def test_every_call_of_a_backend_is_listed_here() -> None:
    public = {name for name in vars(EmbeddedBackend) if not name.startswith("_")}
    properties = {name for name in public if isinstance(vars(EmbeddedBackend)[name], property)}
    assert public - properties - {"info", "health", "close"} <= {name.split()[0] for name in CALLS}


def after_failed_sync() -> System:
    system = System()
    arrange_full_queue(system)
    system.faults.fail_sync_at = system.faults.syncs + 1
    with pytest.raises(StorageError, match="sync failed"):
        system["q"].enqueue(b"in doubt")
    return system


@pytest.mark.parametrize("name", CALLS)
def test_after_a_failed_sync_every_call_says_to_reopen_the_store(name: str) -> None:
    system = after_failed_sync()
    with pytest.raises(StorageError, match="reopen"):
        CALLS[name](system.backend)


def test_after_a_failed_sync_health_says_so_and_info_still_answers() -> None:
    backend = after_failed_sync().backend
    assert backend.health().status == "unhealthy"
    assert "sync failed" in backend.health().reasons[0]
    assert backend.info().engine == "memory"
    backend.close()


def test_a_store_whose_sync_failed_works_again_when_reopened() -> None:
    system = after_failed_sync()
    for store in (system.store.reopen(), system.store.crash(random.Random(1))):
        backend = opened(store, system.clock)
        assert backend.check().problems == []
        before = Queue(backend, "q").length()
        Queue(backend, "q").enqueue(b"again")
        assert Queue(backend, "q").length() == before + 1


def test_a_failed_sync_lets_no_other_operation_claim_success() -> None:
    system = System()
    deliveries = system.leased()
    system.faults.fail_sync_at = system.faults.syncs + 1
    with pytest.raises(StorageError):
        system["q"].ack(receipts(deliveries[:1]))
    with pytest.raises(StorageError, match="reopen"):
        system["q"].ack(receipts(deliveries[1:]))
    lost = opened(system.store.crash(random.Random(0)), system.clock)
    assert Queue(lost, "q").stats().leased >= 2
