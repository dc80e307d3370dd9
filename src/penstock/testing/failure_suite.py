"""Failures: when a message comes back, how often it is tried, and when it is dead."""

from __future__ import annotations

import random

from penstock import ManualClock, NewMessage, Penstock, Queue, Retry
from penstock.clock import NS_PER_S, to_ns
from penstock.testing.folding import kinds_of, read_events
from penstock.testing.harness import (
    BackendCase,
    OpenStore,
    drain,
    errors,
    ids,
    payloads,
    receipts,
    requires,
    take,
    take_one,
)


def delays_s(q: Queue, clock: ManualClock, failures: int) -> list[float]:
    """How long a message is away after each of so many failures in a row."""
    message_id = q.enqueue(b"")
    out = []
    for _ in range(failures):
        q.nack([take_one(q).receipt])
        out.append((q.get(message_id).visible_at_ns - clock.now_ns()) / NS_PER_S)
        clock.set_ns(q.get(message_id).visible_at_ns)
    return out


class FailureSuite(BackendCase):
    """`nack`, `reject`, retry policies and `max_attempts`."""

    def test_a_nacked_message_is_ready_at_once_where_the_queue_says_nothing_else(self, q: Queue) -> None:
        message_id = q.enqueue(b"x")
        assert errors(q.nack([take_one(q).receipt])) == [None]
        m = q.get(message_id)
        assert (m.state, m.attempts, m.payload) == ("ready", 1, b"x")
        assert take_one(q).attempts == 2

    def test_a_nacked_message_goes_to_the_end_of_its_line(self, q: Queue) -> None:
        q.enqueue_many([NewMessage(b"1"), NewMessage(b"2"), NewMessage(b"3")])
        q.nack([take_one(q).receipt], delay_s=0)
        assert drain(q, batch=1) == [b"2", b"3", b"1"]

    @requires("delay")
    def test_a_nack_with_a_delay_holds_the_message_back_for_it(self, q: Queue, clock: ManualClock) -> None:
        message_id = q.enqueue(b"x")
        q.nack([take_one(q).receipt], delay_s=2.5)
        assert q.get(message_id).state == "delayed"
        assert q.get(message_id).visible_at_ns == clock.now_ns() + to_ns(2.5)
        clock.advance(2.499)
        assert q.lease() == []
        clock.advance(0.001)
        assert take_one(q).attempts == 2

    @requires("delay")
    def test_a_delay_longer_than_the_lease_does_not_run_the_message_twice(
        self, q: Queue, clock: ManualClock
    ) -> None:
        q.enqueue(b"x")
        q.nack([take_one(q, lease_s=5).receipt], delay_s=100)
        for _ in range(19):
            clock.advance(5)
            assert q.lease() == []
        clock.advance(5)
        assert [delivery.attempts for delivery in q.lease(10)] == [2]

    @requires("delay")
    def test_a_nacks_own_delay_wins_over_the_retry_policy(self, ps: Penstock) -> None:
        q = ps.create_queue("slow", retry=Retry(policy="fixed", delay_s=60))
        q.enqueue(b"x")
        q.nack([take_one(q).receipt], delay_s=0)
        assert take_one(q).attempts == 2

    @requires("delay")
    def test_a_fixed_retry_policy_waits_the_same_time_each_time(
        self, ps: Penstock, clock: ManualClock
    ) -> None:
        q = ps.create_queue("fixed", max_attempts=10, retry=Retry(policy="fixed", delay_s=1.5))
        assert delays_s(q, clock, 4) == [1.5] * 4

    @requires("delay")
    def test_an_exponential_retry_policy_doubles_up_to_its_limit(
        self, ps: Penstock, clock: ManualClock
    ) -> None:
        retry = Retry(policy="exponential", delay_s=0.5, max_delay_s=5, jitter=False)
        q = ps.create_queue("exponential", max_attempts=100, retry=retry)
        assert delays_s(q, clock, 7) == [0.5, 1, 2, 4, 5, 5, 5]

    @requires("delay")
    def test_jitter_takes_a_random_part_of_the_exponential_delay(
        self, ps: Penstock, clock: ManualClock
    ) -> None:
        retry = {"policy": "exponential", "delay_s": 8, "max_delay_s": 64}
        q = ps.create_queue("jitter", max_attempts=100, retry=retry)
        found = delays_s(q, clock, 40)
        ceilings = [8, 16, 32, *[64] * 37]
        assert all(0 <= delay <= ceiling for delay, ceiling in zip(found, ceilings, strict=True))
        assert len(set(found)) == 40
        assert min(found[3:]) < 16 < 48 < max(found[3:])

    @requires("delay")
    def test_jitter_comes_from_the_injected_randomness(self, second_store: OpenStore) -> None:
        found = []
        for seed in (5, 5, 6):
            clock = ManualClock()
            retry = Retry(policy="exponential", delay_s=100)
            q = second_store(clock, random.Random(seed)).create_queue("q", max_attempts=100, retry=retry)
            found.append(delays_s(q, clock, 5))
        assert found[0] == found[1] != found[2]

    @requires("delay")
    def test_a_list_of_delays_is_taken_in_turn_and_its_last_one_repeated(
        self, ps: Penstock, clock: ManualClock
    ) -> None:
        q = ps.create_queue("list", max_attempts=10, retry={"policy": "list", "delays_s": [1, 10, 3]})
        assert delays_s(q, clock, 5) == [1, 10, 3, 3, 3]

    @requires("delay")
    def test_each_message_of_a_batch_is_delayed_by_its_own_failures(
        self, ps: Penstock, clock: ManualClock
    ) -> None:
        q = ps.create_queue("list", max_attempts=10, retry={"policy": "list", "delays_s": [0, 5, 50]})
        old = q.enqueue(b"old")
        for _ in range(2):
            q.nack([take_one(q).receipt], delay_s=0)
        new = q.enqueue(b"new")
        q.nack(receipts(take(q, 2)))
        assert q.get(new).state == "ready"
        assert q.get(old).visible_at_ns == clock.now_ns() + to_ns(50)

    @requires("delay")
    def test_a_lease_that_ran_out_is_no_nack_and_its_message_is_ready_at_once(
        self, ps: Penstock, clock: ManualClock
    ) -> None:
        q = ps.create_queue("slow", retry=Retry(policy="fixed", delay_s=1000))
        q.enqueue(b"x")
        take_one(q, lease_s=1)
        clock.advance(1)
        assert take_one(q).attempts == 2

    def test_the_failure_after_the_last_attempt_kills(self, ps: Penstock) -> None:
        q = ps.create_queue("three", max_attempts=3)
        message_id = q.enqueue(b"x")
        for attempt in (1, 2, 3):
            delivery = take_one(q)
            assert delivery.attempts == attempt
            q.nack([delivery.receipt], delay_s=0, reason=f"failure {attempt}")
        m = q.get(message_id)
        assert (m.state, m.attempts, m.reason, m.payload) == ("dead", 3, "failure 3", b"x")
        assert q.lease() == []

    @requires("delay")
    def test_a_last_failure_kills_though_its_nack_asks_for_a_delay(self, ps: Penstock) -> None:
        q = ps.create_queue("one", max_attempts=1)
        message_id = q.enqueue(b"")
        q.nack([take_one(q).receipt], delay_s=60)
        assert q.get(message_id).state == "dead"

    def test_leases_that_run_out_count_as_failures(self, ps: Penstock, clock: ManualClock) -> None:
        q = ps.create_queue("two", max_attempts=2, lease_s=1)
        message_id = q.enqueue(b"")
        for _ in range(2):
            take_one(q)
            clock.advance(1)
        assert q.lease() == []
        m = q.get(message_id)
        assert (m.state, m.attempts) == ("dead", 2)
        assert m.reason

    def test_nacks_and_leases_that_run_out_count_together(self, ps: Penstock, clock: ManualClock) -> None:
        q = ps.create_queue("three", max_attempts=3, lease_s=1)
        message_id = q.enqueue(b"")
        q.nack([take_one(q).receipt], delay_s=0)
        take_one(q)
        clock.advance(1)
        q.nack([take_one(q).receipt], delay_s=0)
        assert q.get(message_id).state == "dead"

    def test_five_attempts_are_what_a_queue_allows_unless_told_otherwise(self, q: Queue) -> None:
        message_id = q.enqueue(b"")
        for _ in range(5):
            assert q.get(message_id).state == "ready"
            q.nack([take_one(q).receipt], delay_s=0)
        assert q.get(message_id).state == "dead"

    def test_an_updated_limit_of_attempts_counts_for_the_next_failure(self, ps: Penstock, q: Queue) -> None:
        message_id = q.enqueue(b"")
        q.nack([take_one(q).receipt], delay_s=0)
        ps.update_queue("q", max_attempts=2)
        q.nack([take_one(q).receipt], delay_s=0)
        assert q.get(message_id).state == "dead"

    def test_a_rejected_message_is_dead_at_once_with_its_reason(self, q: Queue) -> None:
        message_id = q.enqueue(b"x", headers={"a": "1"})
        assert errors(q.reject([take_one(q).receipt], reason="cannot be read: ü")) == [None]
        m = q.get(message_id)
        assert (m.state, m.attempts, m.reason) == ("dead", 1, "cannot be read: ü")
        assert (m.payload, m.headers) == (b"x", {"a": "1"})
        assert (q.lease(), q.length(), q.stats().dead) == ([], 0, 1)

    @requires("journal")
    def test_the_journal_has_reason_attempt_and_consumer_of_a_failure(self, q: Queue) -> None:
        message_id = q.enqueue(b"")
        q.nack([take_one(q, consumer="a").receipt], delay_s=0, reason="first")
        q.reject([take_one(q, consumer="b").receipt], reason="second")
        assert kinds_of(q, message_id) == ["enqueued", "leased", "nacked", "leased", "dead"]
        _, _, nacked, _, dead = read_events(q)
        assert (nacked.reason, nacked.attempt, nacked.consumer) == ("first", 1, "a")
        assert (dead.reason, dead.attempt) == ("second", 2)

    def test_a_nacked_message_shows_its_reason(self, q: Queue) -> None:
        message_id = q.enqueue(b"")
        q.nack([take_one(q).receipt], delay_s=0, reason="busy")
        assert q.get(message_id).reason == "busy"

    def test_one_stale_receipt_does_not_fail_its_neighbours(self, q: Queue) -> None:
        found = ids(q.enqueue_many([NewMessage(b"%d" % n) for n in range(4)]))
        one, two, three, four = receipts(take(q, 4))
        assert errors(q.nack([one, "nonsense", two], delay_s=0)) == [None, "StaleReceipt", None]
        assert errors(q.reject([three, one, four])) == [None, "StaleReceipt", None]
        assert [q.get(one).state for one in found] == ["ready", "ready", "dead", "dead"]

    def test_failures_of_every_sort_are_counted(self, q: Queue, clock: ManualClock) -> None:
        q.enqueue_many([NewMessage()] * 3)
        nacked, rejected, _ = take(q, 3, lease_s=1)
        q.nack([nacked.receipt], delay_s=0)
        q.reject([rejected.receipt])
        clock.advance(1)
        take(q, 2)
        assert q.stats().failed_total == 3

    def test_a_large_batch_fails_together(self, ps: Penstock) -> None:
        count = 1200
        q = ps.create_queue("twice", max_attempts=2)
        q.enqueue_many([NewMessage(b"%d" % n) for n in range(count)])
        q.nack(receipts(take(q, count)), delay_s=0)
        again = take(q, count)
        assert payloads(again) == [b"%d" % n for n in range(count)]
        q.nack(receipts(again))
        assert (q.stats().dead, q.length()) == (count, 0)
