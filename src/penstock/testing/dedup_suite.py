"""Dedup ids: inside the window, a repeated one stores nothing and answers with the first."""

from __future__ import annotations

from typing import Any, cast

from penstock import ManualClock, NewMessage, Penstock, Queue
from penstock.testing.harness import BackendCase, ack, drain, errors, ids, requires, sweep_all, take_one


class DedupSuite(BackendCase):
    """`dedup_id` and `dedup_window_s`."""

    @requires("idempotent_enqueue")
    def test_a_repeated_dedup_id_answers_with_the_first_id_and_stores_nothing(self, q: Queue) -> None:
        first = q.enqueue(b"1", dedup_id="order-7")
        before = q.stats()
        (result,) = q.enqueue_many([NewMessage(b"2", dedup_id="order-7")])
        assert (result.ok, result.id, result.duplicate) == (True, first, True)
        assert q.stats() == before
        assert drain(q) == [b"1"]

    @requires("idempotent_enqueue")
    def test_a_dedup_id_repeated_inside_one_batch_is_found_too(self, q: Queue) -> None:
        batch = [
            NewMessage(b"1", dedup_id="a"),
            NewMessage(b"2", dedup_id="b"),
            NewMessage(b"3", dedup_id="a"),
        ]
        results = q.enqueue_many(batch)
        assert [result.duplicate for result in results] == [False, False, True]
        assert results[2].id == results[0].id
        assert drain(q) == [b"1", b"2"]

    @requires("idempotent_enqueue")
    def test_a_dedup_id_holds_after_its_message_is_acked(self, q: Queue) -> None:
        first = q.enqueue(b"1", dedup_id="a")
        ack(q, [take_one(q)])
        assert q.enqueue(b"2", dedup_id="a") == first
        assert q.length() == 0

    @requires("idempotent_enqueue")
    def test_a_dedup_id_is_free_when_its_window_has_passed(self, q: Queue, clock: ManualClock) -> None:
        first = q.enqueue(b"1", dedup_id="a")
        clock.advance(299.999)
        assert q.enqueue(b"2", dedup_id="a") == first
        clock.advance(0.002)
        second = q.enqueue(b"3", dedup_id="a")
        assert second != first
        assert q.enqueue(b"4", dedup_id="a") == second
        assert drain(q) == [b"1", b"3"]

    @requires("idempotent_enqueue")
    def test_repeating_a_dedup_id_does_not_lengthen_its_window(self, q: Queue, clock: ManualClock) -> None:
        first = q.enqueue(b"1", dedup_id="a")
        for _ in range(3):
            clock.advance(99)
            assert q.enqueue(b"again", dedup_id="a") == first
        clock.advance(4)
        assert q.enqueue(b"2", dedup_id="a") != first

    @requires("idempotent_enqueue")
    def test_a_queue_has_the_window_that_it_was_given(self, ps: Penstock, clock: ManualClock) -> None:
        q = ps.create_queue("short", dedup_window_s=1.5)
        first = q.enqueue(b"1", dedup_id="a")
        clock.advance(1.4)
        assert q.enqueue(b"2", dedup_id="a") == first
        clock.advance(0.2)
        assert q.enqueue(b"3", dedup_id="a") != first

    @requires("idempotent_enqueue")
    def test_a_window_of_zero_finds_nothing_repeated(self, ps: Penstock) -> None:
        q = ps.create_queue("none", dedup_window_s=0)
        q.enqueue_many([NewMessage(b"1", dedup_id="a"), NewMessage(b"2", dedup_id="a")])
        q.enqueue(b"3", dedup_id="a")
        assert drain(q) == [b"1", b"2", b"3"]

    @requires("idempotent_enqueue")
    def test_an_updated_window_counts_for_what_comes_after(
        self, ps: Penstock, q: Queue, clock: ManualClock
    ) -> None:
        ps.update_queue("q", dedup_window_s=10)
        first = q.enqueue(b"1", dedup_id="a")
        clock.advance(11)
        assert q.enqueue(b"2", dedup_id="a") != first

    @requires("idempotent_enqueue")
    def test_each_queue_has_dedup_ids_of_its_own(self, ps: Penstock, q: Queue) -> None:
        other = ps.create_queue("other")
        assert q.enqueue(b"1", dedup_id="a") != other.enqueue(b"2", dedup_id="a")
        assert (q.length(), other.length()) == (1, 1)

    @requires("idempotent_enqueue")
    def test_an_item_that_was_refused_does_not_take_its_dedup_id(self, q: Queue) -> None:
        results = q.enqueue_many(
            [NewMessage(cast(Any, "text"), dedup_id="a"), NewMessage(b"1", dedup_id="a"), NewMessage(b"2")]
        )
        assert errors(results) == ["InvalidMessage", None, None]
        assert not results[1].duplicate
        assert drain(q) == [b"1", b"2"]

    @requires("idempotent_enqueue")
    def test_a_message_shows_its_dedup_id(self, q: Queue) -> None:
        first, second = ids(q.enqueue_many([NewMessage(dedup_id="a"), NewMessage()]))
        assert (q.get(first).dedup_id, q.get(second).dedup_id) == ("a", None)
        assert [delivery.dedup_id for delivery in q.lease(2)] == ["a", None]

    @requires("idempotent_enqueue")
    def test_windows_that_have_passed_leave_nothing_behind(
        self, ps: Penstock, q: Queue, clock: ManualClock
    ) -> None:
        q.enqueue_many([NewMessage(dedup_id=f"id-{n}") for n in range(700)])
        drain(q)
        assert {item.what for item in ps.due(limit=1000)} == {"dedup"}
        clock.advance(301)
        sweep_all(ps)
        assert ps.due() == []

    @requires("idempotent_enqueue")
    def test_a_repeated_dedup_id_wins_over_a_given_id(self, q: Queue) -> None:
        one, other = (f"0191f2a0-0000-7000-8000-00000000000{n}" for n in (1, 2))
        assert q.enqueue(b"1", dedup_id="a", id=one) == one
        assert q.enqueue(b"2", dedup_id="a", id=other) == one
        assert q.enqueue(b"3", dedup_id="b", id=one) == one
        assert drain(q) == [b"1"]

    @requires("idempotent_enqueue", "delay")
    def test_a_duplicate_of_a_delayed_message_is_found(self, q: Queue) -> None:
        first = q.enqueue(b"1", dedup_id="a", delay_s=30)
        assert q.enqueue(b"2", dedup_id="a") == first
        assert (q.length(), q.lease()) == (1, [])
