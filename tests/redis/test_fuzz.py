"""Random histories on Redis: after every few steps the store passes its check and every journal folds."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from penstock import Delivery, NewMessage, Penstock, Queue
from penstock.testing.folding import prove_journal
from penstock.testing.harness import receipts
from tests.redis.stores import Place

QUEUES = ("plain", "line", "limited", "kept", "dead")
STEPS = 200
CHECK_EVERY = 10


class History:
    """One random history."""

    def __init__(self, ps: Penstock, place: Place, seed: int) -> None:
        self.ps = ps
        self.place = place
        self.rng = random.Random(seed)
        self.held: dict[str, list[Delivery]] = {name: [] for name in QUEUES}
        ps.create_queue("dead", max_attempts=2)
        ps.create_queue(
            "plain", dead_letter="dead", max_attempts=2, retry={"policy": "list", "delays_s": [0, 3]}
        )
        ps.create_queue("line", fifo=True, dead_letter="dead", max_attempts=3)
        ps.create_queue("limited", max_leased=7, max_leased_per_key=2, max_attempts=3)
        ps.create_queue("kept", retention_s=5, dead_retention_s=7, journal_retention_s=20)

    def queue(self) -> Queue:
        return self.ps.queue(self.rng.choice(QUEUES))

    def new(self, name: str) -> NewMessage:
        rng, fifo = self.rng, name == "line"
        return NewMessage(
            b"%d" % rng.randrange(1000),
            fairness_key=rng.choice(("", "a", "b", "ab", "c")),
            weight=rng.choice((1, 1, 3, 10)),
            priority=4 if fifo else rng.choice((4, 4, 4, 0, 9)),
            delay_s=0 if fifo else rng.choice((0, 0, 0, 1, 5)),
            ttl_s=rng.choice((None, None, None, 2, 9)),
            dedup_id=rng.choice((None, None, f"d{rng.randrange(20)}")),
        )

    def some(self, q: Queue) -> list[Delivery]:
        held = self.held[q.name]
        self.rng.shuffle(held)
        taken = self.rng.randrange(len(held) + 1)
        self.held[q.name] = held[taken:]
        return held[:taken]

    # -- steps

    def enqueue(self, q: Queue) -> None:
        q.enqueue_many([self.new(q.name) for _ in range(self.rng.randrange(1, 12))])

    def lease(self, q: Queue) -> None:
        self.held[q.name] += q.lease(self.rng.randrange(1, 9), lease_s=self.rng.choice((1, 4, 60)))

    def ack(self, q: Queue) -> None:
        q.ack(receipts(self.some(q)))

    def nack(self, q: Queue) -> None:
        q.nack(receipts(self.some(q)), delay_s=self.rng.choice((None, 0, 2)), reason="r")

    def reject(self, q: Queue) -> None:
        q.reject(receipts(self.some(q)[:2]))

    def extend(self, q: Queue) -> None:
        q.extend(receipts(self.held[q.name]), lease_s=self.rng.choice((1, 50)))

    def upsert(self, q: Queue) -> None:
        known = [message.id for message in q.iter()]
        wanted = self.rng.sample(known, min(len(known), 3))
        news = [self.new(q.name) for _ in wanted]
        for message, one in zip(news, wanted, strict=True):
            message.id, message.dedup_id = one, None
        q.upsert(news)

    def move(self, q: Queue) -> None:
        target = self.rng.choice([name for name in QUEUES if name != q.name])
        known = [message.id for message in q.iter()]
        q.move(self.rng.sample(known, min(len(known), 4)), target=target)

    def redrive(self, q: Queue) -> None:
        q.redrive(limit=self.rng.randrange(6))

    def purge(self, q: Queue) -> None:
        if self.rng.random() < 0.3:
            q.purge(self.rng.choice(("ready", "delayed", "leased", "done", "dead")))

    def sweep(self, q: Queue) -> None:
        self.ps.sweep(self.rng.randrange(4))

    def wait(self, q: Queue) -> None:
        self.place.clock.advance(self.rng.choice((0.5, 1, 3, 8)))

    def cursor(self, q: Queue) -> None:
        cursor = q.cursor("c", required=True)
        stats = q.stats()
        cursor.commit(self.rng.randint(stats.first_seq - 1, stats.last_seq))
        if self.rng.random() < 0.4:
            cursor.drop()

    def limits(self, q: Queue) -> None:
        most = self.rng.choice((None, 1, 2, 4))
        self.ps.update_queue("limited", max_leased_per_key=most)

    def delay(self, q: Queue) -> None:
        self.ps.update_queue("line", delay_s=self.rng.choice((0, 0, 2, 6)))

    def step(self) -> None:
        steps: list[Callable[[Queue], None]] = [
            *([self.enqueue] * 4 + [self.lease] * 5 + [self.ack] * 3 + [self.nack] * 2 + [self.wait] * 3),
            *(self.reject, self.extend, self.upsert, self.move, self.redrive, self.purge),
            *(self.sweep, self.cursor, self.limits, self.delay),
        ]
        self.rng.choice(steps)(self.queue())

    def prove(self) -> None:
        report = self.ps.check()
        assert report.ok, report.problems
        for name in QUEUES:
            prove_journal(self.ps.queue(name), fifo=name == "line")


@pytest.mark.parametrize("seed", range(8))
def test_any_history_leaves_a_sound_store(place: Place, seed: int) -> None:
    history = History(place.open(seed), place, seed)
    for step in range(STEPS):
        history.step()
        if step % CHECK_EVERY == 0:
            history.prove()
    history.prove()
    before = {name: sorted(m.id for m in history.ps.queue(name).iter()) for name in QUEUES}
    assert history.ps.reindex().ok
    assert {name: sorted(m.id for m in history.ps.queue(name).iter()) for name in QUEUES} == before
    history.prove()


def test_a_dead_letter_whose_delay_is_over_is_still_redriven(place: Place) -> None:
    ps = place.open()
    dead = ps.create_queue("dead")
    q = ps.create_queue("q", dead_letter="dead")
    message_id = q.enqueue(b"x")
    q.reject(receipts(q.lease()))
    dead.upsert([NewMessage(b"y", id=message_id, delay_s=5)])
    place.clock.advance(5)
    assert ps.check().ok
    assert dead.redrive() == 1
    assert q.get(message_id).payload == b"y"


def test_everything_is_delivered_in_the_end(place: Place) -> None:
    history = History(place.open(99), place, 99)
    for _ in range(STEPS):
        history.step()
    for name in QUEUES:
        history.ps.queue(name).purge("delayed")
    for _ in range(60):
        place.clock.advance(100)
        for name in QUEUES:
            q = history.ps.queue(name)
            while held := q.lease(50):
                assert all(outcome.ok for outcome in q.ack(receipts(held)))
    for name in QUEUES:
        stats = history.ps.queue(name).stats()
        assert (stats.ready, stats.leased, stats.delayed) == (0, 0, 0), name
    history.prove()
