"""What time does: delays pass, messages expire, and finished ones are removed."""

from __future__ import annotations

import pytest

from penstock import ManualClock, MessageNotFound, NewMessage, Penstock, Queue
from penstock.testing.folding import kinds_of
from penstock.testing.harness import (
    BackendCase,
    ack,
    drain,
    errors,
    payloads,
    requires,
    sweep_all,
    take,
    take_one,
)


class TimeSuite(BackendCase):
    """`delay_s`, `ttl_s` and `retention_s`."""

    @requires("delay")
    def test_a_delayed_message_is_handed_out_when_its_time_has_come_and_not_before(
        self, q: Queue, clock: ManualClock
    ) -> None:
        q.enqueue_many([NewMessage(b"1", delay_s=0.001), NewMessage(b"2", delay_s=10)])
        assert (q.lease(), q.stats().delayed, q.length()) == ([], 2, 2)
        clock.advance(0.001)
        assert payloads(q.lease(10)) == [b"1"]
        clock.advance(9.998)
        assert q.lease() == []
        clock.advance(0.001)
        assert payloads(q.lease(10)) == [b"2"]

    @requires("delay")
    def test_a_delayed_message_became_visible_when_its_time_had_come_however_late_someone_looks(
        self, q: Queue, clock: ManualClock
    ) -> None:
        message_id = q.enqueue(b"", delay_s=10)
        due_ns = q.get(message_id).visible_at_ns
        clock.advance(25)
        assert (q.get(message_id).state, q.get(message_id).visible_at_ns) == ("ready", due_ns)
        take_one(q)
        assert (q.get(message_id).state, q.get(message_id).visible_at_ns) == ("leased", due_ns)

    @requires("delay")
    def test_messages_are_delivered_by_the_time_they_became_visible(
        self, q: Queue, clock: ManualClock
    ) -> None:
        q.enqueue(b"third", delay_s=20)
        q.enqueue(b"first")
        q.enqueue(b"second", delay_s=10)
        clock.advance(30)
        q.enqueue(b"fourth")
        assert drain(q) == [b"first", b"second", b"third", b"fourth"]

    @requires("delay")
    def test_a_delay_that_falls_due_in_the_middle_of_a_long_line_is_not_forgotten(
        self, q: Queue, clock: ManualClock
    ) -> None:
        q.enqueue(b"")
        drain(q)
        q.enqueue(b"late", delay_s=50)
        # A round number first, where a backend's read-ahead may end: the late one belongs right behind it.
        for _ in range(8):
            q.enqueue_many([NewMessage(b"early")] * 1024)
        clock.advance(100)
        q.enqueue(b"last")
        delivered = drain(q, batch=1000)
        assert delivered[-2:] == [b"late", b"last"]
        assert len(delivered) == 8194

    @requires("delay", "journal")
    def test_no_event_records_that_a_delay_is_over(self, q: Queue, clock: ManualClock) -> None:
        message_id = q.enqueue(b"", delay_s=5)
        clock.advance(5)
        assert q.get(message_id).state == "ready"
        ack(q, [take_one(q)])
        assert kinds_of(q, message_id) == ["enqueued", "leased", "acked"]

    @requires("delay")
    def test_many_delays_that_end_together_all_become_ready(self, q: Queue, clock: ManualClock) -> None:
        q.enqueue_many([NewMessage(b"%d" % n, delay_s=5) for n in range(1300)])
        clock.advance(5)
        assert sorted(drain(q), key=int) == [b"%d" % n for n in range(1300)]

    @requires("time_to_live")
    def test_a_ready_message_past_its_ttl_is_not_delivered(self, q: Queue, clock: ManualClock) -> None:
        message_id = q.enqueue(b"short", ttl_s=5)
        q.enqueue(b"long", ttl_s=5.001)
        clock.advance(5)
        assert payloads(q.lease(10)) == [b"long"]
        with pytest.raises(MessageNotFound):
            q.get(message_id)

    @requires("time_to_live", "delay")
    def test_a_delayed_message_past_its_ttl_expires(self, ps: Penstock, q: Queue, clock: ManualClock) -> None:
        q.enqueue(b"", delay_s=60, ttl_s=5)
        clock.advance(5)
        sweep_all(ps)
        assert (q.length(), ps.due()) == (0, [])
        clock.advance(60)
        assert q.lease() == []

    @requires("time_to_live", "journal")
    def test_an_expired_message_is_recorded_as_such(self, ps: Penstock, q: Queue, clock: ManualClock) -> None:
        swept, leased_over = q.enqueue(b"", ttl_s=1), q.enqueue(b"", ttl_s=100)
        clock.advance(1)
        sweep_all(ps)
        clock.advance(100)
        assert q.lease() == []
        assert kinds_of(q, swept) == kinds_of(q, leased_over) == ["enqueued", "expired"]

    @requires("time_to_live")
    def test_a_leased_message_does_not_expire(self, ps: Penstock, q: Queue, clock: ManualClock) -> None:
        q.enqueue(b"", ttl_s=5)
        delivery = take_one(q, lease_s=100)
        clock.advance(50)
        sweep_all(ps)
        assert q.get(delivery.id).state == "leased"
        ack(q, [delivery])

    @requires("time_to_live")
    def test_a_message_is_not_retried_past_its_ttl(self, q: Queue, clock: ManualClock) -> None:
        q.enqueue_many([NewMessage(ttl_s=5)] * 2)
        nacked, _ = take(q, 2, lease_s=10)
        clock.advance(6)
        assert errors(q.nack([nacked.receipt], delay_s=0)) == [None]
        clock.advance(4)
        assert (q.lease(10), q.length(), q.stats().dead) == ([], 0, 0)

    @requires("time_to_live", "delay")
    def test_a_retry_that_would_come_after_the_ttl_does_not_come(
        self, ps: Penstock, q: Queue, clock: ManualClock
    ) -> None:
        q.enqueue(b"", ttl_s=5)
        q.nack([take_one(q).receipt], delay_s=10)
        clock.advance(10)
        assert (q.lease(), q.length()) == ([], 0)
        sweep_all(ps)
        assert ps.due() == []

    @requires("time_to_live")
    def test_a_retry_inside_the_ttl_comes_and_can_still_expire(self, q: Queue, clock: ManualClock) -> None:
        q.enqueue(b"", ttl_s=10)
        q.nack([take_one(q).receipt], delay_s=2)
        clock.advance(2)
        delivery = take_one(q)
        assert delivery.attempts == 2
        q.nack([delivery.receipt], delay_s=0)
        clock.advance(8)
        assert (q.lease(), q.length()) == ([], 0)

    @requires("time_to_live")
    def test_what_is_alive_is_found_behind_much_that_has_expired(self, q: Queue, clock: ManualClock) -> None:
        q.enqueue_many([NewMessage(ttl_s=1)] * 1300)
        q.enqueue(b"alive")
        clock.advance(1)
        assert payloads(q.lease(1)) == [b"alive"]
        assert q.length() == 1

    def test_an_acked_message_stays_listed_as_done_for_the_queues_retention(
        self, ps: Penstock, clock: ManualClock
    ) -> None:
        q = ps.create_queue("kept", retention_s=60)
        message_id = q.enqueue(b"x", headers={"a": "1"})
        ack(q, [take_one(q)])
        clock.advance(59.999)
        sweep_all(ps)
        (message,) = q.list("done").items
        assert (message.id, message.payload, message.headers) == (message_id, b"x", {"a": "1"})
        assert (q.stats().done, q.length(), q.lease()) == (1, 0, [])
        clock.advance(0.001)
        sweep_all(ps)
        assert (q.stats().done, q.list("done").items, ps.due()) == (0, [], [])
        with pytest.raises(MessageNotFound):
            q.get(message_id)

    @requires("journal")
    def test_the_end_of_retention_is_recorded(self, ps: Penstock, clock: ManualClock) -> None:
        q = ps.create_queue("kept", retention_s=60)
        message_id = q.enqueue(b"")
        ack(q, [take_one(q)])
        clock.advance(60)
        sweep_all(ps)
        assert kinds_of(q, message_id) == ["enqueued", "leased", "acked", "removed"]
