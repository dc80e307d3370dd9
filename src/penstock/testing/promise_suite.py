"""Promises in user words: one clock, one generator, errors that help, and silence about contents."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable

import pytest

from penstock import (
    Entry,
    ManualClock,
    NewMessage,
    Penstock,
    PenstockError,
    Queue,
    QueueAlreadyExists,
    QueueNotFound,
)
from penstock.clock import to_ns
from penstock.testing.background import Background, wait_until
from penstock.testing.folding import read_events
from penstock.testing.harness import (
    START_NS,
    BackendCase,
    OpenStore,
    ack,
    bury,
    drain,
    requires,
    sweep_all,
    take,
    take_one,
)

FUTURE_NS = 4_000_000_000_000_000_000
"""The year 2096."""


class PromiseSuite(BackendCase):
    """What holds everywhere."""

    @requires("delay", "time_to_live", "idempotent_enqueue", "journal")
    @pytest.mark.parametrize("start_ns", [0, START_NS, FUTURE_NS], ids=["1970", "2001", "2096"])
    def test_every_time_is_the_injected_clocks(self, second_store: OpenStore, start_ns: int) -> None:
        clock = ManualClock(start_ns)
        ps = second_store(clock, random.Random(1))
        q = ps.create_queue("q", retention_s=30, dead_retention_s=30)
        q.enqueue_many([NewMessage(), NewMessage(delay_s=10, ttl_s=20, dedup_id="d"), NewMessage()])
        done, dead = take(q, 2, lease_s=5)
        ack(q, [done])
        q.reject([dead.receipt])
        (entry_id,) = ps.journal("w").append([Entry("k")])
        now_ns = clock.now_ns()
        assert {event.at_ns for event in read_events(q)} == {now_ns}
        assert [entry.at_ns for entry in ps.get_entries([entry_id]) if entry] == [now_ns]
        assert [(item.at_ns - now_ns) // 10**9 for item in ps.due()] == [10, 20, 30, 30, 300]
        assert (done.enqueued_at_ns, done.leased_at_ns) == (now_ns, now_ns)
        clock.advance(1000)
        sweep_all(ps)
        assert (list(q.iter()), ps.due()) == ([], [])

    def test_time_that_does_not_pass_changes_nothing(self, ps: Penstock, q: Queue) -> None:
        q.enqueue_many([NewMessage()] * 2)
        take_one(q, lease_s=0.001)
        before = q.stats()
        for _ in range(50):
            sweep_all(ps)
        assert q.stats() == before
        assert len(q.lease(10)) == 1

    def test_a_wait_goes_through_the_clock_too(self, q: Queue, clock: ManualClock) -> None:
        waiting = Background(lambda: q.lease(wait_s=0.001))
        wait_until(lambda: clock.waiters() == 1)
        assert waiting.running
        clock.advance(0.001)
        assert waiting.result() == []

    def test_a_clock_that_steps_back_loses_nothing(self, q: Queue, clock: ManualClock) -> None:
        q.enqueue(b"1")
        clock.set_ns(clock.now_ns() - to_ns(3600))
        q.enqueue(b"2")
        assert drain(q, batch=1) == [b"1", b"2"]
        q.enqueue(b"3")
        take_one(q, lease_s=10)
        clock.set_ns(clock.now_ns() - to_ns(3600))
        assert q.lease() == []
        clock.advance(3610)
        assert [delivery.attempts for delivery in q.lease(10)] == [2]

    @requires("journal")
    def test_the_same_calls_with_the_same_clock_and_seed_leave_the_same_store(
        self, second_store: OpenStore
    ) -> None:
        histories = []
        for _ in range(2):
            clock = ManualClock(START_NS)
            q = second_store(clock, random.Random(3)).create_queue(
                "q", max_attempts=4, retry={"policy": "exponential", "delay_s": 5}
            )
            for n in range(30):
                q.enqueue(b"%d" % n)
                held = q.lease(3)
                q.ack([delivery.receipt for delivery in held[:1]])
                q.nack([delivery.receipt for delivery in held[1:]])
                clock.advance(0.7)
            histories.append((read_events(q), list(q.iter()), q.stats()))
        assert histories[0] == histories[1]

    def test_nothing_is_logged_from_payloads_or_header_values(
        self, ps: Penstock, clock: ManualClock, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.DEBUG)
        secret = "tell-nobody"
        ps.create_queue("dead")
        q = ps.create_queue("q", dead_letter="dead", max_attempts=1)
        q.enqueue_many([NewMessage(secret.encode(), {"token": secret}) for _ in range(3)])
        nacked, rejected, _ = take(q, 3, lease_s=1)
        q.nack([nacked.receipt])
        q.reject([rejected.receipt])
        clock.advance(1)
        sweep_all(ps)
        ps.queue("dead").redrive(limit=2)
        q.move([message.id for message in q.iter()], target="dead")
        ps.queue("dead").purge()
        refused = q.enqueue_many([NewMessage(secret.encode(), {"token": secret}, weight=-1)])
        ps.state.put("k", secret.encode())
        ps.health()
        ps.delete_queue("q")
        assert secret not in caplog.text
        assert secret not in str(refused[0].error)

    def test_errors_say_which_one_and_what_to_do(self, ps: Penstock, q: Queue) -> None:
        with pytest.raises(QueueNotFound, match="create_queue") as missing:
            ps.queue("nowhere")
        with pytest.raises(QueueAlreadyExists, match="update_queue") as existing:
            ps.create_queue("q")
        assert (missing.value.name, existing.value.name) == ("nowhere", "q")
        assert isinstance(missing.value, PenstockError)
        assert not missing.value.retryable

    def test_a_closed_store_answers_nothing_and_can_be_closed_again(self, second_store: OpenStore) -> None:
        ps = second_store(ManualClock(), random.Random(1))
        q = ps.create_queue("q")
        bury(q)
        ps.close()
        ps.close()
        calls: list[Callable[[], object]] = [
            lambda: q.enqueue(b""),
            q.lease,
            lambda: q.ack(["0" * 56]),
            q.peek,
            q.stats,
            q.redrive,
            q.purge,
            q.events,
            q.list,
            ps.queues,
            ps.due,
            ps.check,
            ps.sweep,
            lambda: ps.create_queue("r"),
            lambda: ps.journal("w").append([Entry("k")]),
            ps.journal("w").scan,
            ps.journal("w").stats,
            lambda: ps.get_entries(["0191f2a0-0000-7000-8000-00000000abcd"]),
            lambda: ps.state.get("k"),
            lambda: ps.state.put("k", b""),
        ]
        for call in calls:
            with pytest.raises(PenstockError):
                call()

    def test_a_store_is_a_context_manager(self, second_store: OpenStore) -> None:
        with second_store(ManualClock(), random.Random(1)) as ps:
            q = ps.create_queue("q")
        with pytest.raises(PenstockError):
            q.enqueue(b"")
