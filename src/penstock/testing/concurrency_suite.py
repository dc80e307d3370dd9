"""Limits of leases: at most so many of a queue, and of each fairness key, at the same time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from penstock import InvalidConfig, ManualClock, NewMessage, Penstock, Queue, Unsupported
from penstock.testing.harness import BackendCase, Subject, ack, payloads, receipts, requires, take, take_one
from penstock.testing.waiting_suite import poll

#: How a leased message makes room for another.
FREED: dict[str, Callable[[Queue, list[str]], object]] = {
    "acked": lambda q, held: q.ack(held),
    "nacked": lambda q, held: q.nack(held, delay_s=0),
    "rejected": lambda q, held: q.reject(held),
    "purged": lambda q, held: q.purge("leased"),
}


def limited(ps: Penstock, **settings: Any) -> Queue:
    """A queue with a limit; a backend that has none skips the test: it must refuse, as another one shows."""
    try:
        return ps.create_queue("limited", **settings)
    except (InvalidConfig, Unsupported) as refusal:
        pytest.skip(f"this backend has no limits of leases: {refusal}")


class ConcurrencySuite(BackendCase):
    """`max_leased` and `max_leased_per_key`."""

    def test_a_queue_never_has_more_leased_than_it_may(self, ps: Penstock) -> None:
        q = limited(ps, max_leased=3)
        q.enqueue_many([NewMessage(b"%d" % n) for n in range(10)])
        held = take(q, 2)
        held += q.lease(10)
        assert len(held) == 3
        assert q.lease(10) == []
        ack(q, held[:2])
        assert payloads(q.lease(10)) == [b"3", b"4"]
        assert q.lease(10) == []

    @requires("fairness")
    def test_a_key_never_has_more_leased_than_it_may_and_holds_up_no_other(self, ps: Penstock) -> None:
        q = limited(ps, max_leased_per_key=2)
        q.enqueue_many([NewMessage(fairness_key="abc"[n % 3]) for n in range(30)])
        held = q.lease(30)
        assert Counter(one.fairness_key for one in held) == {"a": 2, "b": 2, "c": 2}
        assert q.lease(30) == []
        ack(q, [one for one in held if one.fairness_key == "b"])
        assert Counter(one.fairness_key for one in q.lease(30)) == {"b": 2}

    @requires("fairness", "prioritization")
    def test_a_keys_limit_is_for_all_its_priorities_together(self, ps: Penstock) -> None:
        q = limited(ps, max_leased_per_key=3)
        q.enqueue_many([NewMessage(fairness_key="k", priority=n) for n in (1, 4, 4, 8)])
        held = q.lease(9)
        assert [one.priority for one in held] == [8, 4, 4]
        assert q.lease(9) == []
        ack(q, held[:1])
        assert [one.priority for one in q.lease(9)] == [1]

    @requires("fairness")
    def test_both_limits_hold(self, ps: Penstock) -> None:
        q = limited(ps, max_leased=5, max_leased_per_key=2)
        q.enqueue_many([NewMessage(fairness_key="abcd"[n % 4]) for n in range(40)])
        held = q.lease(40)
        assert len(held) == 5
        assert max(Counter(one.fairness_key for one in held).values()) == 2

    @requires("fairness")
    @pytest.mark.parametrize("how", FREED)
    @pytest.mark.parametrize("setting", ["max_leased", "max_leased_per_key"])
    def test_what_ends_a_lease_makes_room(self, ps: Penstock, setting: str, how: str) -> None:
        q = limited(ps, **{setting: 2})
        q.enqueue_many([NewMessage(fairness_key="k")] * 6)
        held = take(q, 2)
        assert q.lease(6) == []
        FREED[how](q, receipts(held))
        assert len(q.lease(6)) == 2
        assert q.lease(6) == []

    @requires("fairness")
    @pytest.mark.parametrize("setting", ["max_leased", "max_leased_per_key"])
    def test_a_lease_that_runs_out_makes_room(self, ps: Penstock, clock: ManualClock, setting: str) -> None:
        q = limited(ps, **{setting: 2})
        q.enqueue_many([NewMessage(fairness_key="k")] * 6)
        take(q, 2, lease_s=5)
        clock.advance(5)
        assert len(q.lease(6)) == 2
        assert q.lease(6) == []

    @requires("fairness", "delay")
    def test_a_message_that_waits_for_its_retry_is_not_counted(self, ps: Penstock) -> None:
        q = limited(ps, max_leased=1, max_leased_per_key=1)
        q.enqueue_many([NewMessage(fairness_key="k")] * 2)
        held = take_one(q)
        q.nack([held.receipt], delay_s=1000)
        take_one(q)

    @requires("fairness", "time_to_live")
    def test_what_turns_out_expired_is_not_counted(self, ps: Penstock, clock: ManualClock) -> None:
        q = limited(ps, max_leased=2, max_leased_per_key=2)
        q.enqueue_many([NewMessage(b"old", fairness_key="k", ttl_s=5)] * 10)
        q.enqueue_many([NewMessage(b"new", fairness_key="k")] * 5)
        clock.advance(5)
        assert payloads(q.lease(9)) == [b"new"] * 2

    @requires("fairness")
    @pytest.mark.parametrize("how", FREED)
    @pytest.mark.parametrize("setting", ["max_leased", "max_leased_per_key"])
    def test_a_poll_wakes_when_there_is_room(
        self, ps: Penstock, clock: ManualClock, setting: str, how: str
    ) -> None:
        q = limited(ps, **{setting: 1})
        q.enqueue_many([NewMessage(b"%d" % n, fairness_key="k") for n in range(3)])
        held = take_one(q, lease_s=1000)
        waiting = poll(q, clock)
        FREED[how](q, [held.receipt])
        assert payloads(waiting.result()) == [b"1"]

    @requires("fairness")
    @pytest.mark.parametrize("setting", ["max_leased", "max_leased_per_key"])
    def test_a_poll_wakes_when_a_limit_is_raised(
        self, ps: Penstock, clock: ManualClock, setting: str
    ) -> None:
        q = limited(ps, **{setting: 1})
        q.enqueue_many([NewMessage(fairness_key="k")] * 5)
        take_one(q, lease_s=1000)
        waiting = poll(q, clock, max_messages=5)
        more: dict[str, Any] = {setting: 3}
        ps.update_queue("limited", **more)
        assert len(waiting.result()) == 2

    @requires("fairness")
    @pytest.mark.parametrize("setting", ["max_leased", "max_leased_per_key"])
    def test_a_limit_counts_what_was_leased_before_it_was_set(self, ps: Penstock, setting: str) -> None:
        q = limited(ps, **{setting: 5})
        none: dict[str, Any] = {setting: None}
        lower: dict[str, Any] = {setting: 2}
        ps.update_queue("limited", **none)
        q.enqueue_many([NewMessage(fairness_key="k")] * 9)
        held = take(q, 4)
        ps.update_queue("limited", **lower)
        assert q.lease(9) == []
        ack(q, held[:2])
        assert q.lease(9) == []
        ack(q, held[2:3])
        assert len(q.lease(9)) == 1

    @requires("fairness", "persistence")
    def test_leases_count_after_reopening(self, subject: Subject) -> None:
        q = limited(subject.ps, max_leased=3, max_leased_per_key=2)
        q.enqueue_many([NewMessage(fairness_key="ab"[n % 2]) for n in range(20)])
        held = take(q, 3)
        q = subject.reopen().queue("limited")
        assert q.lease(9) == []
        full = next(one for one in held if sum(o.fairness_key == one.fairness_key for o in held) == 2)
        ack(q, [one for one in held if one.fairness_key != full.fairness_key])
        (got,) = q.lease(9)
        assert got.fairness_key != full.fairness_key

    @requires("fairness", "throttling")
    def test_a_key_with_enough_leased_keeps_no_token_from_others(
        self, ps: Penstock, clock: ManualClock
    ) -> None:
        ps.throttles.set("api", 1, 1)
        q = limited(ps, max_leased_per_key=1)
        q.enqueue_many([NewMessage(fairness_key="a", throttle_keys=["api"])] * 3)
        assert take_one(q).fairness_key == "a"
        q.enqueue_many([NewMessage(fairness_key="b", throttle_keys=["api"])] * 3)
        assert q.lease(9) == []
        clock.advance(1)
        assert [one.fairness_key for one in q.lease(9)] == ["b"]
        clock.advance(10)
        assert q.lease(9) == []

    @requires("fairness")
    def test_keys_under_a_limit_still_share_by_weight(self, ps: Penstock) -> None:
        q = limited(ps, max_leased_per_key=2)
        for key, weight in (("one", 1), ("two", 2)):
            q.enqueue_many([NewMessage(fairness_key=key, weight=weight)] * 400)
        shares: Counter[str] = Counter()
        while sum(shares.values()) < 300:
            held = take(q, 1)
            shares.update(one.fairness_key for one in held)
            ack(q, held)
        assert abs(shares["two"] - 200) <= 6, shares

    @requires("fairness")
    def test_a_key_that_is_full_in_the_middle_of_its_turn_has_the_rest_of_it_when_there_is_room(
        self, ps: Penstock
    ) -> None:
        q = limited(ps, max_leased_per_key=5)
        q.enqueue_many([NewMessage(fairness_key="ten", weight=10)] * 500)
        for n in range(10):
            q.enqueue_many([NewMessage(fairness_key=f"{n}")] * 100)
        held = take(q, 8)
        served: Counter[str] = Counter()
        for _ in range(690):  # Eight consumers.
            ack(q, [held.pop(0)])
            held += take(q, 1)
            served[held[-1].fairness_key] += 1
        # Ten of its own, ten of the others in their turns, and a few that these get while it is full. Of a
        # turn that ended whenever it is full, it would have five.
        assert served["ten"] >= 10 / 27 * 690, served

    @requires("fifo")
    def test_a_limit_holds_in_a_fifo_queue(self, ps: Penstock) -> None:
        q = limited(ps, max_leased=2, max_leased_per_key=5, fifo=True)
        q.enqueue_many([NewMessage(b"x"), NewMessage(b"y")])
        held = take_one(q)
        assert q.lease(9) == []
        ack(q, [held])
        take_one(q)
