"""Numbers: what `length`, `stats`, `info` and `health` say."""

from __future__ import annotations

from penstock import ManualClock, NewMessage, Penstock, Queue, __version__
from penstock.testing.bulk_suite import one_of_each
from penstock.testing.harness import BackendCase, ack, drain, receipts, requires, take, take_one


class StatsSuite(BackendCase):
    """`length`, `stats`, `info` and `health`."""

    def test_a_new_queue_has_nothing(self, q: Queue) -> None:
        stats = q.stats()
        assert (stats.delayed, stats.ready, stats.leased, stats.done, stats.dead) == (0, 0, 0, 0, 0)
        assert (stats.oldest_ready_age_s, stats.enqueued_total, stats.acked_total) == (None, 0, 0)
        assert (stats.failed_total, stats.enqueue_rate_per_s, q.length()) == (0, 0, 0)

    @requires("delay")
    def test_every_state_is_counted_and_the_length_is_what_is_not_finished(self, ps: Penstock) -> None:
        q = one_of_each(ps)
        stats = q.stats()
        assert (stats.delayed, stats.ready, stats.leased, stats.done, stats.dead) == (1, 1, 1, 1, 1)
        assert q.length() == 3

    def test_totals_count_on(self, q: Queue) -> None:
        q.enqueue_many([NewMessage()] * 10)
        drain(q)
        q.enqueue_many([NewMessage()] * 3)
        q.nack(receipts(take(q, 2)), delay_s=0)
        stats = q.stats()
        assert (stats.enqueued_total, stats.acked_total, stats.failed_total) == (13, 10, 2)

    def test_the_age_of_the_oldest_ready_message_grows_with_the_clock(
        self, q: Queue, clock: ManualClock
    ) -> None:
        q.enqueue(b"old")
        clock.advance(10)
        q.enqueue(b"young")
        assert q.stats().oldest_ready_age_s == 10
        clock.advance(2.5)
        assert q.stats().oldest_ready_age_s == 12.5
        take_one(q)
        assert q.stats().oldest_ready_age_s == 2.5
        take_one(q)
        assert q.stats().oldest_ready_age_s is None

    @requires("delay")
    def test_a_delayed_message_ages_from_the_time_it_became_visible(
        self, q: Queue, clock: ManualClock
    ) -> None:
        q.enqueue(b"", delay_s=60)
        clock.advance(59)
        assert q.stats().oldest_ready_age_s is None
        clock.advance(5)
        assert q.stats().oldest_ready_age_s == 4

    @requires("fairness", "prioritization")
    def test_the_oldest_ready_message_is_found_behind_every_key_and_priority(
        self, q: Queue, clock: ManualClock
    ) -> None:
        for n in range(30):
            q.enqueue(b"", fairness_key=f"key-{n * 7 % 30}", priority=n % 10)
            clock.advance(1)
        for left in range(30, 0, -1):
            oldest = min(message.visible_at_ns for message in q.iter("ready"))
            assert q.stats().oldest_ready_age_s == (clock.now_ns() - oldest) / 1e9, left
            take_one(q)

    def test_a_message_that_came_back_ages_from_its_return(self, q: Queue, clock: ManualClock) -> None:
        q.enqueue(b"")
        clock.advance(10)
        q.nack([take_one(q).receipt], delay_s=0)
        clock.advance(3)
        assert q.stats().oldest_ready_age_s == 3

    def test_rates_are_per_second_over_the_last_minute(self, q: Queue, clock: ManualClock) -> None:
        q.enqueue_many([NewMessage()] * 120)
        clock.advance(30)
        held = take(q, 60)
        ack(q, held[:30])
        q.nack(receipts(held[30:]), delay_s=0)
        stats = q.stats()
        assert stats.enqueue_rate_per_s == 2
        assert (stats.ack_rate_per_s, stats.fail_rate_per_s) == (0.5, 0.5)
        clock.advance(40)
        assert (q.stats().enqueue_rate_per_s, q.stats().ack_rate_per_s) == (0, 0.5)
        clock.advance(60)
        assert q.stats().ack_rate_per_s == 0

    def test_a_rate_forgets_what_is_a_minute_old(self, q: Queue, clock: ManualClock) -> None:
        q.enqueue_many([NewMessage()] * 60)
        clock.advance(59)
        assert q.stats().enqueue_rate_per_s == 1
        clock.advance(1)
        assert q.stats().enqueue_rate_per_s == 0

    @requires("journal")
    def test_the_journals_first_and_last_number_and_size_are_known(self, q: Queue) -> None:
        empty = q.stats()
        assert (empty.first_seq, empty.last_seq) == (1, 0)
        q.enqueue_many([NewMessage()] * 5)
        drain(q)
        stats = q.stats()
        assert (stats.first_seq, stats.last_seq) == (1, 15)
        assert stats.journal_bytes > empty.journal_bytes
        assert (stats.held_bodies, stats.unread_by_required) == (0, 0)

    def test_the_durability_mode_is_shown(self, ps: Penstock, q: Queue) -> None:
        assert q.stats().durability in ("sync", "interval", "os")
        assert q.stats().durability == ps.info().default.durability

    def test_info_says_what_is_open(self, ps: Penstock) -> None:
        info = ps.info()
        assert (info.version, list(info.backends)) == (__version__, ["default"])
        default = info.default
        assert default.backend
        assert default.engine
        assert default.format_version >= 1

    def test_a_store_in_use_is_healthy(self, ps: Penstock, q: Queue) -> None:
        q.enqueue_many([NewMessage()] * 3)
        drain(q)
        health = ps.health()
        assert (health.status, health.reasons) == ("healthy", {})

    def test_each_queue_counts_for_itself(self, ps: Penstock, q: Queue) -> None:
        other = ps.create_queue("other")
        q.enqueue_many([NewMessage()] * 3)
        other.enqueue(b"")
        take_one(other)
        assert (q.length(), q.stats().leased) == (3, 0)
        assert (other.length(), other.stats().leased, other.stats().enqueued_total) == (1, 1, 1)
