"""Leases: every delivery has its own, and a receipt counts as long as nobody else has the message."""

from __future__ import annotations

import pytest

from penstock import ManualClock, MessageNotFound, NewMessage, Penstock, Queue, StaleReceipt
from penstock.clock import to_ns
from penstock.testing.folding import kinds_of
from penstock.testing.harness import (
    BackendCase,
    ack,
    errors,
    ids,
    payloads,
    receipts,
    requires,
    sweep_all,
    take,
    take_one,
)

GIVEN = "0191f2a0-0000-7000-8000-00000000abcd"


class LeaseSuite(BackendCase):
    """`lease`, `ack` and `extend`."""

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

    def test_an_ack_after_the_lease_ran_out_counts_while_nobody_has_taken_the_message(
        self, q: Queue, clock: ManualClock
    ) -> None:
        q.enqueue(b"")
        delivery = take_one(q, lease_s=1)
        clock.advance(1000)
        ack(q, [delivery])
        assert (q.length(), q.lease()) == (0, [])

    def test_a_receipt_is_stale_once_its_lease_was_released(
        self, ps: Penstock, q: Queue, clock: ManualClock
    ) -> None:
        q.enqueue(b"x")
        delivery = take_one(q, lease_s=1)
        clock.advance(1)
        sweep_all(ps)
        assert stale_everywhere(q, delivery.receipt)
        assert take_one(q).attempts == 2

    def test_a_receipt_is_stale_once_the_message_was_taken_again(self, q: Queue, clock: ManualClock) -> None:
        q.enqueue(b"x")
        old = take_one(q, lease_s=1)
        clock.advance(1)
        new = take_one(q, lease_s=60)
        before = q.get(new.id)
        assert stale_everywhere(q, old.receipt)
        assert q.get(new.id) == before
        ack(q, [new])

    def test_a_receipt_is_stale_once_it_was_used(self, q: Queue) -> None:
        q.enqueue_many([NewMessage()] * 3)
        acked, nacked, rejected = take(q, 3)
        ack(q, [acked])
        q.nack([nacked.receipt], delay_s=60)
        q.reject([rejected.receipt])
        for delivery in (acked, nacked, rejected):
            assert stale_everywhere(q, delivery.receipt)
        stats = q.stats()
        assert (stats.delayed, stats.dead, stats.leased, stats.acked_total) == (1, 1, 0, 1)

    def test_a_receipt_twice_in_one_batch_counts_once(self, q: Queue) -> None:
        q.enqueue_many([NewMessage()] * 2)
        first, second = receipts(take(q, 2))
        outcomes = q.ack([first, second, first])
        assert errors(outcomes) == [None, None, "StaleReceipt"]
        assert q.stats().acked_total == 2

    def test_what_was_never_a_receipt_is_stale_and_its_neighbours_go_well(self, q: Queue) -> None:
        q.enqueue(b"")
        (good,) = receipts(take(q))
        batch = ["", "nonsense", good[:-1], good + "0", "0" * len(good), GIVEN, good]
        assert errors(q.ack(batch)) == ["StaleReceipt"] * 6 + [None]

    def test_a_receipt_of_one_queue_is_stale_in_another(self, ps: Penstock, q: Queue) -> None:
        other = ps.create_queue("other")
        q.enqueue(b"", id=GIVEN)
        other.enqueue(b"", id=GIVEN)
        here, there = take_one(q), take_one(other)
        assert errors(other.ack([here.receipt])) == ["StaleReceipt"]
        ack(other, [there])
        ack(q, [here])

    def test_a_receipt_does_not_outlive_its_queue(self, ps: Penstock, q: Queue) -> None:
        q.enqueue(b"", id=GIVEN)
        old = take_one(q)
        ps.delete_queue("q")
        q = ps.create_queue("q")
        q.enqueue(b"", id=GIVEN)
        new = take_one(q)
        assert errors(q.ack([old.receipt])) == ["StaleReceipt"]
        ack(q, [new])

    def test_a_stale_receipt_says_what_to_do(self, q: Queue) -> None:
        (outcome,) = q.ack(["0" * 56])
        assert isinstance(outcome.error, StaleReceipt)
        assert "lease again" in str(outcome.error)

    def test_extend_counts_from_now(self, q: Queue, clock: ManualClock) -> None:
        q.enqueue(b"")
        delivery = take_one(q, lease_s=30)
        clock.advance(20)
        assert errors(q.extend([delivery.receipt], lease_s=15)) == [None]
        assert q.get(delivery.id).lease_expires_at_ns == clock.now_ns() + to_ns(15)
        clock.advance(14.999)
        assert q.lease() == []
        clock.advance(0.001)
        assert take_one(q).attempts == 2

    def test_extend_can_shorten_a_lease(self, q: Queue, clock: ManualClock) -> None:
        q.enqueue(b"")
        q.extend([take_one(q, lease_s=1000).receipt], lease_s=1)
        clock.advance(1)
        assert take_one(q).attempts == 2

    def test_a_receipt_is_good_after_it_was_extended(self, q: Queue, clock: ManualClock) -> None:
        q.enqueue(b"")
        delivery = take_one(q, lease_s=5)
        for _ in range(5):
            clock.advance(4)
            assert errors(q.extend([delivery.receipt], lease_s=5)) == [None]
        ack(q, [delivery])

    def test_one_clients_extend_does_not_hold_anothers_messages(self, q: Queue, clock: ManualClock) -> None:
        q.enqueue_many([NewMessage(b"a"), NewMessage(b"b"), NewMessage(b"c")])
        mine = take(q, 2, lease_s=10, consumer="mine")
        take(q, 1, lease_s=10, consumer="yours")
        q.extend([mine[0].receipt], lease_s=100)
        clock.advance(10)
        assert payloads(q.lease(10)) == [b"b", b"c"]

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


def stale_everywhere(q: Queue, receipt: str) -> bool:
    """Every call that takes a receipt refuses this one, and changes nothing."""
    before = q.stats()
    outcomes = [
        *q.ack([receipt]),
        *q.nack([receipt], delay_s=0),
        *q.reject([receipt]),
        *q.extend([receipt], lease_s=60),
    ]
    return errors(outcomes) == ["StaleReceipt"] * 4 and q.stats() == before
