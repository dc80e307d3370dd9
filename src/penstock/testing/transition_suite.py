"""The table of transitions: every documented one happens, and no other."""

from __future__ import annotations

from collections.abc import Callable

from penstock import Kind, ManualClock, NewMessage, Penstock, State
from penstock.message import TRANSITIONS
from penstock.testing.folding import Step, fold, read_events
from penstock.testing.harness import BackendCase, ack, bury, requires, sweep_all, take_one

#: Need damage to repair, or a script: proved where those are.
ELSEWHERE = (Kind.REPAIRED, Kind.DROPPED)
BY_SCRIPTS: set[Step] = {(State.LEASED, Kind.RELEASED, State.DELAYED)}
#: Takes a queue with a delay.
BY_FIFO: set[Step] = {(State.DEAD, Kind.REDRIVEN, State.DELAYED)}

DOCUMENTED: set[Step] = {
    (before, kind, after)
    for (before, kind), afters in TRANSITIONS.items()
    for after in afters
    if kind not in ELSEWHERE
} - BY_SCRIPTS


def replace_what_waits(ps: Penstock, clock: ManualClock) -> None:
    q = ps.queue("plain")
    for before_s in (0, 60):
        for after_s in (0, 60):
            message_id = q.enqueue(b"", delay_s=before_s)
            q.upsert([NewMessage(id=message_id, delay_s=after_s)])
    q.purge()


def finish(ps: Penstock, clock: ManualClock) -> None:
    for name in ("plain", "kept"):
        q = ps.queue(name)
        q.enqueue(b"")
        delivery = take_one(q)
        q.extend([delivery.receipt], lease_s=100)
        ack(q, [delivery])


def fail_and_return(ps: Penstock, clock: ManualClock) -> None:
    q = ps.queue("plain")
    q.enqueue(b"")
    q.nack([take_one(q).receipt], delay_s=0)
    q.nack([take_one(q).receipt], delay_s=10)
    clock.advance(10)
    take_one(q, lease_s=5)
    clock.advance(5)
    ack(q, [take_one(q)])


def die_and_come_back(ps: Penstock, clock: ManualClock) -> None:
    plain, dead = ps.queue("plain"), ps.queue("dead")
    bury(plain)
    plain.redrive()
    ack(plain, [take_one(plain)])
    bury(plain)
    plain.redrive(target="target")
    bury(ps.queue("dying"))
    dead.redrive()
    ps.queue("dying").purge()


def redrive_where_messages_wait(ps: Penstock, clock: ManualClock) -> None:
    q = ps.create_queue("line", fifo=True)
    bury(q)
    ps.update_queue("line", delay_s=10)
    q.redrive()


def move(ps: Penstock, clock: ManualClock) -> None:
    q = ps.queue("plain")
    died = bury(q)
    q.move([died, q.enqueue(b""), q.enqueue(b"", delay_s=60)], target="target")


def expire(ps: Penstock, clock: ManualClock) -> None:
    q = ps.queue("plain")
    q.enqueue(b"", ttl_s=5)
    held = take_one(q, lease_s=60)
    q.enqueue(b"", ttl_s=5)
    q.enqueue(b"", ttl_s=5, delay_s=30)
    clock.advance(5)
    q.nack([held.receipt], delay_s=0)
    sweep_all(ps)


def purge(ps: Penstock, clock: ManualClock) -> None:
    q = ps.queue("kept")
    q.enqueue(b"")
    ack(q, [take_one(q)])
    bury(q)
    q.enqueue(b"")
    take_one(q)
    q.enqueue(b"")
    q.enqueue(b"", delay_s=60)
    for state in ("delayed", "ready", "leased", "done", "dead"):
        q.purge(state)


def outlive_retention(ps: Penstock, clock: ManualClock) -> None:
    q = ps.queue("kept")
    q.enqueue(b"")
    ack(q, [take_one(q)])
    bury(q)
    clock.advance(60)
    sweep_all(ps)


EVERYTHING: list[Callable[[Penstock, ManualClock], None]] = [
    replace_what_waits,
    finish,
    fail_and_return,
    die_and_come_back,
    move,
    expire,
    purge,
    outlive_retention,
]


class TransitionSuite(BackendCase):
    """`message.TRANSITIONS`."""

    @requires("journal", "delay", "time_to_live")
    def test_every_documented_transition_happens_and_no_other(self, ps: Penstock, clock: ManualClock) -> None:
        ps.create_queue("plain")
        ps.create_queue("kept", retention_s=60, dead_retention_s=60)
        ps.create_queue("dead")
        ps.create_queue("dying", dead_letter="dead")
        ps.create_queue("target")
        for part in EVERYTHING:
            part(ps, clock)
        documented = DOCUMENTED
        if ps.info().default.capabilities.fifo:
            redrive_where_messages_wait(ps, clock)
        else:
            documented = DOCUMENTED - BY_FIFO
        taken: set[Step] = set()
        for settings in ps.queues():
            taken |= fold(read_events(ps.queue(settings.name))).steps.keys()
        assert taken == documented

    @requires("journal")
    def test_what_is_refused_is_no_transition(self, ps: Penstock) -> None:
        q = ps.create_queue("kept", retention_s=60)
        ps.create_queue("other")
        done = q.enqueue(b"")
        delivery = take_one(q)
        ack(q, [delivery])
        dead = bury(q)
        held = q.enqueue(b"")
        take_one(q)
        before = read_events(q)
        for call in (q.ack, q.nack, q.reject):
            call([delivery.receipt])
        q.extend([delivery.receipt], lease_s=1)
        q.upsert([NewMessage(id=one) for one in (done, dead, held)])
        q.enqueue_many([NewMessage(id=one) for one in (done, dead, held)])
        q.move([done, held], target="other")
        q.lease(10)
        assert read_events(q) == before
        assert read_events(ps.queue("other")) == []
