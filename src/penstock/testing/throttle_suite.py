"""Throttles: token buckets by key, shared by all queues, that hold up nothing but what they limit."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from penstock import ManualClock, NewMessage, Penstock, Queue
from penstock.testing.harness import (
    BackendCase,
    ack,
    errors,
    payloads,
    receipts,
    requires,
    take,
    take_one,
)
from penstock.testing.waiting_suite import poll


def throttled(count: int, *throttle_keys: str, **fields: Any) -> list[NewMessage]:
    return [NewMessage(b"%d" % n, throttle_keys=throttle_keys, **fields) for n in range(count)]


def tokens(ps: Penstock, key: str) -> float:
    found = ps.throttles.get(key)
    assert found is not None, f"{key} has no limit"
    return found.tokens


def delivered_over(q: Queue, clock: ManualClock, steps: int, step_s: float, batch: int = 100) -> int:
    """How many are handed out while time passes, each acked at once."""
    count = 0
    for _ in range(steps):
        clock.advance(step_s)
        while held := q.lease(batch):
            ack(q, held)
            count += len(held)
    return count


class ThrottleSuite(BackendCase):
    """`throttle_keys` and `ps.throttles`."""

    # -- rates ----------------------------------------------------------------------------------

    @requires("throttling")
    def test_keys_without_a_limit_hold_nothing_up(self, q: Queue) -> None:
        q.enqueue_many(throttled(50, "free", "free too"))
        assert payloads(take(q, 50)) == [b"%d" % n for n in range(50)]

    @requires("throttling")
    def test_a_burst_is_delivered_at_once_and_then_one_by_one(
        self, ps: Penstock, q: Queue, clock: ManualClock
    ) -> None:
        ps.throttles.set("api", rate_per_s=2, burst=3)
        q.enqueue_many(throttled(10, "api"))
        assert payloads(q.lease(10)) == [b"0", b"1", b"2"]
        assert q.lease(10) == []
        clock.advance(0.499)
        assert q.lease(10) == []
        clock.advance(0.001)
        assert payloads(q.lease(10)) == [b"3"]
        clock.advance(100)
        assert payloads(q.lease(10)) == [b"4", b"5", b"6"]

    @requires("throttling")
    @pytest.mark.parametrize("batch", [1, 100])
    @pytest.mark.parametrize(
        ("rate_per_s", "burst", "step_s"), [(3, 2, 0.1), (0.7, 5, 1.3), (1 / 3, 2, 1), (25, 50, 0.9)]
    )
    def test_over_hours_a_key_is_delivered_at_its_rate(
        self,
        ps: Penstock,
        q: Queue,
        clock: ManualClock,
        rate_per_s: float,
        burst: int,
        step_s: float,
        batch: int,
    ) -> None:
        ps.throttles.set("api", rate_per_s, burst)
        expected = 2000
        steps = round(expected / rate_per_s / step_s)
        q.enqueue_many(throttled(expected + 200, "api"))
        assert len(q.lease(burst)) == burst
        count = delivered_over(q, clock, steps, step_s, batch)
        assert abs(count - steps * step_s * rate_per_s) <= 1, count

    @requires("throttling")
    def test_a_rate_of_nothing_delivers_what_is_left_and_no_more(
        self, ps: Penstock, q: Queue, clock: ManualClock
    ) -> None:
        ps.throttles.set("api", 0, 2)
        ps.throttles.set("shut", 100, 0)
        q.enqueue_many(throttled(5, "api"))
        q.enqueue_many(throttled(5, "shut"))
        assert payloads(q.lease(10)) == [b"0", b"1"]
        clock.advance(1_000_000)
        assert q.lease(10) == []

    @requires("throttling")
    def test_every_delivery_takes_a_token_a_retry_too(
        self, ps: Penstock, q: Queue, clock: ManualClock
    ) -> None:
        ps.throttles.set("api", 1, 1)
        q.enqueue(b"x", throttle_keys=["api"])
        for attempt in range(1, 4):
            held = take_one(q)
            assert held.attempts == attempt
            q.nack([held.receipt], delay_s=0)
            assert q.lease() == []
            clock.advance(1)

    @requires("throttling", "time_to_live")
    def test_what_is_not_delivered_takes_no_token(self, ps: Penstock, q: Queue, clock: ManualClock) -> None:
        ps.throttles.set("api", 0, 3)
        q.enqueue_many(throttled(50, "api", ttl_s=5))
        q.enqueue_many(throttled(50, "api"))
        clock.advance(6)
        q.purge()
        q.enqueue_many(throttled(5, "api"))
        assert tokens(ps, "api") == 3
        assert len(q.lease(10)) == 3

    # -- what is not held up --------------------------------------------------------------------

    @requires("throttling")
    def test_a_throttled_message_blocks_no_other_of_its_own_key_either(self, ps: Penstock, q: Queue) -> None:
        ps.throttles.set("api", 0, 1)
        for n in range(20):
            q.enqueue(b"api %d" % n, fairness_key="k", throttle_keys=["api"])
            q.enqueue(b"free %d" % n, fairness_key="k")
            q.enqueue(b"other %d" % n, fairness_key="k", throttle_keys=["other"])
        got = payloads(q.lease(100))
        assert len(got) == 41
        assert [one for one in got if one.startswith(b"api")] == [b"api 0"]

    @requires("throttling")
    def test_inside_a_key_the_first_that_may_go_goes_first_whatever_throttles_it(
        self, ps: Penstock, q: Queue
    ) -> None:
        for n in range(30):
            q.enqueue(b"%d" % n, fairness_key="k", throttle_keys=[(), ("a",), ("a", "b")][n % 3])
        assert payloads(take(q, 30)) == [b"%d" % n for n in range(30)]

    @requires("throttling", "prioritization")
    def test_a_throttled_priority_gives_way_to_a_lower_one(
        self, ps: Penstock, q: Queue, clock: ManualClock
    ) -> None:
        ps.throttles.set("api", 1, 1)
        q.enqueue_many(throttled(5, "api", priority=9))
        q.enqueue_many([NewMessage(b"low", priority=0)] * 5)
        assert payloads(take(q, 6)) == [b"0"] + [b"low"] * 5
        clock.advance(1)
        assert payloads(q.lease(5)) == [b"1"]

    @requires("throttling", "prioritization")
    def test_of_what_waits_for_the_same_token_the_higher_priority_gets_it(
        self, ps: Penstock, q: Queue, clock: ManualClock
    ) -> None:
        ps.throttles.set("api", 1, 1)
        take_token(q, "api")
        q.enqueue_many([NewMessage(b"low", throttle_keys=["api"], priority=1)] * 3)
        assert q.lease(10) == []
        q.enqueue_many([NewMessage(b"high", throttle_keys=["api"], priority=8)] * 3)
        q.enqueue_many([NewMessage(b"busy", priority=8, fairness_key="busy")] * 3)
        clock.advance(1)
        assert sorted(payloads(take(q, 4))) == [b"busy"] * 3 + [b"high"]

    # -- several keys ---------------------------------------------------------------------------

    @requires("throttling")
    def test_a_message_with_several_keys_takes_a_token_of_each_or_none(
        self, ps: Penstock, q: Queue, clock: ManualClock
    ) -> None:
        ps.throttles.set("many", 10, 10)
        ps.throttles.set("few", 1, 2)
        q.enqueue_many(throttled(10, "many", "few"))
        assert len(q.lease(10)) == 2
        assert (tokens(ps, "many"), tokens(ps, "few")) == (8, 0)
        assert q.lease(10) == []
        assert (tokens(ps, "many"), tokens(ps, "few")) == (8, 0)
        clock.advance(1)
        assert len(q.lease(10)) == 1
        assert (tokens(ps, "many"), tokens(ps, "few")) == (9, 0)

    @requires("throttling")
    def test_the_key_that_is_scarcest_at_the_time_is_what_counts(
        self, ps: Penstock, q: Queue, clock: ManualClock
    ) -> None:
        ps.throttles.set("a", 1, 1)
        ps.throttles.set("b", 1, 1)
        q.enqueue_many(throttled(9, "a", "b"))
        take_one(q)
        clock.advance(0.5)
        ps.throttles.delete("b")
        ps.throttles.set("b", 0.5, 1)
        q.enqueue_many([NewMessage(b"b alone", throttle_keys=["b"])])
        assert payloads(q.lease(9)) == [b"b alone"]
        clock.advance(0.5)
        assert q.lease(9) == []
        clock.advance(1.5)
        assert payloads(q.lease(9)) == [b"1"]

    @requires("throttling")
    def test_many_sets_of_keys_that_share_one_are_served_in_turn(
        self, ps: Penstock, q: Queue, clock: ManualClock
    ) -> None:
        ps.throttles.set("all", 1, 1)
        take_token(q, "all")
        for n in range(40):
            ps.throttles.set(f"own {n}", 1, 5)
            q.enqueue_many(
                [NewMessage(b"%d" % n, fairness_key=f"{n}", throttle_keys=["all", f"own {n}"])] * 3
            )
        order = []
        for _ in range(120):
            clock.advance(1)
            order += payloads(take(q, 1))
            assert q.lease(5) == []
        for start in (0, 40, 80):
            assert len(set(order[start : start + 40])) == 40

    @requires("throttling", "fairness")
    @pytest.mark.parametrize(("rates", "step_s"), [((1, 1), 0.5), ((10, 7), 0.1), ((3, 0.5), 0.25)])
    @pytest.mark.parametrize("burst", [1, 3])
    def test_a_key_that_needs_two_tokens_has_its_share_of_both(
        self,
        ps: Penstock,
        q: Queue,
        clock: ManualClock,
        rates: tuple[float, float],
        step_s: float,
        burst: int,
    ) -> None:
        # Whoever needs one alone must not have each as it comes: here, they never come together.
        for key, rate_per_s in zip("xy", rates, strict=True):
            ps.throttles.set(key, rate_per_s, burst)
            take_token(q, key)
            clock.advance(step_s)
        for keys in ("x", "y", "xy"):
            q.enqueue_many([NewMessage(fairness_key=keys, throttle_keys=list(keys))] * 400)
        shares: Counter[str] = Counter()
        while sum(shares.values()) < 300:
            clock.advance(step_s)
            while held := q.lease(10):
                shares.update(one.fairness_key for one in held)
                ack(q, held)
        scarce = "x" if rates[0] < rates[1] else "y"
        assert abs(shares["xy"] - shares[scarce]) <= 0.1 * shares[scarce] + 2, shares

    # -- sharing --------------------------------------------------------------------------------

    @requires("throttling")
    def test_a_limit_is_shared_by_all_queues(self, ps: Penstock, q: Queue, clock: ManualClock) -> None:
        other = ps.create_queue("other")
        ps.throttles.set("api", 1, 4)
        for queue in (q, other):
            queue.enqueue_many(throttled(10, "api"))
        assert len(q.lease(3)) == 3
        assert len(other.lease(10)) == 1
        assert q.lease(10) == other.lease(10) == []
        clock.advance(1)
        assert len(other.lease(10)) == 1
        assert q.lease(10) == []
        clock.advance(1)
        assert len(q.lease(10)) == 1

    @requires("throttling", "fairness")
    @pytest.mark.parametrize("batch", [1, 10])
    def test_the_tokens_of_a_key_are_shared_by_weight(
        self, ps: Penstock, q: Queue, clock: ManualClock, batch: int
    ) -> None:
        ps.throttles.set("api", 3, 3)
        for key, weight in (("one", 1), ("three", 3), ("six", 6)):
            q.enqueue_many([NewMessage(fairness_key=key, weight=weight, throttle_keys=["api"])] * 500)
        shares: Counter[str] = Counter()
        while sum(shares.values()) < 600:
            clock.advance(1)
            while held := q.lease(batch):
                shares.update(one.fairness_key for one in held)
        expected = {"one": 60, "three": 180, "six": 360}
        assert all(abs(shares[key] - share) <= 12 for key, share in expected.items()), shares

    @requires("throttling", "fairness")
    def test_a_key_that_becomes_active_gets_tokens_within_a_round(
        self, ps: Penstock, q: Queue, clock: ManualClock
    ) -> None:
        ps.throttles.set("api", 1, 1)
        q.enqueue_many([NewMessage(fairness_key=f"{n % 10}", throttle_keys=["api"]) for n in range(100)])
        for _ in range(13):
            clock.advance(1)
            take_one(q)
        q.enqueue(b"", fairness_key="new", throttle_keys=["api"])
        served = []
        for _ in range(11):
            clock.advance(1)
            served.append(take_one(q).fairness_key)
        assert "new" in served

    # -- waiting --------------------------------------------------------------------------------

    @requires("throttling")
    def test_a_poll_wakes_when_there_is_a_token(self, ps: Penstock, q: Queue, clock: ManualClock) -> None:
        ps.throttles.set("api", 0.1, 1)
        q.enqueue_many(throttled(2, "api"))
        take_one(q)
        waiting = poll(q, clock)
        clock.advance(10)
        assert payloads(waiting.result()) == [b"1"]

    @requires("throttling")
    def test_a_poll_that_finds_the_token_taken_waits_for_the_next(
        self, ps: Penstock, q: Queue, clock: ManualClock
    ) -> None:
        other = ps.create_queue("other")
        ps.throttles.set("api", 0.1, 1)
        q.enqueue_many(throttled(2, "api"))
        other.enqueue_many(throttled(1, "api"))
        take_one(q)
        clock.advance(10)
        take_one(other)
        waiting = poll(q, clock)
        clock.advance(10)
        assert payloads(waiting.result()) == [b"1"]

    @requires("throttling")
    @pytest.mark.parametrize("how", ["raised", "deleted"])
    def test_a_poll_wakes_when_a_limit_is_changed(
        self, ps: Penstock, q: Queue, clock: ManualClock, how: str
    ) -> None:
        ps.throttles.set("api", 0.001, 1)
        q.enqueue_many(throttled(2, "api"))
        take_one(q)
        waiting = poll(q, clock, wait_s=60)
        if how == "deleted":
            ps.throttles.delete("api")
        else:
            ps.throttles.set("api", 1, 1)
            clock.advance(1)
        assert payloads(waiting.result()) == [b"1"]

    @requires("throttling")
    def test_a_poll_ends_empty_though_throttled_messages_wait(
        self, ps: Penstock, q: Queue, clock: ManualClock
    ) -> None:
        ps.throttles.set("api", 0, 0)
        q.enqueue_many(throttled(5, "api"))
        waiting = poll(q, clock, wait_s=10)
        clock.advance(10)
        assert waiting.result() == []

    # -- fifo, and other ways in ----------------------------------------------------------------

    @requires("throttling", "fifo")
    def test_in_a_fifo_queue_a_throttled_message_holds_up_its_own_key_alone(
        self, ps: Penstock, clock: ManualClock
    ) -> None:
        ps.throttles.set("api", 1, 1)
        line = ps.create_queue("line", fifo=True)
        line.enqueue_many(throttled(3, "api", fairness_key="a"))
        line.enqueue(b"a last", fairness_key="a")
        line.enqueue_many([NewMessage(b"b", fairness_key="b")] * 2)
        held = take(line, 2)
        assert sorted(payloads(held)) == [b"0", b"b"]
        ack(line, held)
        assert payloads(line.lease(10)) == [b"b"]
        for expected in (b"1", b"2"):
            assert line.lease(10) == []
            clock.advance(1)
            held = take(line, 1)
            assert payloads(held) == [expected]
            ack(line, held)
        assert payloads(line.lease(10)) == [b"a last"]

    @requires("throttling", "fifo")
    def test_in_a_fifo_queue_the_message_at_the_head_is_what_counts(
        self, ps: Penstock, clock: ManualClock
    ) -> None:
        ps.throttles.set("shut", 0, 0)
        ps.throttles.set("api", 1, 1)
        line = ps.create_queue("line", fifo=True)
        first = line.enqueue(b"shut", throttle_keys=["shut"])
        line.enqueue(b"api", throttle_keys=["api"])
        other = ps.create_queue("other")
        assert line.lease() == []
        assert errors(line.move([first], target="other")) == [None]
        assert payloads(line.lease()) == [b"api"]
        assert tokens(ps, "api") == 0
        assert other.lease() == []

    @requires("throttling")
    def test_a_message_that_is_moved_redriven_or_replaced_is_throttled_where_it_is(
        self, ps: Penstock, q: Queue
    ) -> None:
        other = ps.create_queue("other")
        moved = q.enqueue(b"moved", throttle_keys=["api"])
        replaced = q.enqueue(b"free")
        dead = q.enqueue(b"dead", throttle_keys=["api"])
        q.reject([one.receipt for one in take(q, 3) if one.id == dead])
        q.purge("leased")
        moved = q.enqueue(b"moved", throttle_keys=["api"])
        replaced = q.enqueue(b"free")
        ps.throttles.set("api", 0, 0)
        q.move([moved], target="other")
        q.upsert([NewMessage(b"throttled", id=replaced, throttle_keys=["api"])])
        assert q.redrive() == 1
        assert (q.lease(9), other.lease(9)) == ([], [])
        ps.throttles.delete("api")
        assert payloads(q.lease(9)) == [b"throttled", b"dead"]
        assert payloads(other.lease(9)) == [b"moved"]


def take_token(q: Queue, key: str) -> None:
    """Deliver something that uses the key's one token."""
    q.enqueue(b"", throttle_keys=[key])
    q.ack(receipts(take(q, 1)))
