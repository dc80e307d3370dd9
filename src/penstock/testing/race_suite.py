"""Races: many threads want the same thing, and exactly one of them gets it."""

from __future__ import annotations

from collections import Counter
from functools import partial

from penstock import Entry, NewMessage, Penstock, Queue, QueueAlreadyExists
from penstock.testing.background import together
from penstock.testing.harness import BackendCase, ids, receipts, requires, take


class RaceSuite(BackendCase):
    """Concurrent calls that exclude each other."""

    def test_no_message_is_held_by_two_at_once(self, q: Queue) -> None:
        expected = set(ids(q.enqueue_many([NewMessage()] * 500)))

        def lease_some() -> list[str]:
            return [delivery.id for _ in range(25) for delivery in q.lease(5)]

        held = Counter(one for found in together(*[lease_some] * 4) for one in found)
        assert held.keys() == expected
        assert set(held.values()) == {1}

    @requires("idempotent_enqueue")
    def test_one_dedup_id_from_many_threads_stores_one_message(self, q: Queue) -> None:
        def enqueue_all() -> list[str]:
            return [q.enqueue(b"", dedup_id=f"d{n}") for n in range(40)]

        found = together(*[enqueue_all] * 4)
        assert all(one == found[0] for one in found)
        assert q.length() == 40

    def test_a_receipt_that_many_threads_ack_counts_once(self, q: Queue) -> None:
        q.enqueue_many([NewMessage()] * 60)
        held = receipts(take(q, 60))

        def ack_all() -> int:
            return sum(q.ack([receipt])[0].ok for receipt in held)

        assert sum(together(*[ack_all] * 4)) == 60
        assert q.stats().acked_total == 60

    @requires("delay")
    def test_an_ack_and_a_nack_at_the_same_time_leave_one_winner(self, q: Queue) -> None:
        for _ in range(30):
            q.enqueue(b"")
            (receipt,) = receipts(take(q))
            outcomes = together(partial(q.ack, [receipt]), partial(q.nack, [receipt], delay_s=1000))
            assert sum(outcome.ok for (outcome,) in outcomes) == 1
        assert q.stats().acked_total + q.stats().delayed == 30

    def test_a_queue_that_many_threads_create_is_created_once(self, ps: Penstock) -> None:
        def create() -> bool:
            try:
                ps.create_queue("new").enqueue(b"")
            except QueueAlreadyExists:
                return False
            return True

        assert sum(together(*[create] * 6)) == 1
        assert ps.queue("new").length() == 1

    @requires("journal")
    def test_appends_to_a_world_from_many_threads_have_numbers_of_their_own(self, ps: Penstock) -> None:
        world = ps.journal("w")
        world.configure(retention_s=1000, max_bytes=20_000)

        def append() -> list[str]:
            return [one for n in range(40) for one in world.append([Entry("k", b"%d" % n)] * 2)]

        def sweep() -> list[str]:
            for _ in range(40):
                ps.sweep()
            return []

        found = together(append, append, append, sweep)
        assert len({one for some in found for one in some}) == 240
        stats = world.stats()
        assert stats["last_seq"] == 240
        assert [entry.seq for entry in world.scan()] == list(range(stats["first_seq"], 241))
