"""Long-polls: they wake when work arrives or falls due, and time is the injected clock's."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from penstock import (
    Delivery,
    ManualClock,
    NewMessage,
    Penstock,
    PenstockError,
    Queue,
    QueueNotFound,
)
from penstock.testing.background import Background, wait_until
from penstock.testing.harness import BackendCase, OpenStore, ack, payloads, receipts, requires, take, take_one

GIVEN = "0191f2a0-0000-7000-8000-00000000abcd"


def poll(
    q: Queue, clock: ManualClock, wait_s: float = 60, max_messages: int = 1
) -> Background[list[Delivery]]:
    """A long-poll in a thread of its own; returns once it waits."""
    waiting = clock.waiters()
    thread = Background(lambda: q.lease(max_messages, wait_s=wait_s))
    wait_until(lambda: clock.waiters() > waiting or not thread.running)
    assert thread.running, f"the poll did not wait: {thread.result()}"
    return thread


class WaitingSuite(BackendCase):
    """`lease(wait_s=…)`."""

    def test_a_poll_takes_what_is_there_without_waiting(self, q: Queue) -> None:
        q.enqueue(b"x")
        assert payloads(q.lease(10, wait_s=60)) == [b"x"]

    def test_a_poll_ends_empty_when_its_time_is_over(self, q: Queue, clock: ManualClock) -> None:
        waiting = poll(q, clock, wait_s=10)
        clock.advance(10)
        assert waiting.result() == []

    def test_a_poll_wakes_when_a_message_arrives(self, q: Queue, clock: ManualClock) -> None:
        waiting = poll(q, clock)
        q.enqueue(b"x")
        assert payloads(waiting.result()) == [b"x"]

    def test_what_happens_in_another_queue_does_not_end_a_poll(
        self, ps: Penstock, q: Queue, clock: ManualClock
    ) -> None:
        other = ps.create_queue("other")
        waiting = poll(q, clock)
        other.enqueue(b"there")
        ack(other, [take_one(other)])
        q.enqueue(b"here")
        assert payloads(waiting.result()) == [b"here"]

    @requires("delay")
    def test_a_poll_wakes_when_a_delay_is_over(self, q: Queue, clock: ManualClock) -> None:
        q.enqueue(b"x", delay_s=20)
        waiting = poll(q, clock, wait_s=60)
        clock.advance(20)
        assert payloads(waiting.result()) == [b"x"]

    @requires("delay")
    def test_a_poll_wakes_for_a_delay_that_was_set_while_it_waited(
        self, q: Queue, clock: ManualClock
    ) -> None:
        q.enqueue(b"late", delay_s=50)
        waiting = poll(q, clock, wait_s=60)
        q.enqueue(b"early", delay_s=5)
        wait_until(lambda: clock.waiters() == 1)
        clock.advance(5)
        assert payloads(waiting.result()) == [b"early"]

    def test_a_poll_wakes_when_a_lease_runs_out(self, q: Queue, clock: ManualClock) -> None:
        q.enqueue(b"x")
        take_one(q, lease_s=20)
        waiting = poll(q, clock, wait_s=60)
        clock.advance(20)
        (delivery,) = waiting.result()
        assert (delivery.payload, delivery.attempts) == (b"x", 2)

    def test_a_poll_wakes_when_a_message_is_given_back(self, q: Queue, clock: ManualClock) -> None:
        q.enqueue(b"x")
        held = take_one(q)
        waiting = poll(q, clock)
        q.nack([held.receipt], delay_s=0)
        assert [delivery.attempts for delivery in waiting.result()] == [2]

    def test_a_poll_goes_on_waiting_while_time_passes_and_nothing_comes(
        self, q: Queue, clock: ManualClock
    ) -> None:
        waiting = poll(q, clock, wait_s=60)
        for _ in range(5):
            clock.advance(10)
            wait_until(lambda: clock.waiters() == 1)
        assert waiting.running
        q.enqueue(b"x")
        assert payloads(waiting.result()) == [b"x"]

    @requires("delay")
    def test_a_poll_wakes_when_an_upsert_makes_a_message_ready(self, q: Queue, clock: ManualClock) -> None:
        q.enqueue(b"old", delay_s=1000, id=GIVEN)
        waiting = poll(q, clock)
        q.upsert([NewMessage(b"new", id=GIVEN)])
        assert payloads(waiting.result()) == [b"new"]

    def test_a_poll_wakes_when_messages_are_moved_in(
        self, ps: Penstock, q: Queue, clock: ManualClock
    ) -> None:
        other = ps.create_queue("other")
        message_id = other.enqueue(b"x")
        waiting = poll(q, clock)
        other.move([message_id], target="q")
        assert payloads(waiting.result()) == [b"x"]

    def test_a_poll_of_a_dead_letter_queue_wakes_when_a_message_dies(
        self, ps: Penstock, q: Queue, clock: ManualClock
    ) -> None:
        source = ps.create_queue("source", dead_letter="q")
        source.enqueue(b"x")
        held = take_one(source)
        waiting = poll(q, clock)
        source.reject([held.receipt])
        assert payloads(waiting.result()) == [b"x"]

    def test_a_poll_wakes_when_dead_messages_are_redriven(self, q: Queue, clock: ManualClock) -> None:
        q.enqueue(b"x")
        q.reject(receipts(take(q)))
        waiting = poll(q, clock)
        assert q.redrive() == 1
        assert payloads(waiting.result()) == [b"x"]

    def test_each_of_several_polls_gets_a_message_of_a_batch(self, q: Queue, clock: ManualClock) -> None:
        q.enqueue(b"held")
        take_one(q, lease_s=1)  # Falls due before anything else: no later lease wakes the polls for its own.
        waiting = [poll(q, clock) for _ in range(3)]
        q.enqueue_many([NewMessage(b"%d" % n) for n in range(3)])
        assert sorted(payloads(poll.result()[0] for poll in waiting)) == [b"0", b"1", b"2"]

    def test_each_of_several_polls_gets_a_message_of_those_that_come_one_by_one(
        self, q: Queue, clock: ManualClock
    ) -> None:
        waiting = [poll(q, clock) for _ in range(3)]
        for n in range(3):
            q.enqueue(b"%d" % n)
        assert sorted(payloads(poll.result()[0] for poll in waiting)) == [b"0", b"1", b"2"]

    @requires("delay")
    def test_each_of_several_polls_gets_a_message_of_those_that_fall_due_together(
        self, q: Queue, clock: ManualClock
    ) -> None:
        q.enqueue_many([NewMessage(b"%d" % n, delay_s=5) for n in range(3)])
        waiting = [poll(q, clock) for _ in range(3)]
        clock.advance(5)
        assert sorted(payloads(poll.result()[0] for poll in waiting)) == [b"0", b"1", b"2"]

    def test_a_poll_of_a_queue_that_is_deleted_says_so(
        self, ps: Penstock, q: Queue, clock: ManualClock
    ) -> None:
        waiting = poll(q, clock)
        ps.delete_queue("q")
        with pytest.raises(QueueNotFound):
            waiting.result()

    def test_a_poll_ends_when_the_store_is_closed(self, second_store: OpenStore) -> None:
        clock = ManualClock()
        ps = second_store(clock, random.Random(1))
        waiting = poll(ps.create_queue("q"), clock)
        ps.close()
        with pytest.raises(PenstockError):
            waiting.result()

    @requires("fifo")
    @pytest.mark.parametrize(
        "freed",
        [
            lambda q, receipt: q.ack([receipt]),
            lambda q, receipt: q.reject([receipt]),
            lambda q, receipt: q.purge("leased"),
        ],
        ids=["acked", "rejected", "purged"],
    )
    def test_a_poll_of_a_fifo_queue_wakes_when_the_message_before_is_out_of_the_way(
        self, ps: Penstock, clock: ManualClock, freed: Callable[[Queue, str], object]
    ) -> None:
        q = ps.create_queue("line", fifo=True)
        q.enqueue_many([NewMessage(b"1"), NewMessage(b"2")])
        held = take_one(q)
        waiting = poll(q, clock)
        freed(q, held.receipt)
        assert payloads(waiting.result()) == [b"2"]

    @requires("fifo", "time_to_live")
    def test_a_poll_of_a_fifo_queue_wakes_when_the_message_before_is_not_retried_past_its_ttl(
        self, ps: Penstock, clock: ManualClock
    ) -> None:
        q = ps.create_queue("line", fifo=True)
        q.enqueue_many([NewMessage(b"1", ttl_s=5), NewMessage(b"2")])
        held = take_one(q, lease_s=1000)
        clock.advance(6)
        waiting = poll(q, clock)
        q.nack([held.receipt], delay_s=0)
        assert payloads(waiting.result()) == [b"2"]

    @requires("fifo")
    def test_a_poll_of_a_fifo_queue_wakes_when_the_message_before_is_moved_away(
        self, ps: Penstock, clock: ManualClock
    ) -> None:
        ps.create_queue("other")
        q = ps.create_queue("line", fifo=True)
        q.enqueue_many([NewMessage(b"1"), NewMessage(b"2")])
        held = take_one(q)
        q.nack([held.receipt], delay_s=1000)
        waiting = poll(q, clock)
        q.move([held.id], target="other")
        assert payloads(waiting.result()) == [b"2"]
