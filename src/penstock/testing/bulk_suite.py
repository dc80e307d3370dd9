"""Move and purge: many messages at once, one answer each, nothing lost and nothing twice."""

from __future__ import annotations

from typing import Any, cast

import pytest

from penstock import (
    InvalidMessage,
    ManualClock,
    MessageLeased,
    MessageNotFound,
    NewMessage,
    Penstock,
    Queue,
    QueueNotFound,
)
from penstock.clock import to_ns
from penstock.testing.folding import kinds_of, read_events
from penstock.testing.harness import (
    BackendCase,
    ack,
    bury,
    drain,
    errors,
    ids,
    receipts,
    requires,
    take,
    take_one,
)

UNKNOWN = "0191f2a0-0000-7000-8000-00000000abcd"


class MoveSuite(BackendCase):
    """`move`."""

    @pytest.fixture
    def target(self, ps: Penstock) -> Queue:
        return ps.create_queue("target")

    def test_a_moved_message_is_the_same_in_the_other_queue(self, q: Queue, target: Queue) -> None:
        message_id = q.enqueue(b"x", headers={"a": "1"})
        assert errors(q.move([message_id], target="target")) == [None]
        with pytest.raises(MessageNotFound):
            q.get(message_id)
        m = target.get(message_id)
        assert (m.state, m.payload, m.headers, m.queue) == ("ready", b"x", {"a": "1"}, "target")
        assert (q.length(), drain(target)) == (0, [b"x"])

    @requires("fairness", "prioritization", "time_to_live", "idempotent_enqueue")
    def test_a_moved_message_keeps_its_settings(self, q: Queue, target: Queue, clock: ManualClock) -> None:
        message_id = q.enqueue(b"x", fairness_key="k", weight=3, priority=8, ttl_s=60, dedup_id="d")
        before = q.get(message_id)
        clock.advance(1)
        q.move([message_id], target="target")
        after = target.get(message_id)
        for field in ("fairness_key", "weight", "priority", "expires_at_ns", "dedup_id", "enqueued_at_ns"):
            assert getattr(after, field) == getattr(before, field), field

    @requires("delay")
    def test_a_delayed_message_is_moved_with_its_time(
        self, q: Queue, target: Queue, clock: ManualClock
    ) -> None:
        message_id = q.enqueue(b"x", delay_s=10)
        visible_at_ns = q.get(message_id).visible_at_ns
        clock.advance(4)
        assert errors(q.move([message_id], target="target")) == [None]
        assert (target.get(message_id).state, target.lease()) == ("delayed", [])
        assert target.get(message_id).visible_at_ns == visible_at_ns
        clock.advance(6)
        assert drain(target) == [b"x"]

    def test_a_dead_message_is_ready_in_the_queue_that_it_is_moved_to(self, q: Queue, target: Queue) -> None:
        message_id = bury(q, b"x")
        assert errors(q.move([message_id], target="target")) == [None]
        assert (q.stats().dead, take_one(target).id) == (0, message_id)

    def test_each_item_of_a_move_has_its_own_answer(self, q: Queue, target: Queue) -> None:
        held = q.enqueue(b"held")
        delivery = take_one(q)
        ready = q.enqueue(b"ready")
        outcomes = list(q.move([held, UNKNOWN, "nonsense", ready, ready], target="target"))
        assert errors(outcomes) == [
            "MessageLeased",
            "MessageNotFound",
            "InvalidMessage",
            None,
            "MessageNotFound",
        ]
        assert isinstance(outcomes[0].error, MessageLeased)
        assert UNKNOWN in str(outcomes[1].error)
        assert (q.get(held).state, target.get(ready).state) == ("leased", "ready")
        ack(q, [delivery])

    def test_a_message_that_the_target_has_already_stays(self, q: Queue, target: Queue) -> None:
        q.enqueue(b"mine", id=UNKNOWN)
        target.enqueue(b"theirs", id=UNKNOWN)
        (outcome,) = q.move([UNKNOWN], target="target")
        assert not outcome.ok
        assert (q.get(UNKNOWN).payload, target.get(UNKNOWN).payload) == (b"mine", b"theirs")

    def test_a_move_needs_another_queue_that_exists(self, q: Queue) -> None:
        message_id = q.enqueue(b"")
        with pytest.raises(QueueNotFound, match="nowhere"):
            q.move([message_id], target="nowhere")
        with pytest.raises(InvalidMessage):
            q.move([message_id], target="q")
        assert q.get(message_id).state == "ready"

    def test_a_message_that_came_back_is_moved(self, q: Queue, target: Queue) -> None:
        message_id = q.enqueue(b"x")
        q.nack([take_one(q).receipt], delay_s=0, reason="why")
        assert errors(q.move([message_id], target="target")) == [None]
        assert drain(target) == [b"x"]

    def test_a_move_of_more_than_one_step_can_take(self, q: Queue, target: Queue) -> None:
        found = ids(q.enqueue_many([NewMessage(b"%d" % n) for n in range(1200)]))
        outcomes = q.move([*found[:700], UNKNOWN, *found[700:]], target="target")
        assert errors(outcomes) == [None] * 700 + ["MessageNotFound"] + [None] * 500
        assert (q.length(), target.length()) == (0, 1200)
        assert drain(target) == [b"%d" % n for n in range(1200)]

    def test_a_message_can_be_moved_away_and_back(self, q: Queue, target: Queue) -> None:
        message_id = q.enqueue(b"x")
        for _ in range(3):
            assert errors(q.move([message_id], target="target")) == [None]
            assert errors(target.move([message_id], target="q")) == [None]
        assert (drain(q), target.length()) == ([b"x"], 0)

    def test_a_message_from_before_the_clock_went_back_is_moved(
        self, q: Queue, target: Queue, clock: ManualClock
    ) -> None:
        message_id = q.enqueue(b"x")
        clock.set_ns(clock.now_ns() - to_ns(5))
        assert errors(q.move([message_id], target="target")) == [None]
        assert (q.length(), drain(target)) == (0, [b"x"])

    @requires("journal")
    def test_both_journals_record_a_move(self, q: Queue, target: Queue) -> None:
        message_id = q.enqueue(b"")
        q.move([message_id], target="target")
        assert (kinds_of(q, message_id), kinds_of(target, message_id)) == (
            ["enqueued", "moved"],
            ["enqueued"],
        )
        assert (read_events(q)[-1].extra, read_events(target)[-1].extra) == ("target", "q")


class PurgeSuite(BackendCase):
    """`purge`."""

    @requires("delay")
    def test_purge_removes_what_waits_and_nothing_else(self, ps: Penstock) -> None:
        q = one_of_each(ps)
        assert q.purge() == 2
        stats = q.stats()
        assert (stats.delayed, stats.ready, stats.leased, stats.done, stats.dead) == (0, 0, 1, 1, 1)

    @requires("delay")
    @pytest.mark.parametrize("state", ["delayed", "ready", "leased", "done", "dead"])
    def test_purge_of_a_state_removes_that_one_alone(self, ps: Penstock, state: str) -> None:
        q = one_of_each(ps)
        (message_id,) = ids(q.iter(state))
        assert q.purge(state=state) == 1
        stats = q.stats()
        left = {name: getattr(stats, name) for name in ("delayed", "ready", "leased", "done", "dead")}
        assert left == {name: int(name != state) for name in left}
        with pytest.raises(MessageNotFound):
            q.get(message_id)

    def test_a_receipt_of_a_purged_message_is_stale(self, q: Queue) -> None:
        q.enqueue(b"")
        delivery = take_one(q)
        assert q.purge("leased") == 1
        assert errors(q.ack([delivery.receipt])) == ["StaleReceipt"]

    def test_purge_removes_more_than_one_step_can_take(self, ps: Penstock, q: Queue) -> None:
        q.enqueue_many([NewMessage()] * 1700)
        q.nack(receipts(take(q, 600)), delay_s=0)
        assert q.purge() == 1700
        assert (q.length(), q.lease(), ps.due()) == (0, [], [])
        q.enqueue(b"new")
        assert drain(q) == [b"new"]

    @requires("delay")
    def test_purge_removes_a_message_that_was_delayed_and_then_replaced(
        self, q: Queue, clock: ManualClock
    ) -> None:
        message_id = q.enqueue(b"old", delay_s=10)
        clock.advance(20)
        assert q.stats().ready == 1
        assert errors(q.upsert([NewMessage(b"new", id=message_id)])) == [None]
        assert (q.purge(), q.length()) == (1, 0)

    def test_purge_of_an_empty_queue_removes_nothing(self, q: Queue) -> None:
        before = q.stats()
        assert (q.purge(), q.purge("dead")) == (0, 0)
        assert q.stats() == before

    def test_purge_of_a_state_that_does_not_exist_is_refused(self, q: Queue) -> None:
        q.enqueue(b"")
        for wrong in ("nonsense", "", 7, "READY"):
            with pytest.raises(InvalidMessage):
                q.purge(state=cast(Any, wrong))
        assert q.length() == 1

    def test_purge_leaves_other_queues_alone(self, ps: Penstock, q: Queue) -> None:
        other = ps.create_queue("q2")
        other.enqueue(b"x")
        q.enqueue(b"")
        assert q.purge() == 1
        assert drain(other) == [b"x"]

    @requires("time_to_live", "idempotent_enqueue", "delay")
    def test_purged_messages_leave_no_due_times(self, ps: Penstock, q: Queue, clock: ManualClock) -> None:
        q.enqueue_many([NewMessage(ttl_s=60), NewMessage(delay_s=10, ttl_s=60), NewMessage(delay_s=5)])
        take_one(q)
        q.purge()
        q.purge("leased")
        assert ps.due() == []
        clock.advance(100)
        assert q.lease() == []

    @requires("journal")
    def test_the_journal_records_what_was_purged(self, q: Queue) -> None:
        message_id = q.enqueue(b"")
        q.purge()
        assert kinds_of(q, message_id) == ["enqueued", "purged"]


def one_of_each(ps: Penstock) -> Queue:
    """A queue with one message in every state that is kept."""
    q = ps.create_queue("mixed", retention_s=1000)
    q.enqueue(b"done")
    ack(q, [take_one(q)])
    bury(q, b"dead")
    q.enqueue(b"leased")
    take_one(q)
    q.enqueue(b"ready")
    q.enqueue(b"delayed", delay_s=60)
    return q
