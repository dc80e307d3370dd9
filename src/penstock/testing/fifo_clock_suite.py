"""Fifo queues with a delay while clocks are set: order holds, and nobody waits for one that is gone."""

from __future__ import annotations

import random
import uuid
from collections import defaultdict

import pytest

from penstock import Delivery, ManualClock, NewMessage, Penstock, Queue
from penstock.testing.fifo_delay_suite import due_in_s, news, waiting
from penstock.testing.harness import BackendCase, Subject, ack, drain, errors, payloads, requires

#: More than one step of time takes on.
OTHERS = [NewMessage(b"%d" % n, fairness_key=str(n)) for n in range(600)]
YEAR_S = 365 * 86_400


def in_order(q: Queue, *keys: str) -> dict[str, list[bytes]]:
    """What is handed out of these keys, as it is; everything else goes by the way."""
    taken = drain(q)
    return {key: [one for one in taken if one.startswith(key.encode())] for key in keys}


class FifoClockSuite(BackendCase):
    """`fifo=True, delay_s=…`, and a clock that goes forward and back."""

    @pytest.fixture
    def slow(self, ps: Penstock) -> Queue:
        return ps.create_queue("slow", fifo=True, delay_s=10)

    @requires("fifo", "delay")
    def test_without_a_delay_nobody_waits_for_a_clock_that_was_set_back(
        self, ps: Penstock, slow: Queue, clock: ManualClock
    ) -> None:
        slow.enqueue_many(news(b"a0", b"a1"))
        clock.advance(-6)
        ps.update_queue("slow", delay_s=0)
        slow.enqueue_many(news(b"a2"))
        assert {one.visible_at_ns for one in slow.list("ready").items} == {clock.now_ns()}
        assert drain(slow) == [b"a0", b"a1", b"a2"]
        slow.enqueue_many(news(b"a3"))
        assert (waiting(slow), drain(slow)) == ((0, 1), [b"a3"])

    @requires("fifo", "delay")
    @pytest.mark.parametrize("back_s", [0, 6])
    def test_what_comes_in_between_two_delays_stays_behind_what_still_waits(
        self, ps: Penstock, slow: Queue, clock: ManualClock, back_s: float
    ) -> None:
        slow.enqueue_many(OTHERS)
        slow.enqueue_many(news(b"y1"))
        clock.advance(-back_s)
        ps.update_queue("slow", delay_s=0)
        slow.enqueue_many(news(b"y2"))
        ps.update_queue("slow", delay_s=10)
        slow.enqueue_many(news(b"y3"))
        first = in_order(slow, "y")["y"]
        clock.advance(10 + back_s)
        assert [*first, *drain(slow)][-3:] == [b"y1", b"y2", b"y3"]

    @requires("fifo", "delay")
    def test_a_delay_that_changes_parts_none_that_came_in_at_one_time(
        self, ps: Penstock, slow: Queue, clock: ManualClock
    ) -> None:
        ids = [str(uuid.UUID(int=9_999 - n)) for n in range(700)]
        slow.enqueue_many([NewMessage(b"%d" % n, fairness_key=f"{n % 350}", id=ids[n]) for n in range(700)])
        clock.advance(10)
        ps.update_queue("slow", delay_s=100)
        taken = drain(slow)
        ps.update_queue("slow", delay_s=0)
        taken += drain(slow)
        assert all(taken.index(b"%d" % n) < taken.index(b"%d" % (n + 350)) for n in range(350))

    @requires("fifo", "delay")
    def test_one_that_came_in_by_a_clock_ahead_and_is_gone_holds_up_nobody(
        self, subject: Subject, slow: Queue, clock: ManualClock
    ) -> None:
        clock.advance(YEAR_S)
        slow.enqueue_many(news(b"a1"))
        clock.advance(10)
        assert drain(slow) == [b"a1"]
        clock.advance(-YEAR_S)
        slow.enqueue_many(news(b"a2"))
        assert due_in_s(subject.ps, clock) == [10]
        ps = subject.reopen() if subject.capabilities.persistence else subject.ps
        slow = ps.queue("slow")
        slow.enqueue_many(news(b"a3"))
        assert due_in_s(ps, clock) == [10, 10]
        clock.advance(10)
        assert drain(slow) == [b"a2", b"a3"]

    @requires("fifo", "delay")
    def test_one_that_left_the_line_holds_up_nobody_though_others_are_in_it(
        self, ps: Penstock, slow: Queue, clock: ManualClock
    ) -> None:
        ps.create_queue("elsewhere", fifo=True)
        ps.update_queue("slow", delay_s=2 * YEAR_S)
        slow.enqueue_many(news(b"a1"))
        clock.advance(YEAR_S)
        ahead = [slow.enqueue(b"%d" % n, fairness_key="a") for n in range(2)]
        clock.advance(-YEAR_S)
        for n in range(2):
            assert errors(slow.move([ahead[n]], target="elsewhere")) == [None]
            ahead.append(slow.enqueue(b"a%d" % (n + 2), fairness_key="a"))
            behind_s = 2 * YEAR_S + (0 if n else YEAR_S)
            assert due_in_s(ps, clock)[-1] == behind_s
            if not n:
                assert errors(slow.move([ahead.pop()], target="elsewhere")) == [None]
        clock.advance(2 * YEAR_S)
        assert drain(slow) == [b"a1", b"a3"]

    @requires("fifo", "delay", "consumer_groups")
    def test_each_group_goes_by_its_own_line(self, ps: Penstock, slow: Queue, clock: ManualClock) -> None:
        slow.create_group("late")
        clock.advance(YEAR_S)
        slow.enqueue_many(news(b"a1"))
        known = slow.enqueue(b"a2", fairness_key="a")
        clock.advance(10)
        assert payloads(slow.lease(1)) == [b"a1"]
        clock.advance(-YEAR_S)
        # For this group both are in line, for the queue they are ready.
        ps.update_queue("slow", delay_s=2)
        assert errors(slow.upsert([NewMessage(b"a2!", id=known, fairness_key="a")])) == [None]
        slow.enqueue_many(news(b"a3"))
        clock.advance(2)
        assert slow.lease(9, group="late") == []
        ps.update_queue("slow", delay_s=0)
        slow.enqueue_many(news(b"a4"))
        delivered: list[bytes] = []
        while held := slow.lease(10, group="late"):
            delivered += payloads(held)
            ack(slow, held)
        assert delivered == [b"a1", b"a2!", b"a3", b"a4"]

    @requires("fifo", "consumer_groups")
    def test_what_comes_in_by_a_clock_set_back_is_behind_what_a_new_group_was_given(
        self, ps: Penstock, clock: ManualClock
    ) -> None:
        q = ps.create_queue("q", fifo=True)
        q.create_group("old")
        q.enqueue_many(news(b"a0", b"a1"))
        clock.advance(-5)
        q.create_group("new")
        q.enqueue_many(news(b"a2"))
        delivered: list[bytes] = []
        while held := q.lease(1, group="new"):
            delivered += payloads(held)
            ack(q, held)
            q.enqueue_many(news(b"a3") if len(delivered) == 1 else [])
        assert delivered == [b"a0", b"a1", b"a2", b"a3"]

    @requires("fifo", "delay")
    @pytest.mark.parametrize("seed", range(10))
    def test_no_history_of_clocks_and_delays_brings_a_key_out_of_order(
        self, subject: Subject, slow: Queue, seed: int
    ) -> None:
        history = _History(subject, slow, random.Random(seed))
        for _ in range(50):
            history.step()
        history.end()


_STEPS = ("in", "in", "in", "on", "on", "back", "delay", "out", "out", "over", "over", "anew")


class _History:
    """Random steps; what is handed out must be the earliest of its key that is there."""

    def __init__(self, subject: Subject, q: Queue, rng: random.Random) -> None:
        self.subject, self.q, self.rng = subject, q, rng
        self.there: dict[str, list[bytes]] = defaultdict(list)
        self.held: list[Delivery] = []
        self.enqueued = 0

    def step(self) -> None:
        rng, clock = self.rng, self.subject.clock
        match rng.choice(_STEPS):
            case "in":
                keys = [rng.choice("ab") for _ in range(rng.choice((1, 1, 2, 5)))]
                new = [b"%s%d" % (key.encode(), self.enqueued + n) for n, key in enumerate(keys)]
                self.enqueued += len(new)
                self.q.enqueue_many(news(*new))
                for payload in new:
                    self.there[payload[:1].decode()].append(payload)
            case "on":
                clock.advance(rng.choice((0.5, 1, 3, 7, 12)))
            case "back":
                clock.advance(-rng.choice((1, 5, 20)))
            case "delay":
                self.subject.ps.update_queue("slow", delay_s=rng.choice((0, 0, 1, 3, 10, 30)))
            case "out":
                self.lease(rng.choice((1, 2, 5)))
            case "over" if self.held:
                self.settle(self.held.pop(rng.randrange(len(self.held))))
            case "anew" if self.subject.capabilities.persistence:
                self.q = self.subject.reopen().queue("slow")

    def lease(self, most: int) -> None:
        for one in self.q.lease(most):
            assert one.payload == self.there[one.fairness_key][0]
            self.held.append(one)

    def settle(self, one: Delivery) -> None:
        if self.rng.random() < 0.4:
            self.q.nack([one.receipt], delay_s=self.rng.choice((0, 2, 8)))
        elif errors(self.q.ack([one.receipt])) == [None]:
            self.there[one.fairness_key].remove(one.payload)

    def end(self) -> None:
        self.subject.ps.update_queue("slow", delay_s=0, max_attempts=1_000)
        for _ in range(100):
            self.subject.clock.advance(31)
            self.lease(100)
            while self.held:
                one = self.held.pop()
                if errors(self.q.ack([one.receipt])) == [None]:
                    self.there[one.fairness_key].remove(one.payload)
        assert not any(self.there.values())
