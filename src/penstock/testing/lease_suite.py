"""Leases: every delivery has its own, and a receipt counts as long as nobody else has the message."""

from __future__ import annotations

import pytest

from penstock import ManualClock, MessageNotFound, NewMessage, Penstock, Queue
from penstock.clock import to_ns
from penstock.testing.folding import kinds_of
from penstock.testing.harness import (
    BackendCase,
    ack,
    ids,
    payloads,
    receipts,
    requires,
    take,
    take_one,
)

GIVEN = "0191f2a0-0000-7000-8000-00000000abcd"


class LeaseSuite(BackendCase):
    """`lease` and `ack`."""

    def test_the_first_delivery_is_attempt_one_and_each_further_one_counts_on(self, q: Queue) -> None:
        q.enqueue(b"")
        for attempt in (1, 2, 3):
            delivery = take_one(q)
            assert (delivery.attempts, q.get(delivery.id).attempts) == (attempt, attempt)
            q.nack([delivery.receipt], delay_s=0)

    def test_every_delivery_has_a_receipt_of_its_own(self, q: Queue) -> None:
        q.enqueue_many([NewMessage()] * 5)
        first = take(q, 5)
        q.nack(receipts(first), delay_s=0)
        second = take(q, 5)
        assert len(set(receipts(first) + receipts(second))) == 10

    def test_a_lease_hands_out_no_more_than_asked_for_and_no_more_than_there_is(self, q: Queue) -> None:
        q.enqueue_many([NewMessage(b"%d" % n) for n in range(5)])
        assert payloads(q.lease(3)) == [b"0", b"1", b"2"]
        assert payloads(q.lease(100)) == [b"3", b"4"]
        assert q.lease(100) == []
        assert q.lease(0) == []

    def test_a_message_that_is_held_is_handed_to_nobody_else(self, q: Queue, clock: ManualClock) -> None:
        q.enqueue_many([NewMessage()] * 10)
        held = {take_one(q, consumer=f"c{n}").id for n in range(10)}
        assert len(held) == 10
        clock.advance(29.999)
        assert q.lease(10) == []

    def test_an_expired_lease_returns_the_message_once(self, q: Queue, clock: ManualClock) -> None:
        message_id = q.enqueue(b"x")
        take_one(q, lease_s=10)
        clock.advance(10)
        again = q.lease(10)
        assert [(delivery.id, delivery.attempts) for delivery in again] == [(message_id, 2)]
        assert q.lease(10) == []
        assert q.length() == 1

    def test_leases_run_out_one_by_one(self, q: Queue, clock: ManualClock) -> None:
        q.enqueue_many([NewMessage(b"%d" % n) for n in range(3)])
        for lease_s in (30, 10, 20):
            take_one(q, lease_s=lease_s)
        returned = []
        for _ in range(3):
            clock.advance(10)
            returned.append(payloads(q.lease(10, lease_s=1000)))
        assert returned == [[b"1"], [b"2"], [b"0"]]

    @requires("journal")
    def test_the_return_of_a_message_whose_lease_ran_out_is_recorded(
        self, q: Queue, clock: ManualClock
    ) -> None:
        message_id = q.enqueue(b"")
        take_one(q)
        clock.advance(30)
        ack(q, [take_one(q)])
        assert kinds_of(q, message_id) == ["enqueued", "leased", "released", "leased", "acked"]

    def test_without_a_time_of_its_own_a_lease_has_the_queues(self, ps: Penstock, clock: ManualClock) -> None:
        q = ps.create_queue("quick", lease_s=2.5)
        q.enqueue_many([NewMessage()] * 2)
        queues_own, callers = take_one(q), take_one(q, lease_s=7)
        assert queues_own.lease_expires_at_ns == clock.now_ns() + to_ns(2.5)
        assert callers.lease_expires_at_ns == clock.now_ns() + to_ns(7)

    def test_a_leased_message_shows_who_has_it_since_when_and_until_when(
        self, q: Queue, clock: ManualClock
    ) -> None:
        message_id = q.enqueue(b"")
        clock.advance(1)
        take_one(q, lease_s=5, consumer="wörker/1")
        m, now_ns = q.get(message_id), clock.now_ns()
        assert (m.state, m.consumer) == ("leased", "wörker/1")
        assert (m.leased_at_ns, m.lease_expires_at_ns) == (now_ns, now_ns + to_ns(5))
        clock.advance(5)
        q.nack([take_one(q).receipt], delay_s=0)
        m = q.get(message_id)
        assert (m.consumer, m.leased_at_ns, m.lease_expires_at_ns) == (None, None, None)

    def test_leasing_does_not_change_when_a_message_became_visible(
        self, q: Queue, clock: ManualClock
    ) -> None:
        found = ids(q.enqueue_many([NewMessage()] * 3))
        visible = [q.get(one).visible_at_ns for one in found]
        assert visible == [clock.now_ns()] * 3
        clock.advance(1)
        take(q, 3)
        assert [q.get(one).visible_at_ns for one in found] == visible

    def test_an_ack_ends_the_message_and_its_lease(self, ps: Penstock, q: Queue) -> None:
        message_id = q.enqueue(b"")
        ack(q, [take_one(q)])
        with pytest.raises(MessageNotFound, match=message_id):
            q.get(message_id)
        assert (q.length(), ps.due()) == (0, [])

    def test_a_lease_of_a_millisecond_is_kept(self, q: Queue, clock: ManualClock) -> None:
        q.enqueue(b"")
        take_one(q, lease_s=0.001)
        clock.advance(0.0009)
        assert q.lease() == []
        clock.advance(0.0001)
        assert take_one(q).attempts == 2

    def test_a_lease_of_an_empty_queue_is_empty_and_changes_nothing(self, q: Queue) -> None:
        before = q.stats()
        assert q.lease(10) == []
        assert q.stats() == before

    def test_a_large_batch_is_leased_and_acked_in_order(self, q: Queue) -> None:
        expected = [b"%d" % n for n in range(1500)]
        q.enqueue_many([NewMessage(payload) for payload in expected])
        deliveries = take(q, 1500)
        assert payloads(deliveries) == expected
        ack(q, deliveries)
        assert q.length() == 0

    def test_many_leases_that_run_out_together_all_come_back(self, q: Queue, clock: ManualClock) -> None:
        expected = set(ids(q.enqueue_many([NewMessage()] * 1300)))
        take(q, 1300, lease_s=1)
        clock.advance(1)
        assert {delivery.id for delivery in take(q, 1300)} == expected
