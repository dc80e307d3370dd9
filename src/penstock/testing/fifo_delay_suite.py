"""Fifo queues with a delay: every message waits for it, in order, and by what the setting says now."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from penstock import InvalidConfig, ManualClock, NewMessage, Penstock, Queue
from penstock.backends.bulk import StoredMessage
from penstock.clock import NS_PER_S, to_ns
from penstock.testing.bulk_read_suite import BulkCase
from penstock.testing.bulk_write_suite import Bulk, BulkWriteCase
from penstock.testing.harness import (
    BackendCase,
    Subject,
    ack,
    drain,
    errors,
    payloads,
    receipts,
    requires,
    sweep_all,
    take,
    take_one,
)
from penstock.testing.waiting_suite import poll

#: Given ids, in an order that is not that of enqueueing.
IDS = [str(uuid.UUID(int=99 - n)) for n in range(4)]


def news(*payloads: bytes, **values: Any) -> list[NewMessage]:
    """The first byte of each is its key."""
    return [NewMessage(payload, fairness_key=payload[:1].decode(), **values) for payload in payloads]


def due_in_s(ps: Penstock, clock: ManualClock) -> list[float]:
    return [(item.at_ns - clock.now_ns()) / NS_PER_S for item in ps.due() if item.what == "delay"]


def waiting(q: Queue) -> tuple[int, int]:
    stats = q.stats()
    return stats.delayed, stats.ready


class FifoDelayMoveSuite(BackendCase):
    """`fifo=True, delay_s=…`: what changes it, and what goes from queue to queue."""

    @pytest.fixture
    def slow(self, ps: Penstock) -> Queue:
        return ps.create_queue("slow", fifo=True, delay_s=10)

    @requires("fifo", "delay")
    def test_a_delay_that_is_changed_counts_for_what_waits(
        self, ps: Penstock, slow: Queue, clock: ManualClock
    ) -> None:
        slow.enqueue_many(news(b"a1", b"b1"))
        clock.advance(4)
        slow.enqueue_many(news(b"a2"))
        ps.update_queue("slow", delay_s=100)
        assert due_in_s(ps, clock) == [96, 96, 100]
        clock.advance(6)
        assert waiting(slow) == (3, 0)
        ps.update_queue("slow", delay_s=7)
        assert (waiting(slow), due_in_s(ps, clock)) == ((1, 2), [1])
        # What is ready stays so, also where nobody had looked.
        clock.advance(1)
        ps.update_queue("slow", delay_s=500)
        slow.enqueue_many(news(b"a3"))
        assert waiting(slow) == (1, 3)
        assert sorted(drain(slow)) == [b"a1", b"a2", b"b1"]
        assert due_in_s(ps, clock) == [500]
        ps.update_queue("slow", delay_s=0)
        assert drain(slow) == [b"a3"]

    @requires("fifo", "delay")
    def test_what_comes_from_another_queue_waits_too_and_what_goes_does_not(
        self, ps: Penstock, slow: Queue, clock: ManualClock
    ) -> None:
        source = ps.create_queue("source", fifo=True, max_attempts=1, dead_letter="slow")
        buried = source.enqueue(b"dead")
        source.nack([take_one(source).receipt], delay_s=0)
        assert slow.get(buried).visible_at_ns == clock.now_ns() + to_ns(10)
        clock.advance(4)
        moved = [source.enqueue(b"m%d" % n) for n in range(2)]
        assert errors(source.move(moved, target="slow")) == [None, None]
        slow.enqueue(b"last")
        assert (waiting(slow), due_in_s(ps, clock)) == ((4, 0), [6, 10, 10, 10])
        assert errors(slow.move(moved[:1], target="source")) == [None]
        assert drain(source) == [b"m0"]
        clock.advance(10)
        assert drain(slow) == [b"dead", b"m1", b"last"]

    @requires("fifo", "delay")
    def test_a_redriven_message_waits_from_then_on(self, slow: Queue, clock: ManualClock) -> None:
        slow.enqueue_many(news(b"a1", b"a2"))
        clock.advance(10)
        slow.reject([take_one(slow).receipt])
        assert slow.redrive() == 1
        assert (waiting(slow), drain(slow)) == ((1, 1), [b"a2"])
        clock.advance(10)
        assert drain(slow) == [b"a1"]


class FifoDelaySuite(FifoDelayMoveSuite, BulkWriteCase, BulkCase):
    """The same, and everything else about it."""

    @requires("fifo", "delay")
    def test_a_queues_delay_makes_each_message_wait_and_keeps_their_order(
        self, ps: Penstock, slow: Queue, clock: ManualClock
    ) -> None:
        slow.enqueue_many(news(b"a1", b"b1", b"a2"))
        for number, given in enumerate(IDS):
            slow.enqueue(b"c%d" % number, fairness_key="c", id=given)
        assert waiting(slow) == (7, 0)
        assert due_in_s(ps, clock) == [10] * 7
        listed = slow.list("delayed").items
        assert {(one.visible_at_ns - one.enqueued_at_ns) / NS_PER_S for one in listed} == {10}
        clock.advance(9.999)
        assert slow.lease(10) == []
        clock.advance(0.001)
        assert (waiting(slow), ps.due()) == ((0, 7), [])
        held = take(slow, 3)
        assert sorted(payloads(held)) == [b"a1", b"b1", b"c0"]
        ack(slow, held)
        assert sorted(drain(slow)) == [b"a2", b"c1", b"c2", b"c3"]

    @requires("fifo", "delay")
    def test_what_comes_later_waits_longer_and_holds_up_nothing(
        self, slow: Queue, clock: ManualClock
    ) -> None:
        delivered = []
        for second in range(25):
            slow.enqueue(b"%d" % second)
            delivered.append((second, drain(slow)))
            clock.advance(1)
        assert delivered == [(n, [b"%d" % (n - 10)] if n >= 10 else []) for n in range(25)]

    @requires("fifo", "delay")
    def test_a_clock_that_is_set_back_does_not_change_the_order(
        self, ps: Penstock, slow: Queue, clock: ManualClock
    ) -> None:
        slow.enqueue(b"1")
        clock.advance(-8)
        slow.enqueue(b"2")
        assert due_in_s(ps, clock) == [18, 18]
        assert len({one.visible_at_ns for one in slow.list("delayed").items}) == 1
        clock.advance(10)
        assert slow.lease(2) == []
        clock.advance(8)
        assert drain(slow) == [b"1", b"2"]

    @requires("fifo", "delay")
    def test_a_poll_wakes_when_a_queues_delay_is_over_or_made_shorter(
        self, ps: Penstock, slow: Queue, clock: ManualClock
    ) -> None:
        slow.enqueue_many(news(b"a"))
        polling = poll(slow, clock, wait_s=60)
        clock.advance(10)
        assert payloads(polling.result()) == [b"a"]
        slow.enqueue_many(news(b"b"))
        polling = poll(slow, clock, wait_s=60)
        ps.update_queue("slow", delay_s=0)
        assert payloads(polling.result()) == [b"b"]

    @requires("fifo", "delay")
    def test_a_message_that_came_back_waits_for_its_retry_alone(
        self, ps: Penstock, slow: Queue, clock: ManualClock
    ) -> None:
        slow.enqueue_many(news(b"a1", b"a2", b"b1"))
        clock.advance(10)
        held = take(slow, 2)
        assert errors(slow.nack(receipts(held), delay_s=3)) == [None, None]
        slow.enqueue_many(news(b"a3", b"c1"))
        ps.update_queue("slow", delay_s=1)
        assert due_in_s(ps, clock) == [1, 1, 3, 3]
        clock.advance(1)
        assert payloads(slow.lease(9)) == [b"c1"]
        clock.advance(2)
        again = take(slow, 2)
        assert {(one.payload, one.attempts) for one in again} == {(b"a1", 2), (b"b1", 2)}
        slow.nack(receipts(again), delay_s=0)
        ack(slow, take(slow, 2))
        assert drain(slow) == [b"a2", b"a3"]

    @requires("fifo", "delay")
    def test_without_a_delay_again_what_comes_stays_behind_what_waited(self, subject: Subject) -> None:
        # More than one step of time takes on: they are ready some at a time, and nothing overtakes the last.
        slow = subject.ps.create_queue("slow", fifo=True, delay_s=10)
        slow.enqueue_many([NewMessage(b"%d" % n, fairness_key=str(n)) for n in range(600)] + news(b"y1"))
        ps = subject.reopen() if subject.capabilities.persistence else subject.ps
        ps.update_queue("slow", delay_s=0)
        slow = ps.queue("slow")
        slow.enqueue_many(news(b"y2"))
        taken = drain(slow)
        assert len(taken) == 602
        assert [one for one in taken if one[:1] == b"y"] == [b"y1", b"y2"]
        slow.enqueue_many(news(b"at once"))
        assert drain(slow) == [b"at once"]

    @requires("fifo", "delay", "persistence")
    def test_delays_go_on_after_reopening(self, subject: Subject) -> None:
        clock = subject.clock
        slow = subject.ps.create_queue("slow", fifo=True, delay_s=10)
        slow.enqueue_many(news(b"a1", b"a2"))
        clock.advance(10)
        slow.nack([take_one(slow).receipt], delay_s=30)
        slow.enqueue_many(news(b"a3", b"b1"))
        ps = subject.reopen()
        slow = ps.queue("slow")
        assert (waiting(slow), due_in_s(ps, clock)) == ((3, 1), [10, 10, 30])
        ps.update_queue("slow", delay_s=20)
        ps = subject.reopen()
        slow = ps.queue("slow")
        assert due_in_s(ps, clock) == [20, 20, 30]
        clock.advance(20)
        assert drain(slow) == [b"b1"]
        clock.advance(10)
        assert drain(slow) == [b"a1", b"a2", b"a3"]

    @requires("fifo", "delay", "time_to_live", "idempotent_enqueue")
    def test_what_waits_for_the_queue_expires_repeats_and_is_purged(
        self, ps: Penstock, slow: Queue, clock: ManualClock
    ) -> None:
        first = slow.enqueue(b"a1", ttl_s=5, dedup_id="once")
        assert slow.enqueue(b"a1", dedup_id="once") == first
        slow.enqueue_many(news(b"b1", ttl_s=11))
        assert waiting(slow) == (2, 0)
        clock.advance(5)
        assert waiting(slow) == (1, 0)
        slow.enqueue_many(news(b"c1"))
        assert slow.purge() == 2
        slow.enqueue_many(news(b"d1"))
        assert (slow.purge("delayed"), waiting(slow), due_in_s(ps, clock)) == (1, (0, 0), [])
        slow.enqueue_many(news(b"e1"))
        sweep_all(ps)
        clock.advance(10)
        sweep_all(ps)
        assert drain(slow) == [b"e1"]

    @requires("fifo", "delay")
    def test_an_upsert_keeps_place_and_time(self, ps: Penstock, slow: Queue, clock: ManualClock) -> None:
        slow.enqueue_many([NewMessage(b"%d" % n, id=given) for n, given in enumerate(IDS[:2])])
        clock.advance(4)
        upserted = [NewMessage(b"zero", id=IDS[0]), NewMessage(b"2", id=IDS[2])]
        assert errors(slow.upsert(upserted)) == [None, None]
        assert due_in_s(ps, clock) == [6, 6, 10]
        clock.advance(6)
        visible_at_ns = slow.get(IDS[1]).visible_at_ns
        slow.upsert([NewMessage(b"one", id=IDS[1])])
        assert slow.get(IDS[1]).visible_at_ns == visible_at_ns == clock.now_ns()
        assert drain(slow) == [b"zero", b"one"]
        clock.advance(4)
        assert drain(slow) == [b"2"]

    @requires("fifo", "delay", "bulk_write", "bulk_read")
    def test_rows_of_a_bulk_write_wait_and_tables_say_until_when(
        self, subject: Subject, slow: Queue, bulk: Bulk
    ) -> None:
        ps, clock = subject.ps, subject.clock
        slow.enqueue(b"0")
        clock.advance(3)
        bulk.write(ps, "slow", {"payload": [b"%d" % n for n in range(1, 21)]})
        slow.enqueue(b"21")
        ps.update_queue("slow", delay_s=12)
        now_ns = clock.now_ns()
        rows = self.rows(subject, "messages")
        assert {row["state"] for row in rows} == {"delayed"}
        due = {row["payload"]: ((row["visible_at_ns"] - now_ns) / NS_PER_S, row["until_ns"]) for row in rows}
        assert due == {b"%d" % n: (12 - 3 * (n == 0), now_ns + to_ns(12 - 3 * (n == 0))) for n in range(22)}
        clock.advance(9)
        assert drain(slow) == [b"0"]
        clock.advance(3)
        assert drain(slow) == [b"%d" % n for n in range(1, 22)]

    @requires("fifo", "delay", "restore")
    def test_a_restored_message_waits_from_when_it_came_in(
        self, ps: Penstock, slow: Queue, clock: ManualClock
    ) -> None:
        at_ns = clock.now_ns() - to_ns(4)
        there = [
            StoredMessage(
                id=given,
                state="delayed",
                payload=b"%d" % n,
                enqueued_at_ns=at_ns,
                order_ns=at_ns + n,
                visible_at_ns=at_ns + to_ns(60),
            )
            for n, given in enumerate(IDS)
        ]
        assert [result.ok for result in ps.restore("slow", there)] == [True] * 4
        assert due_in_s(ps, clock) == [6] * 4
        clock.advance(6)
        assert drain(slow) == [b"0", b"1", b"2", b"3"]

    @requires("fifo", "delay", "consumer_groups")
    def test_every_group_waits_for_the_delay_that_there_is(
        self, ps: Penstock, slow: Queue, clock: ManualClock
    ) -> None:
        slow.create_group("a")
        slow.enqueue_many(news(b"x1", b"x2"))
        slow.create_group("b")
        ps.update_queue("slow", delay_s=5)
        clock.advance(5)
        for group in ("a", "b"):
            delivered = []
            while held := slow.lease(10, group=group):
                delivered += payloads(held)
                ack(slow, held)
            assert delivered == [b"x1", b"x2"]
        assert ps.check().ok

    @requires("fifo", "delay")
    @pytest.mark.parametrize("delay_s", [-1, 1e12, True, "5", None])
    def test_a_queues_delay_that_cannot_be_is_refused(self, ps: Penstock, slow: Queue, delay_s: Any) -> None:
        with pytest.raises(InvalidConfig, match="delay_s"):
            ps.update_queue("slow", delay_s=delay_s)
        assert next(one for one in ps.queues() if one.name == "slow").delay_s == 10

    @requires("fifo", "delay")
    def test_only_fifo_queues_have_a_delay_of_their_own(self, ps: Penstock) -> None:
        with pytest.raises(InvalidConfig, match="delay_s goes with fifo"):
            ps.create_queue("q", delay_s=1)
        ps.create_queue("q", delay_s=0)
        with pytest.raises(InvalidConfig, match="delay_s goes with fifo"):
            ps.update_queue("q", delay_s=1)
