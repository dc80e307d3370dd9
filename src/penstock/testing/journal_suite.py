"""A queue's journal: gap-free events, filters, and what retention removes of it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, cast

import pytest

from penstock import InvalidMessage, ManualClock, NewMessage, Penstock, Queue
from penstock.clock import to_ns
from penstock.testing.folding import read_events
from penstock.testing.harness import (
    BackendCase,
    ack,
    drain,
    ids,
    receipts,
    requires,
    sweep_all,
    take,
    take_one,
)

DAY_S = 86_400


class JournalSuite(BackendCase):
    """`events`, `journal_retention_s` and `journal_max_bytes`."""

    @requires("journal")
    def test_events_are_numbered_from_one_without_a_gap(self, q: Queue) -> None:
        q.enqueue_many([NewMessage()] * 7)
        held = take(q, 5)
        ack(q, held[:2])
        q.nack(receipts(held[2:]), delay_s=0)
        q.purge()
        assert [event.seq for event in q.events()] == list(range(1, 25 - 2))
        assert q.stats().last_seq == 22

    @requires("journal")
    def test_an_event_says_what_happened_to_which_message_and_when(
        self, q: Queue, clock: ManualClock
    ) -> None:
        message_id = q.enqueue(b"")
        enqueued_ns = clock.now_ns()
        clock.advance(1)
        delivery = take_one(q, lease_s=10, consumer="worker-1")
        leased_ns = clock.now_ns()
        clock.advance(1)
        q.extend([delivery.receipt], lease_s=20)
        extended_ns = clock.now_ns()
        clock.advance(1)
        ack(q, [delivery])
        events = q.events()
        assert [event.message_id for event in events] == [message_id] * 4
        assert [(event.kind, event.at_ns, event.attempt) for event in events] == [
            ("enqueued", enqueued_ns, 0),
            ("leased", leased_ns, 1),
            ("extended", extended_ns, 1),
            ("acked", clock.now_ns(), 1),
        ]
        assert [event.consumer for event in events[:3]] == ["", "worker-1", "worker-1"]
        assert [event.due_ns for event in events] == [
            enqueued_ns,
            leased_ns + to_ns(10),
            extended_ns + to_ns(20),
            0,
        ]

    @requires("journal")
    def test_a_batch_has_one_event_for_each_message_in_order(self, q: Queue) -> None:
        found = ids(q.enqueue_many([NewMessage()] * 300))
        drain(q)
        events = read_events(q)
        for kind in ("enqueued", "leased", "acked"):
            assert [event.message_id for event in events if event.kind == kind] == found

    @requires("journal")
    def test_events_are_read_in_pages(self, q: Queue) -> None:
        q.enqueue_many([NewMessage()] * 10)
        drain(q, batch=3)
        assert [event.seq for event in q.events(after=4, limit=3)] == [5, 6, 7]
        assert [event.seq for event in q.events(after=28)] == [29, 30]
        assert (list(q.events(after=30)), list(q.events(after=1000)), list(q.events(limit=0))) == ([], [], [])

    @requires("journal")
    def test_a_read_is_of_a_thousand_events_unless_told_otherwise(self, q: Queue) -> None:
        q.enqueue_many([NewMessage()] * 1001)
        assert len(q.events()) == 1000
        assert len(q.events(limit=5000)) == 1001

    @requires("journal")
    def test_events_can_be_of_some_kinds_and_of_a_time(self, q: Queue, clock: ManualClock) -> None:
        times = []
        for _ in range(3):
            times.append(clock.now_ns())
            q.enqueue(b"")
            ack(q, [take_one(q)])
            clock.advance(10)
        assert [event.seq for event in q.events(kinds=["acked", "enqueued"])] == [1, 3, 4, 6, 7, 9]
        assert [event.seq for event in q.events(since=times[1], until=times[2])] == [4, 5, 6]
        second = datetime.fromtimestamp(times[1] / 1e9, UTC)
        assert [event.seq for event in q.events(kinds=["leased"], since=second)] == [5, 8]
        with pytest.raises(InvalidMessage):
            q.events(kinds="acked")

    @requires("journal")
    @pytest.mark.parametrize("wrong", [-1, 1.5, "1", None, True])
    def test_a_number_that_is_none_is_refused(self, q: Queue, wrong: object) -> None:
        with pytest.raises(InvalidMessage):
            q.events(after=cast(Any, wrong))
        with pytest.raises(InvalidMessage):
            q.events(limit=cast(Any, wrong))
        with pytest.raises(InvalidMessage, match="limit is"):
            q.events(kinds=["acked"], limit=cast(Any, wrong))

    @requires("journal")
    def test_each_queue_has_a_journal_of_its_own(self, ps: Penstock, q: Queue) -> None:
        other = ps.create_queue("other")
        q.enqueue(b"")
        message_id = other.enqueue(b"")
        assert [(event.seq, event.message_id) for event in other.events()] == [(1, message_id)]

    @requires("journal")
    def test_events_past_the_journals_age_are_removed_and_the_rest_keeps_its_numbers(
        self, ps: Penstock, clock: ManualClock
    ) -> None:
        q = ps.create_queue("short", journal_retention_s=100)
        old = q.enqueue(b"old")
        clock.advance(60)
        q.enqueue(b"young")
        clock.advance(50)
        sweep_all(ps)
        stats = q.stats()
        assert (stats.first_seq, stats.last_seq) == (2, 2)
        assert [event.seq for event in q.events()] == [2]
        assert q.get(old).payload == b"old"
        assert drain(q) == [b"old", b"young"]
        assert q.stats().last_seq == 6

    @requires("journal")
    def test_a_journal_that_was_emptied_goes_on_counting(self, ps: Penstock, clock: ManualClock) -> None:
        q = ps.create_queue("short", journal_retention_s=1)
        q.enqueue_many([NewMessage()] * 3)
        drain(q)
        clock.advance(2)
        sweep_all(ps)
        assert (q.stats().first_seq, q.stats().last_seq, list(q.events())) == (10, 9, [])
        assert q.stats().journal_bytes == 0
        q.enqueue(b"")
        assert [event.seq for event in q.events()] == [10]

    @requires("journal")
    def test_a_journal_is_kept_for_seven_days_unless_told_otherwise(
        self, ps: Penstock, q: Queue, clock: ManualClock
    ) -> None:
        forever = ps.create_queue("forever", journal_retention_s=None)
        for queue in (q, forever):
            queue.enqueue(b"")
        clock.advance(7 * DAY_S - 1)
        sweep_all(ps)
        assert q.stats().first_seq == 1
        clock.advance(2)
        sweep_all(ps)
        assert q.stats().first_seq == 2
        clock.advance(3650 * DAY_S)
        sweep_all(ps)
        assert forever.stats().first_seq == 1

    @requires("journal")
    def test_a_journal_past_its_size_loses_its_oldest_events(self, ps: Penstock) -> None:
        q = ps.create_queue("small", journal_max_bytes=4096, journal_retention_s=None)
        for _ in range(200):
            q.enqueue(b"")
        before = q.stats()
        assert before.journal_bytes > 4096
        sweep_all(ps)
        stats = q.stats()
        assert 0 < stats.journal_bytes <= 4096
        assert 1 < stats.first_seq <= stats.last_seq == 200
        assert q.length() == 200

    @requires("journal")
    def test_every_one_of_many_journals_gets_its_turn(self, ps: Penstock, clock: ManualClock) -> None:
        queues = [ps.create_queue(f"q{n:02}", journal_retention_s=10) for n in range(40)]
        for queue in queues:
            queue.enqueue(b"")
        clock.advance(11)
        for _ in range(40):
            ps.sweep(budget=5)
        assert [queue.stats().first_seq for queue in queues] == [2] * 40

    @requires("journal")
    def test_what_is_left_of_a_journal_folds_from_its_base(self, ps: Penstock, clock: ManualClock) -> None:
        dead = ps.create_queue("dead")
        q = ps.create_queue("short", journal_retention_s=10, retention_s=1000, dead_letter="dead")
        for n in range(30):
            q.enqueue_many([NewMessage(b"%d" % n)] * 3)
            held = take(q, 2)
            ack(q, held[:1])
            q.reject([held[1].receipt])
            clock.advance(1)
            ps.sweep()
            assert ps.check().ok
        assert q.stats().first_seq > 1
        assert dead.length() == 30
