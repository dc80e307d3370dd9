"""Fairness: keys share deliveries by weight, and a newly active one is served within a round."""

from __future__ import annotations

from collections import Counter

import pytest

from penstock import ManualClock, NewMessage, Queue
from penstock.testing.harness import BackendCase, drain, payloads, requires, take, take_one


def served_keys(q: Queue, count: int, batch: int) -> list[str]:
    """The fairness keys of the next deliveries, in order."""
    out: list[str] = []
    while len(out) < count:
        out += [delivery.fairness_key for delivery in take(q, min(batch, count - len(out)))]
    return out


class FairnessSuite(BackendCase):
    """`fairness_key` and `weight`."""

    @requires("fairness")
    @pytest.mark.parametrize("batch", [1, 7, 100])
    def test_keys_of_one_weight_share_alike_however_much_each_has_waiting(self, q: Queue, batch: int) -> None:
        for key, count in (("whale", 2000), ("fish", 120), ("shrimp", 120), ("", 120)):
            q.enqueue_many([NewMessage(fairness_key=key)] * count)
        shares = Counter(served_keys(q, 400, batch))
        assert all(90 <= shares[key] <= 110 for key in ("whale", "fish", "shrimp", "")), shares

    @requires("fairness")
    @pytest.mark.parametrize("batch", [1, 10])
    def test_keys_share_by_weight(self, q: Queue, batch: int) -> None:
        for key, weight in (("one", 1), ("three", 3), ("six", 6)):
            q.enqueue_many([NewMessage(fairness_key=key, weight=weight)] * 600)
        shares = Counter(served_keys(q, 500, batch))
        expected = {"one": 50, "three": 150, "six": 300}
        assert all(abs(shares[key] - share) <= 20 for key, share in expected.items()), shares

    @requires("fairness")
    @pytest.mark.parametrize("batch", [1, 10])
    def test_a_newly_active_key_is_served_within_one_round(self, q: Queue, batch: int) -> None:
        for n in range(20):
            q.enqueue_many([NewMessage(fairness_key=f"busy-{n}", weight=1 + n % 3)] * 50)
        one_round = sum(1 + n % 3 for n in range(20))
        served_keys(q, 33, batch)
        q.enqueue(b"", fairness_key="new")
        assert "new" in served_keys(q, one_round + 1, batch)

    @requires("fairness")
    def test_a_key_that_comes_and_goes_is_served_within_one_round_each_time(self, q: Queue) -> None:
        q.enqueue_many([NewMessage(fairness_key=f"busy-{n % 5}") for n in range(500)])
        for _ in range(20):
            q.enqueue(b"", fairness_key="sometimes")
            assert "sometimes" in served_keys(q, 6, batch=1)

    @requires("fairness")
    def test_every_busy_key_is_served_in_every_round(self, q: Queue) -> None:
        q.enqueue_many([NewMessage(fairness_key=f"key-{n % 30}") for n in range(900)])
        served = served_keys(q, 600, batch=11)
        last = {f"key-{n}": 0 for n in range(30)}
        for place, key in enumerate(served, start=1):
            assert place - last[key] <= 60, f"{key} waited for {place - last[key]} deliveries"
            last[key] = place

    @requires("fairness")
    def test_inside_a_key_messages_keep_their_order(self, q: Queue) -> None:
        q.enqueue_many([NewMessage(b"%d" % n, fairness_key="ab"[n % 2]) for n in range(40)])
        delivered = drain(q, batch=3)
        for start in (0, 1):
            assert [one for one in delivered if int(one) % 2 == start] == [
                b"%d" % n for n in range(start, 40, 2)
            ]

    @requires("fairness")
    def test_the_weight_that_counts_is_that_of_the_message_at_the_head(self, q: Queue) -> None:
        q.enqueue_many([NewMessage(fairness_key="a", weight=1)] * 100)
        q.enqueue_many([NewMessage(fairness_key="a", weight=9)] * 900)
        q.enqueue_many([NewMessage(fairness_key="b", weight=1)] * 1000)
        first = Counter(served_keys(q, 200, batch=1))
        assert abs(first["a"] - 100) <= 10, first
        then = Counter(served_keys(q, 200, batch=1))
        assert abs(then["a"] - 180) <= 15, then

    @requires("fairness")
    def test_a_key_alone_gets_everything(self, q: Queue) -> None:
        q.enqueue_many([NewMessage(b"%d" % n, fairness_key="only", weight=2) for n in range(50)])
        assert drain(q, batch=20) == [b"%d" % n for n in range(50)]

    @requires("fairness")
    def test_messages_that_came_back_wait_behind_their_own_key_alone(self, q: Queue) -> None:
        q.enqueue_many([NewMessage(b"a1", fairness_key="a"), NewMessage(b"a2", fairness_key="a")])
        q.enqueue_many([NewMessage(b"b1", fairness_key="b"), NewMessage(b"b2", fairness_key="b")])
        held = take_one(q)
        key = held.fairness_key
        q.nack([held.receipt], delay_s=0)
        order = [payload for payload in drain(q, batch=1) if payload.decode().startswith(key)]
        assert order == [f"{key}2".encode(), f"{key}1".encode()]

    @requires("fairness", "prioritization")
    def test_priority_goes_before_fairness(self, q: Queue) -> None:
        q.enqueue_many([NewMessage(b"low", fairness_key=f"k{n}", priority=3) for n in range(5)])
        q.enqueue_many([NewMessage(b"high", fairness_key="k0", priority=6)] * 5)
        assert payloads(take(q, 5)) == [b"high"] * 5

    @requires("fairness", "delay")
    def test_a_key_whose_messages_fall_due_joins_the_round(self, q: Queue, clock: ManualClock) -> None:
        q.enqueue(b"", fairness_key="due", delay_s=10)
        q.enqueue_many([NewMessage(fairness_key=f"busy-{n % 3}") for n in range(60)])
        assert "due" not in served_keys(q, 10, batch=1)
        clock.advance(10)
        assert "due" in served_keys(q, 4, batch=1)

    @requires("fairness")
    def test_many_keys_of_one_message_each_are_all_served(self, q: Queue) -> None:
        expected = {f"tenant-{n}" for n in range(3000)}
        q.enqueue_many([NewMessage(fairness_key=key) for key in sorted(expected)])
        assert set(served_keys(q, 3000, batch=250)) == expected
        assert q.lease() == []
