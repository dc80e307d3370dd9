"""Priorities: higher levels first, and no lower one starves."""

from __future__ import annotations

import pytest

from penstock import NewMessage, Penstock, Queue
from penstock.testing.harness import BackendCase, drain, requires, take, take_one

#: A level that has work gets at least one in this many deliveries.
STARVATION_BOUND = 20


def longest_waits(levels: list[int], served: list[int]) -> dict[int, int]:
    """For each level, the most deliveries in a row that it was passed over, up to its last own one."""
    longest = dict.fromkeys(levels, 0)
    for level in levels:
        waited = 0
        for one in served:
            if one == level:
                longest[level] = max(longest[level], waited)
                waited = 0
            else:
                waited += 1
        longest[level] = max(longest[level], waited if level not in served else 0)
    return longest


class PrioritySuite(BackendCase):
    """`priority`."""

    @requires("prioritization")
    def test_higher_priorities_are_delivered_first(self, q: Queue) -> None:
        for priority in (4, 0, 9, 5, 3, 8, 1, 7, 2, 6):
            q.enqueue(b"%d" % priority, priority=priority)
        assert drain(q, batch=1) == [b"%d" % priority for priority in range(9, -1, -1)]

    @requires("prioritization")
    def test_a_priority_between_the_lowest_and_the_highest_is_what_a_message_has_by_itself(
        self, q: Queue
    ) -> None:
        q.enqueue(b"low", priority=3)
        q.enqueue(b"plain")
        q.enqueue(b"high", priority=5)
        assert drain(q) == [b"high", b"plain", b"low"]

    @requires("prioritization")
    def test_a_late_message_of_a_higher_priority_overtakes(self, q: Queue) -> None:
        q.enqueue_many([NewMessage(b"low", priority=1)] * 5)
        take_one(q)
        q.enqueue(b"high", priority=2)
        assert take_one(q).payload == b"high"

    @requires("prioritization")
    def test_inside_a_priority_messages_keep_their_order(self, q: Queue) -> None:
        q.enqueue_many([NewMessage(b"%d" % n, priority=7) for n in range(10)])
        assert drain(q, batch=3) == [b"%d" % n for n in range(10)]

    @requires("prioritization")
    @pytest.mark.parametrize("batch", [1, 3, 19, 50])
    @pytest.mark.parametrize("levels", [[9, 0], [9, 5, 4, 0], list(range(10))], ids=["two", "four", "ten"])
    def test_a_lower_priority_with_work_gets_at_least_one_in_twenty_deliveries(
        self, q: Queue, batch: int, levels: list[int]
    ) -> None:
        top = max(levels)
        for level in levels:
            q.enqueue_many([NewMessage(priority=level)] * (400 if level == top else 25))
        served: list[int] = []
        while len(served) < 300:
            served += [delivery.priority for delivery in take(q, batch)]
        waits = longest_waits(levels, served)
        assert max(waits.values()) < STARVATION_BOUND, waits
        assert all(served.count(top) > served.count(level) for level in levels if level != top)

    @requires("prioritization")
    def test_a_lower_priority_is_served_while_new_high_ones_never_stop(self, q: Queue) -> None:
        q.enqueue_many([NewMessage(b"low", priority=0)] * 3)
        served = []
        for _ in range(80):
            q.enqueue(b"high", priority=9)
            served.append(take_one(q).payload)
        assert served.count(b"low") == 3
        assert served[:STARVATION_BOUND].count(b"low") == 1

    @requires("prioritization")
    def test_a_lower_priority_gets_no_more_than_it_needs_to_live(self, q: Queue) -> None:
        for level in (9, 0):
            q.enqueue_many([NewMessage(b"%d" % level, priority=level)] * 200)
        served = [delivery.payload for delivery in take(q, 200)]
        assert 10 <= served.count(b"0") <= 20

    @requires("prioritization")
    def test_a_message_that_came_back_keeps_its_priority(self, q: Queue) -> None:
        q.enqueue(b"high", priority=8)
        q.enqueue(b"low", priority=2)
        q.nack([take_one(q).receipt], delay_s=0)
        assert drain(q) == [b"high", b"low"]

    @requires("prioritization")
    def test_queues_do_not_share_their_turns(self, ps: Penstock, q: Queue) -> None:
        other = ps.create_queue("other")
        for queue in (q, other):
            queue.enqueue_many([NewMessage(b"low", priority=0)] * 2)
            queue.enqueue_many([NewMessage(b"high", priority=9)] * 40)
        for _ in range(STARVATION_BOUND):
            take_one(other)
        served = [take_one(q).payload for _ in range(STARVATION_BOUND)]
        assert served.count(b"low") == 1
