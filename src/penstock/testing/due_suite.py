"""The index of what falls due: across queues, earliest first, in pages."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from penstock import InvalidMessage, ManualClock, NewMessage, Penstock, Queue
from penstock.clock import to_ns
from penstock.testing.harness import BackendCase, ack, bury, drain, requires, take, take_one


class DueSuite(BackendCase):
    """`ps.due`."""

    @requires("delay", "time_to_live", "idempotent_enqueue")
    def test_everything_that_falls_due_is_listed_earliest_first_across_queues(
        self, ps: Penstock, clock: ManualClock
    ) -> None:
        a = ps.create_queue("a", retention_s=40, dead_retention_s=50)
        b = ps.create_queue("b", dedup_window_s=60)
        done = a.enqueue(b"")
        ack(a, [take_one(a)])
        dead = bury(a)
        leased = a.enqueue(b"")
        take_one(a, lease_s=20)
        delayed = b.enqueue(b"", delay_s=10)
        expiring = b.enqueue(b"", ttl_s=30)
        b.enqueue(b"", dedup_id="once")
        now_ns = clock.now_ns()
        found = [((item.at_ns - now_ns) / 1e9, item.what, item.queue, item.message_id) for item in ps.due()]
        assert found == [
            (10, "delay", "b", delayed),
            (20, "lease", "a", leased),
            (30, "ttl", "b", expiring),
            (40, "retention", "a", done),
            (50, "retention", "a", dead),
            (60, "dedup", "b", None),
        ]

    @requires("delay")
    def test_since_is_inclusive_and_until_exclusive(self, ps: Penstock, q: Queue, clock: ManualClock) -> None:
        for delay_s in (1, 2, 3):
            q.enqueue(b"", delay_s=delay_s)
        one, two, three = (clock.now_ns() + to_ns(n) for n in (1, 2, 3))
        assert [item.at_ns for item in ps.due(since=two)] == [two, three]
        assert [item.at_ns for item in ps.due(until=three)] == [one, two]
        assert [item.at_ns for item in ps.due(since=two, until=three)] == [two]

    @requires("delay")
    def test_times_can_be_given_as_datetimes_with_a_zone(
        self, ps: Penstock, q: Queue, clock: ManualClock
    ) -> None:
        q.enqueue_many([NewMessage(delay_s=1), NewMessage(delay_s=3)])
        middle = datetime.fromtimestamp(clock.now_ns() / 1e9, UTC) + timedelta(seconds=2)
        assert len(ps.due(since=middle)) == len(ps.due(until=middle)) == 1
        with pytest.raises(InvalidMessage, match="timezone"):
            ps.due(since=middle.replace(tzinfo=None))

    @requires("delay")
    def test_pages_have_every_item_once(self, ps: Penstock, clock: ManualClock) -> None:
        queues = [ps.create_queue(f"q{n}") for n in range(3)]
        for n in range(30):
            queues[n % 3].enqueue(b"", delay_s=1 + n // 10)
        everything = ps.due(limit=1000)
        assert len(everything) == 30
        for limit in (1, 4, 29, 30):
            found, after = [], None
            while page := ps.due(limit=limit, after=after):
                assert len(page) <= limit
                found += page
                after = page[-1].position
                assert len(found) <= 30, "pages that never end"
            assert found == everything
        assert [item.at_ns for item in everything] == sorted(item.at_ns for item in everything)

    def test_what_is_over_is_not_listed(self, ps: Penstock, q: Queue, clock: ManualClock) -> None:
        q.enqueue_many([NewMessage()] * 4)
        acked, nacked, extended, _ = take(q, 4, lease_s=10)
        ack(q, [acked])
        q.nack([nacked.receipt], delay_s=0)
        q.extend([extended.receipt], lease_s=50)
        now_ns = clock.now_ns()
        assert [(item.at_ns - now_ns) // 10**9 for item in ps.due()] == [10, 50]
        clock.advance(60)
        drain(q)
        assert ps.due() == []

    def test_a_limit_is_kept_and_a_wrong_one_refused(self, ps: Penstock, q: Queue) -> None:
        q.enqueue_many([NewMessage()] * 150)
        take(q, 150)
        assert (len(ps.due()), len(ps.due(limit=7)), ps.due(limit=0)) == (100, 7, [])
        for wrong in (-1, "1", 1.5, None):
            with pytest.raises(InvalidMessage):
                ps.due(limit=cast(Any, wrong))

    def test_a_position_that_is_none_is_refused(self, ps: Penstock) -> None:
        for wrong in ("nonsense", "00", "", 7):
            with pytest.raises(InvalidMessage):
                ps.due(after=cast(Any, wrong))

    def test_a_deleted_queue_has_nothing_due(self, ps: Penstock, q: Queue) -> None:
        q.enqueue_many([NewMessage()] * 10)
        take(q, 10)
        ps.delete_queue("q")
        assert ps.due() == []
