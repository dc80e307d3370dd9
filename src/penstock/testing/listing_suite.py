"""Looking: get, peek, list and iter, which change nothing and go through pages that stay stable."""

from __future__ import annotations

from collections import Counter
from typing import Any, cast

import pytest

from penstock import InvalidMessage, ManualClock, MessageNotFound, NewMessage, Penstock, Queue
from penstock.testing.bulk_suite import one_of_each
from penstock.testing.harness import (
    BackendCase,
    ack,
    drain,
    ids,
    payloads,
    receipts,
    requires,
    take,
    take_one,
)

UNKNOWN = "0191f2a0-0000-7000-8000-00000000abcd"


def all_pages(q: Queue, state: str, limit: int, fairness_key: str | None = None) -> list[bytes]:
    """The payloads of a whole listing, page by page."""
    out: list[bytes] = []
    after = None
    while True:
        page = q.list(state, fairness_key=fairness_key, after=after, limit=limit)
        assert len(page.items) <= limit
        out += payloads(page.items)
        if page.next is None:
            return out
        assert page.next != after, "pages that never end"
        after = page.next


class ListingSuite(BackendCase):
    """`get`, `peek`, `list` and `iter`."""

    @requires("delay", "journal")
    def test_looking_changes_nothing(self, ps: Penstock) -> None:
        q = one_of_each(ps)
        before = (q.stats(), list(q.iter()), ps.due(), q.events())
        for message in q.iter():
            q.get(message.id)
            q.list(message.state)
        q.peek(100)
        assert (q.stats(), list(q.iter()), ps.due(), q.events()) == before
        assert payloads(q.lease(10)) == [b"ready"]

    @requires("delay")
    def test_every_state_is_listed_and_says_which_it_is(self, ps: Penstock) -> None:
        q = one_of_each(ps)
        for state in ("delayed", "ready", "leased", "done", "dead"):
            (message,) = q.list(state).items
            assert (message.state, message.payload) == (state, state.encode())
            assert q.get(message.id) == message
        assert payloads(q.list().items) == [b"ready"]

    def test_an_id_that_was_never_here_or_is_gone_is_not_found(self, ps: Penstock, q: Queue) -> None:
        other = ps.create_queue("other")
        elsewhere, gone = other.enqueue(b""), q.enqueue(b"")
        ack(q, [take_one(q)])
        for message_id in (UNKNOWN, elsewhere, gone):
            with pytest.raises(MessageNotFound, match=message_id) as caught:
                q.get(message_id)
            assert "'q'" in str(caught.value)

    def test_pages_have_every_message_once_whatever_their_size(self, q: Queue) -> None:
        q.enqueue_many([NewMessage(b"%d" % n) for n in range(10)])
        for limit in (1, 3, 5, 10, 11):
            assert all_pages(q, "ready", limit) == [b"%d" % n for n in range(10)]

    def test_a_page_is_of_a_hundred_unless_told_otherwise(self, q: Queue) -> None:
        q.enqueue_many([NewMessage()] * 101)
        assert len(q.list().items) == 100

    @requires("fairness", "prioritization")
    def test_ready_messages_are_listed_by_priority_then_key_then_time(self, q: Queue) -> None:
        for payload, priority, key in (
            (b"5", 4, "b"),
            (b"1", 9, "b"),
            (b"3", 4, "a"),
            (b"6", 0, "a"),
            (b"4", 4, "a"),
            (b"2", 9, "b"),
        ):
            q.enqueue(payload, priority=priority, fairness_key=key)
        assert all_pages(q, "ready", 2) == [b"1", b"2", b"3", b"4", b"5", b"6"]

    def test_pages_of_ready_messages_are_stable_while_others_write(self, q: Queue) -> None:
        q.enqueue_many([NewMessage(b"%d" % n) for n in range(40)])
        seen: Counter[bytes] = Counter()
        page = q.list(limit=10)
        while True:
            seen.update(payloads(page.items))
            if page.next is None:
                break
            q.enqueue(b"new")
            ack(q, [take_one(q)])
            q.nack([take_one(q).receipt], delay_s=0)
            page = q.list(limit=10, after=page.next)
        # The writers took from the first ten alone.
        assert all(seen[b"%d" % n] == 1 for n in range(10, 40)), seen

    def test_pages_of_leased_messages_are_stable_while_others_write(self, q: Queue) -> None:
        q.enqueue_many([NewMessage(b"%d" % n) for n in range(60)])
        held = take(q, 40)
        first = q.list("leased", limit=15)
        finished = held[5:20:5]
        ack(q, finished)
        q.nack([held[30].receipt], delay_s=0)
        take(q, 5)
        rest = []
        page = q.list("leased", limit=15, after=first.next)
        while True:
            rest += payloads(page.items)
            if page.next is None:
                break
            page = q.list("leased", limit=15, after=page.next)
        seen = payloads(first.items) + rest
        untouched = {delivery.payload for delivery in held if delivery not in (*finished, held[30])}
        assert len(seen) == len(set(seen))
        assert untouched <= set(seen)

    @requires("fairness", "delay", "prioritization")
    @pytest.mark.parametrize("state", ["delayed", "ready", "leased", "dead"])
    def test_a_listing_can_be_of_one_fairness_key(self, q: Queue, state: str) -> None:
        delay_s = 60 if state == "delayed" else 0
        for n in range(12):
            q.enqueue(
                b"%d" % n, fairness_key=("", "a", "ab", "b/")[n % 4], priority=9 - n // 4, delay_s=delay_s
            )
        if state in ("leased", "dead"):
            held = take(q, 12)
            if state == "dead":
                q.reject(receipts(held))
        for limit in (1, 2, 100):
            for place, key in enumerate(("", "a", "ab", "b/")):
                expected = [b"%d" % n for n in range(place, 12, 4)]
                assert sorted(all_pages(q, state, limit, key), key=int) == expected
            assert all_pages(q, state, limit, "absent") == []

    @requires("fairness")
    def test_a_listing_of_a_rare_key_ends_though_the_queue_is_full_of_others(self, q: Queue) -> None:
        q.enqueue_many([NewMessage(b"%d" % n, fairness_key="busy") for n in range(300)])
        q.enqueue(b"rare", fairness_key="rare")
        take(q, 301)
        assert all_pages(q, "leased", 2, "rare") == [b"rare"]

    def test_iter_goes_through_one_state_or_all_of_them(self, ps: Penstock, q: Queue) -> None:
        q.enqueue_many([NewMessage(b"%d" % n) for n in range(1100)])
        take(q, 50)
        assert payloads(q.iter("ready")) == [b"%d" % n for n in range(50, 1100)]
        assert sorted(payloads(q.iter()), key=int) == [b"%d" % n for n in range(1100)]

    def test_peek_shows_what_is_ready_without_taking_it(self, q: Queue) -> None:
        q.enqueue_many([NewMessage(b"%d" % n) for n in range(15)])
        take(q, 2)
        assert payloads(q.peek()) == [b"%d" % n for n in range(2, 12)]
        assert payloads(q.peek(limit=2, offset=3)) == [b"5", b"6"]
        assert (q.peek(offset=100), q.peek(limit=0)) == ([], [])
        assert payloads(q.lease(3)) == [b"2", b"3", b"4"]

    @requires("delay")
    def test_a_delay_that_is_over_shows_without_a_lease_or_a_sweep(
        self, q: Queue, clock: ManualClock
    ) -> None:
        message_id = q.enqueue(b"x", delay_s=5)
        assert (q.peek(), payloads(q.list("delayed").items)) == ([], [b"x"])
        clock.advance(5)
        assert (payloads(q.peek()), q.list("delayed").items) == ([b"x"], [])
        assert q.get(message_id).state == "ready"
        assert (q.stats().delayed, q.stats().ready) == (0, 1)

    @requires("time_to_live")
    def test_a_message_past_its_ttl_is_not_shown(self, q: Queue, clock: ManualClock) -> None:
        message_id = q.enqueue(b"x", ttl_s=5)
        clock.advance(5)
        assert (q.peek(), q.list().items, list(q.iter()), q.length()) == ([], [], [], 0)
        with pytest.raises(MessageNotFound):
            q.get(message_id)

    def test_a_position_that_is_not_of_the_listing_is_refused(self, q: Queue) -> None:
        q.enqueue_many([NewMessage()] * 3)
        take_one(q)
        position = q.list("ready", limit=1).next
        for wrong in ("nonsense", "", "00", 7):
            with pytest.raises(InvalidMessage):
                q.list("ready", after=cast(Any, wrong))
        with pytest.raises(InvalidMessage):
            q.list("leased", after=position)

    @pytest.mark.parametrize("limit", [0, -1, 1.5, True, "10", None])
    def test_a_limit_that_is_no_number_of_messages_is_refused(self, q: Queue, limit: object) -> None:
        with pytest.raises(InvalidMessage, match="limit"):
            q.list(limit=cast(Any, limit))

    @pytest.mark.parametrize("state", ["READY", "nonsense", "", None, 7])
    def test_a_state_that_does_not_exist_is_refused(self, q: Queue, state: object) -> None:
        with pytest.raises(InvalidMessage):
            q.list(cast(Any, state))

    def test_an_emptied_queue_lists_nothing(self, q: Queue) -> None:
        found = ids(q.enqueue_many([NewMessage()] * 5))
        drain(q)
        assert (list(q.iter()), q.peek(), len(found)) == ([], [], 5)
