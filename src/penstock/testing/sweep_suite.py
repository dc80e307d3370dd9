"""The sweep: bounded work, done under full load, until nothing is left behind."""

from __future__ import annotations

from penstock import ManualClock, NewMessage, Penstock, Queue
from penstock.testing.folding import read_events
from penstock.testing.harness import BackendCase, ack, drain, payloads, receipts, requires, sweep_all, take


class SweepSuite(BackendCase):
    """`sweep`."""

    def test_a_sweep_does_no_more_than_its_budget(self, ps: Penstock, clock: ManualClock) -> None:
        q = ps.create_queue("kept", retention_s=1)
        q.enqueue_many([NewMessage()] * 3000)
        ack(q, take(q, 3000))
        clock.advance(1)
        assert ps.sweep(budget=0) == 0
        assert ps.sweep(budget=1) == 1
        assert 0 < q.stats().done < 3000
        sweeps = 1
        while q.stats().done:
            assert ps.sweep(budget=1) == 1
            sweeps += 1
        assert sweeps > 1
        sweep_all(ps)
        assert ps.sweep() == 0

    def test_expired_leases_come_back_though_the_queue_is_never_idle(
        self, q: Queue, clock: ManualClock
    ) -> None:
        q.enqueue_many([NewMessage(b"lost")] * 5)
        take(q, 5, lease_s=10)
        came_back = 0
        for _ in range(40):
            q.enqueue_many([NewMessage(b"traffic")] * 2)
            deliveries = take(q, 2)
            came_back += payloads(deliveries).count(b"lost")
            ack(q, deliveries)
            clock.advance(0.5)
        assert came_back == 5

    def test_a_sweep_returns_expired_leases_under_constant_traffic(
        self, ps: Penstock, q: Queue, clock: ManualClock
    ) -> None:
        q.enqueue_many([NewMessage(b"lost")] * 5)
        take(q, 5, lease_s=10)
        clock.advance(10)
        other = ps.create_queue("busy")
        for _ in range(10):
            other.enqueue_many([NewMessage()] * 10)
            ps.sweep(budget=1)
            ack(other, take(other, 10))
        assert (q.stats().ready, q.stats().leased) == (5, 0)

    @requires("delay", "time_to_live", "idempotent_enqueue", "journal")
    def test_nothing_is_left_when_everything_is_consumed(self, ps: Penstock, clock: ManualClock) -> None:
        dead = ps.create_queue("dead")
        q = ps.create_queue("work", dead_letter="dead", retention_s=30, max_attempts=2)
        q.enqueue_many(
            [
                NewMessage(
                    b"%d" % n, {"n": str(n)}, f"key-{n % 7}", delay_s=n % 3, ttl_s=500, dedup_id=str(n)
                )
                for n in range(200)
            ]
        )
        while q.length():
            clock.advance(1)
            held = q.lease(20, lease_s=5)
            q.ack(receipts(held[::2]))
            q.nack(receipts(held[1::4]), delay_s=2)
        drain(dead)
        clock.advance(1000)
        sweep_all(ps)
        for queue in (q, dead):
            stats = queue.stats()
            assert (stats.delayed, stats.ready, stats.leased, stats.done, stats.dead) == (0, 0, 0, 0, 0)
            assert list(queue.iter()) == []
        assert (ps.due(), ps.check().messages) == ([], 0)
        finished = [event for event in read_events(q) if event.kind in ("acked", "dead", "expired")]
        assert len({event.message_id for event in finished}) == len(finished) == 200
