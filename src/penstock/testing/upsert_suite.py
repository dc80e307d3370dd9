"""Upsert: create, or replace body and settings of a message that nobody holds."""

from __future__ import annotations

import uuid
from typing import Any, cast

import pytest

from penstock import ManualClock, MessageLeased, MessageNotFound, NewMessage, Penstock, Queue
from penstock.clock import to_ns
from penstock.testing.folding import kinds_of
from penstock.testing.harness import (
    BackendCase,
    ack,
    bury,
    drain,
    errors,
    ids,
    payloads,
    requires,
    sweep_all,
    take,
    take_one,
)

GIVEN = "0191f2a0-0000-7000-8000-00000000abcd"
OTHER = "0191f2a0-0000-7000-8000-00000000abce"


class UpsertSuite(BackendCase):
    """`upsert`."""

    def test_upsert_creates_what_does_not_exist(self, q: Queue) -> None:
        assert ids(q.upsert([NewMessage(b"x", id=GIVEN)])) == [GIVEN]
        assert (q.get(GIVEN).payload, q.get(GIVEN).state) == (b"x", "ready")

    def test_upsert_without_an_id_creates_a_message_under_a_new_one(self, q: Queue) -> None:
        first, second = ids(q.upsert([NewMessage(b"1"), NewMessage(b"2")]))
        assert first != second
        assert drain(q) == [b"1", b"2"]

    def test_upsert_replaces_the_body_of_a_ready_message(self, q: Queue) -> None:
        q.enqueue(b"old", headers={"a": "1", "b": "1"}, id=GIVEN)
        assert ids(q.upsert([NewMessage(b"new", {"a": "2"}, id=GIVEN)])) == [GIVEN]
        assert (q.get(GIVEN).payload, q.get(GIVEN).headers) == (b"new", {"a": "2"})
        assert q.length() == 1
        assert drain(q) == [b"new"]

    def test_an_id_that_comes_twice_in_one_call_is_one_message_however_it_is_written(self, q: Queue) -> None:
        given: Any = uuid.UUID(GIVEN)
        twice = [NewMessage(b"1", id=given), NewMessage(b"2", id=given), NewMessage(b"3", id=GIVEN)]
        assert [result.id for result in q.upsert(twice)] == [GIVEN] * 3
        assert q.stats().ready == 1
        assert drain(q) == [b"3"]

    @requires("fairness", "prioritization", "time_to_live")
    def test_upsert_replaces_every_setting(self, q: Queue, clock: ManualClock) -> None:
        q.enqueue(b"old", fairness_key="a", weight=2, priority=1, ttl_s=10, id=GIVEN)
        q.enqueue(b"other", priority=8)
        new = NewMessage(b"new", fairness_key="b", weight=9, priority=9, ttl_s=100, id=GIVEN)
        assert errors(q.upsert([new])) == [None]
        m = q.get(GIVEN)
        assert (m.fairness_key, m.weight, m.priority) == ("b", 9, 9)
        assert m.expires_at_ns == clock.now_ns() + to_ns(100)
        assert drain(q) == [b"new", b"other"]

    @requires("fairness")
    def test_a_replaced_weight_counts(self, q: Queue) -> None:
        found = ids(q.enqueue_many([NewMessage(fairness_key="a")] * 50))
        q.enqueue_many([NewMessage(fairness_key="b")] * 50)
        q.upsert([NewMessage(fairness_key="a", weight=4, id=one) for one in found])
        shares = [delivery.fairness_key for delivery in take(q, 50)]
        assert abs(shares.count("a") - 40) <= 5

    @requires("time_to_live")
    def test_an_upsert_without_ttl_takes_an_old_ttl_away(
        self, ps: Penstock, q: Queue, clock: ManualClock
    ) -> None:
        q.enqueue(b"old", ttl_s=10, id=GIVEN)
        q.upsert([NewMessage(b"new", id=GIVEN)])
        clock.advance(11)
        sweep_all(ps)
        assert q.get(GIVEN).expires_at_ns is None
        assert drain(q) == [b"new"]

    @requires("delay")
    def test_upsert_makes_a_delayed_message_ready(self, q: Queue) -> None:
        q.enqueue(b"old", delay_s=60, id=GIVEN)
        q.upsert([NewMessage(b"new", id=GIVEN)])
        assert q.get(GIVEN).state == "ready"
        assert drain(q) == [b"new"]

    @requires("delay")
    def test_upsert_makes_a_ready_message_delayed(self, q: Queue, clock: ManualClock) -> None:
        q.enqueue(b"old", id=GIVEN)
        q.upsert([NewMessage(b"new", delay_s=60, id=GIVEN)])
        assert (q.get(GIVEN).state, q.lease()) == ("delayed", [])
        clock.advance(60)
        assert drain(q) == [b"new"]

    @requires("delay")
    def test_upsert_counts_a_new_delay_from_now(self, q: Queue, clock: ManualClock) -> None:
        q.enqueue(b"old", delay_s=60, id=GIVEN)
        clock.advance(50)
        q.upsert([NewMessage(b"new", delay_s=30, id=GIVEN)])
        clock.advance(29)
        assert q.lease() == []
        clock.advance(1)
        assert drain(q) == [b"new"]

    @requires("delay")
    def test_a_message_whose_delay_has_passed_is_replaced_as_a_ready_one(
        self, q: Queue, clock: ManualClock
    ) -> None:
        q.enqueue(b"old", delay_s=5, id=GIVEN)
        clock.advance(10)
        q.upsert([NewMessage(b"new", id=GIVEN)])
        assert drain(q) == [b"new"]

    def test_upsert_leaves_a_leased_message_unchanged(self, q: Queue) -> None:
        q.enqueue(b"old", headers={"a": "1"}, id=GIVEN)
        delivery = take_one(q)
        before = q.get(GIVEN)
        (result,) = q.upsert([NewMessage(b"new", id=GIVEN)])
        assert isinstance(result.error, MessageLeased)
        assert GIVEN in str(result.error)
        assert q.get(GIVEN) == before
        ack(q, [delivery])

    def test_upsert_replaces_a_message_that_came_back(self, q: Queue) -> None:
        q.enqueue(b"old", id=GIVEN)
        q.nack([take_one(q).receipt], delay_s=0)
        assert errors(q.upsert([NewMessage(b"new", id=GIVEN)])) == [None]
        assert payloads([take_one(q)]) == [b"new"]

    def test_upsert_does_not_replace_what_is_finished(self, ps: Penstock) -> None:
        q = ps.create_queue("kept", retention_s=60)
        done = q.enqueue(b"done")
        ack(q, [take_one(q)])
        dead = bury(q, b"dead")
        results = q.upsert([NewMessage(b"new", id=done), NewMessage(b"new", id=dead)])
        assert [result.ok for result in results] == [False, False]
        assert (q.get(done).payload, q.get(done).state) == (b"done", "done")
        assert (q.get(dead).payload, q.get(dead).state) == (b"dead", "dead")

    def test_of_one_id_twice_in_a_batch_the_last_one_stays(self, q: Queue) -> None:
        q.enqueue(b"old", id=GIVEN)
        batch = [NewMessage(b"1", id=OTHER), NewMessage(b"2", id=GIVEN), NewMessage(b"3", id=OTHER)]
        assert ids(q.upsert(batch)) == [OTHER, GIVEN, OTHER]
        assert (q.get(OTHER).payload, q.get(GIVEN).payload, q.length()) == (b"3", b"2", 2)

    @pytest.mark.parametrize("wrong", [None, "x", [], {}, 7, b"id", GIVEN.upper(), GIVEN + "0", ""])
    def test_one_bad_item_does_not_fail_its_neighbours(self, q: Queue, wrong: object) -> None:
        bad = NewMessage(b"bad", id=cast(Any, wrong)) if wrong is not None else cast(Any, None)
        results = q.upsert([NewMessage(b"1", id=GIVEN), bad, NewMessage(b"2", id=OTHER)])
        assert errors(results) == [None, "InvalidMessage", None]
        assert sorted(drain(q)) == [b"1", b"2"]

    @requires("journal")
    def test_a_replacement_is_recorded_as_such(self, q: Queue) -> None:
        q.upsert([NewMessage(b"1", id=GIVEN)])
        q.upsert([NewMessage(b"2", id=GIVEN)])
        assert kinds_of(q, GIVEN) == ["enqueued", "updated"]

    def test_an_id_that_upsert_refused_does_not_exist(self, q: Queue) -> None:
        assert errors(q.upsert([NewMessage(cast(Any, "text"), id=GIVEN)])) == ["InvalidMessage"]
        with pytest.raises(MessageNotFound):
            q.get(GIVEN)
