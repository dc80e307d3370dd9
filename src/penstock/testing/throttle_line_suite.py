"""Throttles in fifo queues: the head of a line waits for its tokens, and its line with it, and no other."""

from __future__ import annotations

import pytest

from penstock import ManualClock, NewMessage, Penstock, Queue
from penstock.testing.harness import BackendCase, ack, payloads, requires, take
from penstock.testing.throttle_suite import take_token


class ThrottleLineSuite(BackendCase):
    """`throttle_keys` of messages in a fifo queue."""

    @pytest.fixture
    def line(self, ps: Penstock) -> Queue:
        return ps.create_queue("line", fifo=True)

    @requires("throttling", "fifo")
    def test_the_only_message_of_a_line_is_delivered_when_its_token_comes(
        self, ps: Penstock, line: Queue, clock: ManualClock
    ) -> None:
        ps.throttles.set("api", 1, 1)
        line.enqueue_many([NewMessage(fairness_key=key, throttle_keys=["api"]) for key in "abcd"])
        served = set()
        for _ in range(4):
            (held,) = take(line, 1)
            served.add(held.fairness_key)
            assert line.lease(10) == []
            clock.advance(1)
        assert served == set("abcd")

    @requires("throttling", "fifo")
    def test_what_comes_after_a_throttled_message_needs_no_token_of_it(
        self, ps: Penstock, q: Queue, line: Queue, clock: ManualClock
    ) -> None:
        ps.throttles.set("api", 1, 1)
        take_token(q, "api")
        for key in ("a", "b"):
            line.enqueue(b"throttled", fairness_key=key, throttle_keys=["api"])
            line.enqueue(b"free", fairness_key=key)
        assert line.lease(10) == []
        for _ in range(2):
            clock.advance(1)
            held = take(line, 1)
            assert payloads(held) == [b"throttled"]
            ack(line, held)
            held = take(line, 1)
            assert payloads(held) == [b"free"]
            ack(line, held)
        assert line.stats().ready == 0

    @requires("throttling", "fifo")
    @pytest.mark.parametrize("batch", [1, 10])
    def test_lines_that_want_the_same_tokens_all_come_to_their_end(
        self, ps: Penstock, line: Queue, clock: ManualClock, batch: int
    ) -> None:
        ps.throttles.set("x", 1, 1)
        ps.throttles.set("y", 0.5, 2)
        sets = ((), ("x",), ("y",), ("x", "y"), ("never set", "x"))
        line.enqueue_many(
            [NewMessage(b"%d" % n, fairness_key=f"{n % 3}", throttle_keys=sets[n % 5]) for n in range(30)]
        )
        got: dict[str, list[bytes]] = {"0": [], "1": [], "2": []}
        for _ in range(60):
            while held := line.lease(batch):
                for one in held:
                    got[one.fairness_key].append(one.payload)
                ack(line, held)
            clock.advance(1)
        assert got == {key: [b"%d" % n for n in range(int(key), 30, 3)] for key in got}

    @requires("throttling", "fifo")
    def test_a_message_that_had_to_wait_is_counted_as_served_once(
        self, ps: Penstock, line: Queue, clock: ManualClock
    ) -> None:
        ps.throttles.set("api", 1, 1)
        line.enqueue_many([NewMessage(fairness_key=key, throttle_keys=["api"]) for key in "ab"])
        for _ in range(2):
            take(line, 1)
            assert line.lease(10) == []
            clock.advance(1)
        assert sorted((one.key, one.served, one.share) for one in line.key_stats()) == [
            ("a", 1, 0.5),
            ("b", 1, 0.5),
        ]
