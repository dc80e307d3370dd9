"""Bulk operations of many slices, and what must be there once a crash has been swept up."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from penstock import NewMessage
from penstock.queue import Queue
from tests.crash.system import System

#: Five slices and a bit.
COUNT = 2600
HELD = 40
LIMIT = 1700
#: No operation: whether the store opens at all.
OPEN_ONLY = "open"


@dataclass(frozen=True)
class Scenario:
    """One operation, and how many messages are where."""

    prepare: Callable[[System], None]
    run: Callable[[System], None]
    expected: dict[str, int]
    """What each queue has once it has happened, if anything."""
    untouched: dict[str, int]
    """What each queue has while it has not happened at all."""
    later: tuple[str, ...]
    """Queues that get a message after the crash and before the sweep: it must stay."""


def payloads(count: int, what: str) -> list[NewMessage]:
    return [NewMessage(f"{what} {n}".encode()) for n in range(count)]


def _mixed(queue: Queue) -> None:
    """Waiting messages of every kind, and some that are leased."""
    queue.enqueue_many(payloads(HELD, "held"))
    queue.lease(HELD, lease_s=3600)
    returned = HELD * 2
    queue.enqueue_many(payloads(returned, "returned"))
    queue.nack([d.receipt for d in queue.lease(returned)], delay_s=0)
    plain = COUNT - returned - 3 * HELD
    queue.enqueue_many(payloads(plain, "plain"))
    queue.enqueue_many([NewMessage(b"delayed", delay_s=3600, ttl_s=7200) for _ in range(HELD)])
    queue.enqueue_many([NewMessage(b"expiring", ttl_s=7200, priority=9) for _ in range(HELD)])
    queue.enqueue_many([NewMessage(b"deduped", dedup_id=str(n), fairness_key="a") for n in range(HELD)])


def _prepare_one(system: System) -> None:
    _mixed(system.create_queue("q"))


def _prepare_move(system: System) -> None:
    _prepare_one(system)
    system.create_queue("target")


def _prepare_dead(system: System) -> None:
    system.create_queue("dead")
    queue = system.create_queue("q", dead_letter="dead")
    queue.enqueue_many(payloads(COUNT, "plain"))
    while deliveries := queue.lease(1000):
        queue.reject([delivery.receipt for delivery in deliveries], reason="no")
    # Not dead letters: a redrive leaves them where they are.
    system.queue("dead").enqueue_many(payloads(HELD, "own"))


def _prepare_dead_here(system: System) -> None:
    queue = system.create_queue("q")
    queue.enqueue_many(payloads(COUNT, "plain"))
    while deliveries := queue.lease(1000):
        queue.reject([delivery.receipt for delivery in deliveries], reason="no")


def _purge(system: System) -> None:
    assert system.queue("q").purge() == COUNT


def _move(system: System) -> None:
    queue = system.queue("q")
    ids = [message.id for state in ("ready", "delayed") for message in queue.iter(state)]
    assert all(outcome.ok for outcome in queue.move(ids, "target"))


def _delete(system: System) -> None:
    system.delete_queue("q")
    while system.sweep(1):
        pass


def _redrive(system: System) -> None:
    assert system.queue("dead").redrive(limit=LIMIT) == LIMIT


def _redrive_here(system: System) -> None:
    assert system.queue("q").redrive(limit=LIMIT) == LIMIT


SCENARIOS = {
    "purge": Scenario(_prepare_one, _purge, {"q": HELD}, {"q": COUNT + HELD}, ("q",)),
    "move": Scenario(
        _prepare_move, _move, {"q": HELD, "target": COUNT}, {"q": COUNT + HELD}, ("q", "target")
    ),
    "delete": Scenario(_prepare_one, _delete, {}, {"q": COUNT + HELD}, ("q",)),
    "redrive": Scenario(
        _prepare_dead,
        _redrive,
        {"q": LIMIT, "dead": COUNT - LIMIT + HELD},
        {"dead": COUNT + HELD},
        ("q", "dead"),
    ),
    "redrive-here": Scenario(_prepare_dead_here, _redrive_here, {"q": COUNT}, {"q": COUNT}, ("q",)),
}


def run(system: System, what: str) -> None:
    """What the child does: the operation, or the sweep that takes up what another child left."""
    if what == OPEN_ONLY:
        return
    if what == "sweep":
        while system.sweep(1):
            pass
    else:
        SCENARIOS[what].run(system)


def add_later(system: System, scenario: Scenario) -> dict[str, str]:
    """A message in each queue, which may have to be made again, after the crash: queue -> id."""
    there = {settings.name for settings in system.queues()}
    for name in scenario.later:
        if name not in there:
            system.create_queue(name)
    return {name: system.queue(name).enqueue(b"later") for name in scenario.later}


def complaints(system: System, what: str, later: dict[str, str], happened: Iterable[bool]) -> list[str]:
    """What is not as it must be, with the operation done or, where that may be, not even begun."""
    scenario = SCENARIOS[what]
    found = [f"check: {p.what} ({p.queue!r}, {p.where})" for p in system.check().problems]
    counts = {s.name: system.queue(s.name).stats() for s in system.queues()}
    total = {n: s.delayed + s.ready + s.leased + s.dead - (n in later) for n, s in counts.items()}
    allowed = [scenario.expected if yes else scenario.untouched for yes in happened]
    left = {name: count for name, count in total.items() if count}
    if left not in allowed:
        found.append(f"{what} left {left}, not one of {allowed}")
    for name, message_id in later.items():
        if system.queue(name).get(message_id).payload != b"later":
            found.append(f"what came to {name!r} later was touched")
    ids = [message.id for name in total for message in system.queue(name).iter()]
    if len(ids) != len(set(ids)):
        found.append(f"{len(ids) - len(set(ids))} messages are in two places")
    if what == "redrive-here" and counts["q"].ready - len(later) not in (0, LIMIT):
        found.append(f"{counts['q'].ready} were redriven, with a limit of {LIMIT}")
    return found
