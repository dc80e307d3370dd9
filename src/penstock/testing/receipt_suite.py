"""Receipts: good as long as nobody else has the message, stale and without effect ever after."""

from __future__ import annotations

from penstock import ManualClock, NewMessage, Penstock, Queue, StaleReceipt
from penstock.clock import to_ns
from penstock.testing.harness import BackendCase, ack, errors, payloads, receipts, sweep_all, take, take_one

GIVEN = "0191f2a0-0000-7000-8000-00000000abcd"


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


class ReceiptSuite(BackendCase):
    """What a receipt allows, and `extend`."""

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
        q.nack([nacked.receipt], delay_s=0)
        q.reject([rejected.receipt])
        for delivery in (acked, nacked, rejected):
            assert stale_everywhere(q, delivery.receipt)
        stats = q.stats()
        assert (stats.ready, stats.dead, stats.leased, stats.acked_total) == (1, 1, 0, 1)

    def test_a_receipt_twice_in_one_batch_counts_once(self, q: Queue) -> None:
        q.enqueue_many([NewMessage()] * 2)
        first, second = receipts(take(q, 2))
        outcomes = q.ack([first, second, first])
        assert errors(outcomes) == [None, None, "StaleReceipt"]
        assert q.stats().acked_total == 2

    def test_a_receipt_that_is_extended_twice_in_one_batch_is_extended(self, q: Queue) -> None:
        q.enqueue(b"")
        (receipt,) = receipts(take(q))
        assert errors(q.extend([receipt, "nonsense", receipt], lease_s=5)) == [None, "StaleReceipt", None]

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
