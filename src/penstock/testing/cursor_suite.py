"""Cursors: named positions in a journal, and what a required one holds back."""

from __future__ import annotations

from typing import Any, cast

import pytest

from penstock import HistoryTruncated, InvalidMessage, ManualClock, NewMessage, Penstock, Queue
from penstock.testing.harness import BackendCase, requires, sweep_all


class CursorSuite(BackendCase):
    """`cursor`."""

    @requires("journal")
    def test_a_new_cursor_stands_before_the_first_event(self, q: Queue) -> None:
        q.enqueue_many([NewMessage()] * 3)
        cursor = q.cursor("archive")
        assert (cursor.name, cursor.required, cursor.position) == ("archive", False, 0)
        assert [event.seq for event in cursor.read()] == [1, 2, 3]

    @requires("journal")
    def test_reading_moves_nothing_until_it_is_committed(self, q: Queue) -> None:
        q.enqueue_many([NewMessage()] * 5)
        cursor = q.cursor("c")
        first = cursor.read(limit=2)
        assert cursor.read(limit=2) == first
        cursor.commit(first[-1].seq)
        assert (cursor.position, [event.seq for event in cursor.read()]) == (2, [3, 4, 5])
        cursor.commit(5)
        assert cursor.read() == []
        q.enqueue(b"")
        assert [event.seq for event in cursor.read()] == [6]

    @requires("journal")
    def test_a_cursor_opened_again_stands_where_it_stood(self, q: Queue) -> None:
        q.enqueue_many([NewMessage()] * 5)
        q.cursor("c").commit(3)
        assert q.cursor("c").position == 3
        assert [event.seq for event in q.cursor("c").read()] == [4, 5]

    @requires("journal", "replay")
    def test_a_cursor_can_go_back_and_read_again(self, q: Queue) -> None:
        q.enqueue_many([NewMessage()] * 5)
        cursor = q.cursor("c")
        everything = cursor.read()
        cursor.commit(5)
        cursor.commit(2)
        assert (cursor.position, cursor.read()) == (2, everything[2:])
        cursor.commit(0)
        assert cursor.read() == everything

    @requires("journal")
    def test_cursors_do_not_move_each_other(self, ps: Penstock, q: Queue) -> None:
        other = ps.create_queue("other")
        for queue in (q, other):
            queue.enqueue_many([NewMessage()] * 4)
        q.cursor("a").commit(3)
        q.cursor("b", required=True).commit(1)
        assert [(one.name, one.position, one.required) for one in q.cursors()] == [
            ("a", 3, False),
            ("b", 1, True),
        ]
        assert other.cursor("a").position == 0

    @requires("journal")
    @pytest.mark.parametrize("wrong", [-1, 6, 1.0, "1", None, True])
    def test_a_cursor_is_not_committed_to_where_no_event_is(self, q: Queue, wrong: object) -> None:
        q.enqueue_many([NewMessage()] * 5)
        cursor = q.cursor("c")
        cursor.commit(2)
        with pytest.raises(InvalidMessage):
            cursor.commit(cast(Any, wrong))
        assert cursor.position == 2

    @requires("journal")
    def test_a_dropped_cursor_stays_dropped(self, q: Queue) -> None:
        q.enqueue(b"")
        cursor = q.cursor("c", required=True)
        cursor.drop()
        for use in (cursor.read, lambda: cursor.position, lambda: cursor.commit(1)):
            with pytest.raises(InvalidMessage, match="'c'"):
                use()
        assert list(q.cursors()) == []
        cursor.drop()

    @requires("journal")
    def test_a_cursor_that_was_dropped_can_be_opened_anew(self, q: Queue) -> None:
        q.enqueue_many([NewMessage()] * 3)
        q.cursor("c").commit(3)
        q.cursor("c").drop()
        assert q.cursor("c").position == 0

    @requires("journal")
    def test_a_cursor_that_is_required_once_stays_required(self, q: Queue) -> None:
        assert not q.cursor("c").required
        assert q.cursor("c", required=True).required
        assert q.cursor("c").required

    @requires("journal")
    def test_retention_never_passes_a_required_cursor(self, ps: Penstock, clock: ManualClock) -> None:
        q = ps.create_queue("short", journal_retention_s=10)
        for _ in range(6):
            q.enqueue(b"")
        cursor = q.cursor("archive", required=True)
        cursor.commit(2)
        clock.advance(1000)
        sweep_all(ps)
        assert (q.stats().first_seq, [event.seq for event in cursor.read()]) == (3, [3, 4, 5, 6])
        assert q.stats().unread_by_required == 4
        cursor.commit(6)
        sweep_all(ps)
        assert (q.stats().first_seq, q.stats().unread_by_required) == (7, 0)

    @requires("journal")
    def test_retention_by_size_never_passes_a_required_cursor(self, ps: Penstock) -> None:
        q = ps.create_queue("small", journal_max_bytes=1)
        cursor = q.cursor("archive", required=True)
        for _ in range(20):
            q.enqueue(b"")
        sweep_all(ps)
        assert len(cursor.read()) == 20
        cursor.drop()
        sweep_all(ps)
        assert q.stats().first_seq == 21

    @requires("journal")
    def test_a_cursor_that_retention_has_passed_says_so(self, ps: Penstock, clock: ManualClock) -> None:
        q = ps.create_queue("short", journal_retention_s=10)
        cursor = q.cursor("slow")
        q.enqueue(b"")
        q.enqueue(b"")
        clock.advance(11)
        q.enqueue(b"")
        sweep_all(ps)
        with pytest.raises(HistoryTruncated, match="'slow'") as caught:
            cursor.read()
        assert (caught.value.position, caught.value.first_seq) == (0, 3)
        cursor.commit(caught.value.first_seq - 1)
        assert [event.seq for event in cursor.read()] == [3]

    @requires("journal")
    def test_a_cursor_made_after_retention_starts_at_what_is_left(
        self, ps: Penstock, clock: ManualClock
    ) -> None:
        q = ps.create_queue("short", journal_retention_s=10)
        q.enqueue(b"")
        clock.advance(11)
        q.enqueue(b"")
        sweep_all(ps)
        assert [event.seq for event in q.cursor("late").read()] == [2]
