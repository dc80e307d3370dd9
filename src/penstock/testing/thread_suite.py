"""Threads: one Penstock and its queues are shared by many, and nothing is lost or doubled."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable

from penstock import (
    ManualClock,
    NewMessage,
    Penstock,
    PenstockError,
    Queue,
)
from penstock.testing.background import LIMIT_S, Background, together, wait_until
from penstock.testing.folding import read_events
from penstock.testing.harness import BackendCase, ids, receipts, requires, sweep_all, take

PRODUCERS, CONSUMERS, EACH = 3, 3, 200


class ThreadSuite(BackendCase):
    """Concurrent callers."""

    def test_producers_and_consumers_lose_nothing_and_double_nothing(
        self, ps: Penstock, clock: ManualClock
    ) -> None:
        q = ps.create_queue("busy", max_attempts=1000)
        total = PRODUCERS * EACH
        done: list[bytes] = []
        finished = threading.Event()

        def produce(producer: int) -> Callable[[], None]:
            def run() -> None:
                for n in range(0, EACH, 4):
                    q.enqueue(b"%d-%d" % (producer, n))
                    q.enqueue_many([NewMessage(b"%d-%d" % (producer, n + i)) for i in (1, 2, 3)])

            return run

        def consume() -> None:
            step = 0
            while not finished.is_set():
                held = q.lease(7, wait_s=1)
                step += 1
                good = held[1:] if step % 5 == 0 else held
                q.nack(receipts(held[: len(held) - len(good)]), delay_s=0)
                assert all(outcome.ok for outcome in q.ack(receipts(good)))
                done.extend(delivery.payload for delivery in good)
                if len(done) == total:
                    finished.set()

        consumers = [Background(consume) for _ in range(CONSUMERS)]
        together(*(produce(n) for n in range(PRODUCERS)))
        finished.wait(LIMIT_S)
        finished.set()
        wait_until(lambda: release(clock, consumers))
        for consumer in consumers:
            consumer.result()
        assert sorted(done) == sorted(b"%d-%d" % (p, n) for p in range(PRODUCERS) for n in range(EACH))
        assert (q.length(), q.stats().acked_total) == (0, total)

    @requires("fifo", "fairness")
    def test_consumers_of_a_fifo_queue_keep_the_order_of_every_key(
        self, ps: Penstock, clock: ManualClock
    ) -> None:
        q = ps.create_queue("line", fifo=True)
        expected = {f"k{key}": list(range(40)) for key in range(5)}
        done: dict[str, list[int]] = {key: [] for key in expected}
        finished = threading.Event()

        def consume() -> None:
            while not finished.is_set():
                for delivery in q.lease(3, wait_s=1):
                    done[delivery.fairness_key].append(int(delivery.payload))
                    assert q.ack([delivery.receipt])[0].ok
                if sum(map(len, done.values())) == 200:
                    finished.set()

        consumers = [Background(consume) for _ in range(CONSUMERS)]
        for n in range(40):
            q.enqueue_many([NewMessage(b"%d" % n, fairness_key=key) for key in expected])
        finished.wait(LIMIT_S)
        finished.set()
        wait_until(lambda: release(clock, consumers))
        for consumer in consumers:
            consumer.result()
        assert done == expected

    @requires("journal", "delay")
    def test_looking_while_others_write_sees_no_half_done_change(self, ps: Penstock, q: Queue) -> None:
        other = ps.create_queue("other")
        stop = threading.Event()

        def write() -> None:
            for n in range(60):
                q.enqueue_many([NewMessage(b"%d" % n), NewMessage(b"%d" % n, delay_s=5)])
                held = q.lease(2)
                q.nack(receipts(held[:1]), delay_s=0)
                q.ack(receipts(held[1:]))
                q.move([message.id for message in q.peek(1)], target="other")
            stop.set()

        def look() -> int:
            rounds = 0
            while not stop.is_set():
                stats = q.stats()
                assert min(stats.delayed, stats.ready, stats.leased) >= 0
                for message in q.peek(5):
                    assert message.state == "ready"
                after = max(0, stats.last_seq - 10)
                seqs = [event.seq for event in q.events(after=after)]
                assert seqs == list(range(after + 1, after + 1 + len(seqs)))
                rounds += 1
            return rounds

        threads = [Background(look), Background(look)]
        writer = Background(write)
        writer.result()
        assert all(thread.result() >= 0 for thread in threads)
        assert q.length() + other.length() + q.stats().acked_total == 120

    def test_a_purge_takes_what_was_there_when_it_was_called(self, q: Queue) -> None:
        q.enqueue_many([NewMessage()] * 4000)
        purging = Background(q.purge)
        wait_until(lambda: q.length() < 4000)
        late = ids(q.enqueue_many([NewMessage()] * 10))
        assert purging.result() == 4000
        assert ids(q.iter()) == late

    def test_bulk_operations_beside_producers_count_exactly_what_they_took(
        self, ps: Penstock, q: Queue
    ) -> None:
        target = ps.create_queue("target")
        q.enqueue_many([NewMessage()] * 1200)

        def produce() -> int:
            for _ in range(60):
                q.enqueue_many([NewMessage()] * 5)
            return 0

        def move() -> int:
            found = [message.id for message in q.peek(limit=600, offset=100)]
            return sum(outcome.ok for outcome in q.move(found, target="target"))

        _, moved, purged = together(produce, move, q.purge)
        assert target.length() == moved
        assert q.length() + moved + purged == 1500
        assert purged + moved >= 1200

    def test_sweeps_beside_the_traffic_disturb_nothing(self, ps: Penstock, clock: ManualClock) -> None:
        q = ps.create_queue("busy", max_attempts=1000)

        def work() -> int:
            done = 0
            for n in range(80):
                q.enqueue(b"%d" % n)
                held = q.lease(2, lease_s=0.001 if n % 7 == 0 else 30)
                done += sum(outcome.ok for outcome in q.ack(receipts(held if n % 7 else held[1:])))
            return done

        def tidy() -> int:
            for _ in range(80):
                clock.advance(0.001)
                ps.sweep()
            return 0

        done = sum(together(work, work, tidy))
        sweep_all(ps)
        clock.advance(31)
        rest = take(q, q.length()) if q.length() else []
        assert done + len(rest) == 160

    def test_polls_that_end_together_all_end(self, q: Queue, clock: ManualClock) -> None:
        polls = [Background(lambda: q.lease(wait_s=5)) for _ in range(8)]
        wait_until(lambda: clock.waiters() == 8)
        clock.advance(5)
        assert [poll.result() for poll in polls] == [[]] * 8

    @requires("journal")
    def test_the_journal_has_every_change_of_every_thread(self, q: Queue) -> None:
        def work() -> None:
            for _ in range(30):
                q.enqueue(b"")
                q.ack(receipts(take(q)))

        together(work, work, work)
        kinds = Counter(str(event.kind) for event in read_events(q))
        assert kinds["enqueued"] == kinds["leased"] == 90
        assert kinds["acked"] == 90 - q.stats().leased == 90

    def test_deleting_a_queue_under_traffic_fails_its_callers_and_nobody_else(
        self, ps: Penstock, q: Queue
    ) -> None:
        other = ps.create_queue("other")
        deleted = threading.Event()

        def work(queue: Queue) -> Callable[[], int]:
            def run() -> int:
                for n in range(200):
                    try:
                        queue.enqueue(b"")
                        queue.ack(receipts(queue.lease(1)))
                    except PenstockError:
                        assert deleted.is_set()
                        return n
                return 200

            return run

        def delete() -> int:
            deleted.set()
            ps.delete_queue("q")
            return 0

        results = together(work(q), work(other), delete)
        assert results[1] == 200
        assert [settings.name for settings in ps.queues()] == ["other"]


def release(clock: ManualClock, threads: list[Background[None]]) -> bool:
    """Let polls that still wait run out; True when no thread is left."""
    clock.advance(2)
    return not any(thread.running for thread in threads)
