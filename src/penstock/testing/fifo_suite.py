"""Fifo queues: strict order, one message of a key in flight, and nothing overtakes what came back."""

from __future__ import annotations

import pytest

from penstock import ManualClock, NewMessage, Penstock, Queue
from penstock.testing.harness import (
    BackendCase,
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


class FifoSuite(BackendCase):
    """`fifo=True`."""

    @pytest.fixture
    def line(self, ps: Penstock) -> Queue:
        return ps.create_queue("line", fifo=True)

    @requires("fifo")
    def test_messages_of_a_key_are_delivered_one_by_one_in_their_order(self, line: Queue) -> None:
        line.enqueue_many([NewMessage(b"%d" % n) for n in range(10)])
        delivered = []
        while held := line.lease(10):
            assert len(held) == 1
            delivered += payloads(held)
            ack(line, held)
        assert delivered == [b"%d" % n for n in range(10)]

    @requires("fifo")
    def test_a_key_has_at_most_one_message_in_flight(self, line: Queue) -> None:
        line.enqueue_many([NewMessage(b"1"), NewMessage(b"2")])
        held = take_one(line)
        assert line.lease(10) == []
        ack(line, [held])
        assert payloads(line.lease(10)) == [b"2"]

    @requires("fifo", "fairness")
    def test_keys_do_not_wait_for_each_other(self, line: Queue) -> None:
        line.enqueue_many(
            [NewMessage(f"{key}{n}".encode(), fairness_key=key) for n in (1, 2) for key in "abc"]
        )
        line.enqueue(b"common", fairness_key="")
        held = take(line, 4)
        assert sorted(payloads(held)) == [b"a1", b"b1", b"c1", b"common"]
        assert line.lease(10) == []
        ack(line, [delivery for delivery in held if delivery.payload == b"b1"])
        assert payloads(line.lease(10)) == [b"b2"]

    @requires("fifo")
    def test_a_nacked_message_keeps_its_place(self, line: Queue) -> None:
        line.enqueue_many([NewMessage(b"1"), NewMessage(b"2"), NewMessage(b"3")])
        line.nack([take_one(line).receipt], delay_s=0)
        again = take_one(line)
        assert (again.payload, again.attempts) == (b"1", 2)
        ack(line, [again])
        assert drain(line) == [b"2", b"3"]

    @requires("fifo")
    def test_a_message_whose_lease_ran_out_keeps_its_place(self, line: Queue, clock: ManualClock) -> None:
        line.enqueue_many([NewMessage(b"1"), NewMessage(b"2")])
        take_one(line, lease_s=5)
        clock.advance(5)
        again = take_one(line)
        assert (again.payload, again.attempts, line.lease(10)) == (b"1", 2, [])

    @requires("fifo")
    def test_a_message_that_waits_for_its_retry_blocks_its_key(self, line: Queue, clock: ManualClock) -> None:
        line.enqueue_many([NewMessage(b"1"), NewMessage(b"2")])
        line.nack([take_one(line).receipt], delay_s=10)
        assert line.lease(10) == []
        line.enqueue(b"3")
        clock.advance(9.999)
        assert line.lease(10) == []
        clock.advance(0.001)
        assert drain(line) == [b"1", b"2", b"3"]

    @requires("fifo")
    def test_a_retry_policy_blocks_the_key_too(self, ps: Penstock, clock: ManualClock) -> None:
        line = ps.create_queue("slow", fifo=True, retry={"policy": "fixed", "delay_s": 7})
        line.enqueue_many([NewMessage(b"1"), NewMessage(b"2")])
        line.nack([take_one(line).receipt])
        assert line.lease(10) == []
        clock.advance(7)
        assert drain(line) == [b"1", b"2"]

    @requires("fifo", "fairness")
    def test_a_blocked_key_does_not_block_the_others(self, line: Queue) -> None:
        line.enqueue_many(
            [NewMessage(f"{key}{n}".encode(), fairness_key=key) for n in (1, 2) for key in "ab"]
        )
        line.nack([take_one(line).receipt], delay_s=1000)
        assert len({delivery[:1] for delivery in drain(line)}) == 1
        assert line.length() == 2

    @requires("fifo")
    @pytest.mark.parametrize("how", ["reject", "purge"])
    def test_a_message_that_is_gone_unblocks_its_key(self, line: Queue, how: str) -> None:
        line.enqueue_many([NewMessage(b"1"), NewMessage(b"2")])
        held = take_one(line)
        if how == "reject":
            line.reject([held.receipt])
        else:
            line.purge("leased")
        assert drain(line) == [b"2"]

    @requires("fifo")
    def test_purging_a_message_that_waits_for_its_retry_unblocks_its_key(self, line: Queue) -> None:
        line.enqueue_many([NewMessage(b"1"), NewMessage(b"2")])
        line.nack([take_one(line).receipt], delay_s=1000)
        assert line.purge("delayed") == 1
        assert drain(line) == [b"2"]

    @requires("fifo")
    def test_attempts_that_are_exhausted_unblock_the_key(self, ps: Penstock) -> None:
        line = ps.create_queue("strict", fifo=True, max_attempts=2)
        line.enqueue_many([NewMessage(b"1"), NewMessage(b"2")])
        for _ in range(2):
            line.nack([take_one(line).receipt], delay_s=0)
        assert (line.stats().dead, drain(line)) == (1, [b"2"])

    @requires("fifo", "time_to_live")
    def test_a_message_that_expired_at_the_head_unblocks_its_key(
        self, ps: Penstock, line: Queue, clock: ManualClock
    ) -> None:
        line.enqueue_many([NewMessage(b"1", ttl_s=5), NewMessage(b"2", ttl_s=5), NewMessage(b"3")])
        clock.advance(5)
        assert payloads(line.lease(10)) == [b"3"]
        sweep_all(ps)
        assert line.length() == 1

    @requires("fifo", "delay", "prioritization")
    def test_a_delay_or_priority_of_a_messages_own_is_refused(self, line: Queue) -> None:
        batch = [NewMessage(b"1", delay_s=1), NewMessage(b"2"), NewMessage(b"3", priority=5)]
        assert errors(line.enqueue_many(batch)) == ["InvalidMessage", None, "InvalidMessage"]
        assert errors(line.upsert(batch)) == ["InvalidMessage", None, "InvalidMessage"]
        assert drain(line) == [b"2", b"2"]

    @requires("fifo", "fairness")
    def test_order_is_by_enqueue_for_every_key_under_failures(self, line: Queue, clock: ManualClock) -> None:
        line.enqueue_many([NewMessage(b"%d" % n, fairness_key=f"k{n % 4}") for n in range(40)])
        done: dict[str, list[int]] = {f"k{n}": [] for n in range(4)}
        step = 0
        while line.length():
            for delivery in line.lease(10, lease_s=3):
                step += 1
                if step % 3 == 0 and delivery.attempts < 3:
                    line.nack([delivery.receipt], delay_s=step % 2)
                elif step % 7 == 0 and delivery.attempts < 3:
                    continue  # Left until its lease runs out.
                else:
                    done[delivery.fairness_key].append(int(delivery.payload))
                    ack(line, [delivery])
            clock.advance(1)
        assert done == {f"k{n}": list(range(n, 40, 4)) for n in range(4)}

    @requires("fifo")
    def test_a_message_enqueued_while_its_key_is_in_flight_waits(self, line: Queue) -> None:
        line.enqueue(b"1")
        held = take_one(line)
        line.enqueue(b"2")
        assert line.lease(10) == []
        ack(line, [held])
        assert drain(line) == [b"2"]

    @requires("fifo")
    def test_an_upsert_of_a_waiting_message_keeps_its_place(self, line: Queue) -> None:
        given = "0191f2a0-0000-7000-8000-00000000abcd"
        line.enqueue_many([NewMessage(b"1"), NewMessage(b"2", id=given), NewMessage(b"3")])
        held = take_one(line)
        assert errors(line.upsert([NewMessage(b"two", id=given)])) == [None]
        assert line.lease(10) == []
        ack(line, [held])
        assert drain(line) == [b"two", b"3"]

    @requires("fifo")
    def test_a_redriven_message_joins_the_end(self, line: Queue) -> None:
        line.enqueue_many([NewMessage(b"1"), NewMessage(b"2")])
        line.reject(receipts(take(line, 1)))
        line.redrive()
        assert drain(line) == [b"2", b"1"]
