"""Every operation of a backend, on a store that fails when told to: what the tests of atomicity disturb."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

from penstock import Delivery, Entry, NewMessage, Queue
from penstock.backends.embedded.backend import EmbeddedBackend
from penstock.backends.embedded.keys import SPACES
from penstock.clock import ManualClock
from penstock.kv.base import Batch
from penstock.kv.memory import Faults, MemoryStore
from penstock.message import STORED_STATES, State
from penstock.settings import QueueSettings, queue_settings

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
    "update a queue": Case(
        lambda s, _: s.backend.update_queue(
            queue_settings("q", {"lease_s": 1}), cast(QueueSettings, s.backend.queue("q"))
        )
    ),
    "delete a queue": Case(lambda s, _: s.backend.delete_queue("q"), arrange_full_queue, writes=None),
    "replace the queues": Case(
        lambda s, _: s.backend.replace_queues(
            [queue_settings("new", {}), queue_settings("kept", {"lease_s": 1})]
        ),
        arrange_full_queue,
    ),
    "declare queues": Case(
        lambda s, _: s.backend.declare_queues(
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
