"""Numbers by fairness key: what waits of each, how long, what was served, and what holds it up."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import InvalidMessage, ManualClock, NewMessage, Penstock, Queue, QueueNotFound
from penstock.backends.base import KeyStats
from penstock.testing.harness import BackendCase, Subject, ack, receipts, requires, take


def by_key(q: Queue, limit: int = 100) -> dict[str, KeyStats]:
    return {one.key: one for one in q.key_stats(limit)}


def depths(q: Queue) -> dict[str, int]:
    return {key: one.ready for key, one in by_key(q).items() if one.ready}


class KeySuite(BackendCase):
    """`key_stats`."""

    def test_a_queue_without_anything_has_no_keys(self, ps: Penstock, q: Queue) -> None:
        assert list(q.key_stats()) == []
        ps.delete_queue("q")
        with pytest.raises(QueueNotFound):
            q.key_stats()

    @pytest.mark.parametrize("limit", [-1, 1.5, None, "9"])
    def test_a_limit_that_cannot_be_is_refused(self, q: Queue, limit: Any) -> None:
        with pytest.raises(InvalidMessage):
            q.key_stats(limit)

    @requires("fairness")
    def test_keys_with_most_waiting_come_first(self, q: Queue, clock: ManualClock) -> None:
        q.enqueue_many([NewMessage(fairness_key="few", weight=7)] * 2)
        clock.advance(3)
        q.enqueue_many([NewMessage(fairness_key="many")] * 50)
        q.enqueue_many([NewMessage()] * 5)
        clock.advance(4)
        found = q.key_stats()
        assert [(one.key, one.ready, one.weight) for one in found] == [
            ("many", 50, 1),
            ("", 5, 1),
            ("few", 2, 7),
        ]
        ages = [one.oldest_ready_age_s for one in found]
        assert ages == [pytest.approx(4, abs=0.001), pytest.approx(4, abs=0.001), pytest.approx(7, abs=0.001)]
        assert [one.key for one in q.key_stats(limit=2)] == ["many", ""]
        assert list(q.key_stats(limit=0)) == []

    @requires("fairness")
    def test_shares_are_of_what_was_delivered(self, q: Queue) -> None:
        q.enqueue_many([NewMessage(fairness_key="a", weight=3)] * 40)
        q.enqueue_many([NewMessage(fairness_key="b")] * 40)
        ack(q, take(q, 40))
        found = by_key(q)
        assert {key: (one.served, one.share) for key, one in found.items()} == {
            "a": (30, 0.75),
            "b": (10, 0.25),
        }
        assert depths(q) == {"a": 10, "b": 30}

    @requires("fairness", "prioritization")
    def test_a_key_is_one_whatever_its_priorities(self, q: Queue) -> None:
        q.enqueue_many([NewMessage(fairness_key="k", priority=n) for n in range(10)])
        assert depths(q) == {"k": 10}
        take(q, 3)
        assert (depths(q), by_key(q)["k"].served) == ({"k": 7}, 3)

    @requires("fairness", "delay")
    def test_only_what_is_ready_counts(self, q: Queue, clock: ManualClock) -> None:
        q.enqueue_many([NewMessage(fairness_key="k")] * 3 + [NewMessage(fairness_key="k", delay_s=5)] * 2)
        held = take(q, 1)
        assert depths(q) == {"k": 2}
        q.nack(receipts(held), delay_s=0)
        clock.advance(5)
        assert depths(q) == {"k": 5}

    @requires("fairness")
    @pytest.mark.parametrize("count", [3, 3000])
    def test_what_is_taken_out_of_turn_is_not_counted(self, ps: Penstock, q: Queue, count: int) -> None:
        ps.create_queue("other")
        ids = [str(one.id) for one in q.enqueue_many([NewMessage(fairness_key="k")] * count)]
        take(q, 1)
        q.move(ids[1:3], target="other")
        assert depths(q) == ({"k": count - 3} if count > 3 else {})
        q.purge()
        assert depths(q) == {}

    @requires("fairness", "persistence")
    def test_what_waits_is_counted_after_reopening(self, subject: Subject, q: Queue) -> None:
        q.enqueue_many([NewMessage(fairness_key="many")] * 3000)
        q.enqueue_many([NewMessage(fairness_key=f"one {n}") for n in range(50)])
        take(q, 100)
        before = depths(q)
        q = subject.reopen().queue("q")
        assert depths(q) == before
        take(q, 200)
        q.enqueue_many([NewMessage(fairness_key="many")] * 7)
        assert sum(depths(q).values()) == q.stats().ready == 2757

    @requires("fairness", "throttling")
    def test_what_holds_a_key_up_is_shown(self, ps: Penstock, q: Queue, clock: ManualClock) -> None:
        ps.throttles.set("api", 0.1, 1)
        q.enqueue_many([NewMessage(fairness_key="k", throttle_keys=["api"])] * 5)
        q.enqueue_many([NewMessage(fairness_key="k")] * 2)
        take(q, 3)
        assert q.lease() == []
        clock.advance(4)
        held_up = by_key(q)["k"]
        assert (held_up.ready, held_up.throttled, held_up.throttled_by) == (4, 4, ["api"])
        assert held_up.token_in_s == pytest.approx(6)
        ps.throttles.delete("api")
        take(q, 1)
        free = by_key(q)["k"]
        assert (free.throttled, free.throttled_by, free.token_in_s) == (0, [], None)

    @requires("fairness")
    def test_where_keys_are_limited_what_is_leased_is_shown(self, ps: Penstock) -> None:
        q = ps.create_queue("limited", max_leased_per_key=2)
        q.enqueue_many([NewMessage(fairness_key="k")] * 5)
        held = take(q, 2)
        assert by_key(q)["k"].leased == 2
        ack(q, held[:1])
        assert by_key(q)["k"].leased == 1
