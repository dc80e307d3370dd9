"""Enqueue: what is stored, under which id, and what is answered."""

from __future__ import annotations

import random
import uuid
from collections import deque
from typing import Any, cast

import pytest

from penstock import (
    InvalidMessage,
    ManualClock,
    MessageNotFound,
    NewMessage,
    Penstock,
    Queue,
    QueueNotFound,
    State,
)
from penstock.clock import to_ns
from penstock.testing.bulk_suite import one_of_each
from penstock.testing.harness import (
    BackendCase,
    OpenStore,
    ack,
    drain,
    errors,
    ids,
    payloads,
    requires,
    take_one,
)

GIVEN = "0191f2a0-0000-7000-8000-00000000abcd"


class EnqueueSuite(BackendCase):
    """`enqueue` and `enqueue_many`."""

    def test_an_enqueued_message_is_ready_with_everything_as_it_was_given(
        self, q: Queue, clock: ManualClock
    ) -> None:
        message_id = q.enqueue(b"\x00body\xff", headers={"type": "mail", "täg": "ü\n"})
        m = q.get(message_id)
        assert (m.id, m.queue, m.state) == (message_id, "q", "ready")
        assert (m.payload, m.headers) == (b"\x00body\xff", {"type": "mail", "täg": "ü\n"})
        assert (m.fairness_key, m.weight, m.throttle_keys, m.priority, m.dedup_id) == ("", 1, (), 4, None)
        assert m.enqueued_at_ns == m.visible_at_ns == clock.now_ns()
        assert (m.expires_at_ns, m.attempts) == (None, 0)
        assert (m.consumer, m.leased_at_ns, m.lease_expires_at_ns) == (None, None, None)

    @requires("fairness", "prioritization", "time_to_live", "idempotent_enqueue", "delay")
    def test_every_setting_of_a_message_can_be_read_back(self, q: Queue, clock: ManualClock) -> None:
        new = NewMessage(b"x", {"h": ""}, "tenant/1", 7, (), 9, 1.5, 60.25, "once", GIVEN)
        assert ids(q.enqueue_many([new])) == [GIVEN]
        m, now_ns = q.get(GIVEN), clock.now_ns()
        assert (m.state, m.headers, m.fairness_key, m.weight) == ("delayed", {"h": ""}, "tenant/1", 7)
        assert (m.priority, m.dedup_id, m.attempts) == (9, "once", 0)
        assert m.enqueued_at_ns == now_ns
        assert m.visible_at_ns == now_ns + to_ns(1.5)
        assert m.expires_at_ns == now_ns + to_ns(60.25)

    @requires("fairness", "prioritization", "time_to_live", "idempotent_enqueue")
    def test_a_delivery_has_everything_that_was_given(self, q: Queue, clock: ManualClock) -> None:
        new = NewMessage(b"x", {"type": "t"}, "k", 3, (), 2, 0, 60, "once")
        (message_id,) = ids(q.enqueue_many([new]))
        enqueued_at_ns = clock.now_ns()
        clock.advance(5)
        d = take_one(q, lease_s=10, consumer="worker-1")
        assert (d.id, d.queue, d.payload, d.headers) == (message_id, "q", b"x", {"type": "t"})
        assert (d.fairness_key, d.weight, d.throttle_keys, d.priority, d.dedup_id) == ("k", 3, (), 2, "once")
        assert (d.attempts, d.consumer, d.enqueued_at_ns) == (1, "worker-1", enqueued_at_ns)
        assert d.expires_at_ns == enqueued_at_ns + to_ns(60)
        assert (d.leased_at_ns, d.lease_expires_at_ns) == (clock.now_ns(), clock.now_ns() + to_ns(10))

    def test_results_come_in_the_order_of_the_batch(self, q: Queue) -> None:
        results = q.enqueue_many([NewMessage(b"%d" % n) for n in range(1200)])
        assert errors(results) == [None] * 1200
        assert len(set(ids(results))) == 1200
        assert [q.get(one).payload for one in ids(results)[::97]] == [b"%d" % n for n in range(0, 1200, 97)]

    def test_messages_are_delivered_in_the_order_that_they_came(self, q: Queue) -> None:
        expected = [b"%d" % n for n in range(30)]
        q.enqueue_many([NewMessage(payload) for payload in expected[:10]])
        for payload in expected[10:20]:
            q.enqueue(payload)
        q.enqueue_many([NewMessage(payload, {"type": "x"}) for payload in expected[20:]])
        assert drain(q, batch=7) == expected

    def test_ids_are_uuids_of_version_7_made_from_the_injected_clock(
        self, q: Queue, clock: ManualClock
    ) -> None:
        for _ in range(3):
            message_id = q.enqueue(b"")
            parsed = uuid.UUID(message_id)
            assert (str(parsed), parsed.version, parsed.variant) == (message_id, 7, uuid.RFC_4122)
            assert parsed.int >> 80 == clock.now_ns() // 1_000_000
            clock.advance(1.001)

    def test_ids_are_made_from_the_injected_randomness(self, second_store: OpenStore) -> None:
        found = []
        for seed in (5, 5, 6):
            q = second_store(ManualClock(), random.Random(seed)).create_queue("q")
            found.append([q.enqueue(b""), *ids(q.enqueue_many([NewMessage()] * 3))])
        assert found[0] == found[1]
        assert not set(found[0]) & set(found[2])

    def test_a_given_id_is_kept(self, q: Queue) -> None:
        given = str(uuid.uuid5(uuid.NAMESPACE_DNS, "mine"))
        assert q.enqueue(b"x", id=given) == given
        assert q.get(given).payload == b"x"
        assert take_one(q).id == given

    def test_a_given_id_that_exists_is_returned_and_its_message_left_unchanged(
        self, q: Queue, clock: ManualClock
    ) -> None:
        q.enqueue(b"first", headers={"a": "1"}, id=GIVEN)
        before = q.get(GIVEN)
        clock.advance(1)
        (result,) = q.enqueue_many([NewMessage(b"second", {"a": "2"}, id=GIVEN)])
        assert (result.ok, result.id, result.duplicate) == (True, GIVEN, True)
        assert q.get(GIVEN) == before
        assert q.length() == 1

    def test_a_given_id_is_found_while_its_message_is_leased_too(self, q: Queue) -> None:
        q.enqueue(b"first", id=GIVEN)
        delivery = take_one(q)
        assert q.enqueue(b"second", id=GIVEN) == GIVEN
        assert (q.length(), q.get(GIVEN).payload) == (1, b"first")
        ack(q, [delivery])

    @requires("delay")
    def test_a_given_id_is_found_in_every_state(self, ps: Penstock) -> None:
        q = one_of_each(ps)
        before = list(q.iter())
        results = q.enqueue_many([NewMessage(b"again", id=message.id) for message in before])
        assert [(result.id, result.duplicate) for result in results] == [(m.id, True) for m in before]
        assert list(q.iter()) == before

    def test_the_second_of_one_given_id_in_a_batch_is_the_first_one_again(self, q: Queue) -> None:
        results = q.enqueue_many([NewMessage(b"1", id=GIVEN), NewMessage(b"2", id=GIVEN), NewMessage(b"3")])
        assert [result.duplicate for result in results] == [False, True, False]
        assert drain(q) == [b"1", b"3"]

    def test_a_given_id_is_free_again_when_its_message_is_gone(self, q: Queue) -> None:
        q.enqueue(b"first", id=GIVEN)
        ack(q, [take_one(q)])
        assert q.enqueue(b"second", id=GIVEN) == GIVEN
        assert payloads([take_one(q)]) == [b"second"]

    def test_one_id_in_two_queues_is_two_messages(self, ps: Penstock, q: Queue) -> None:
        other = ps.create_queue("other")
        q.enqueue(b"here", id=GIVEN)
        other.enqueue(b"there", id=GIVEN)
        ack(q, [take_one(q)])
        with pytest.raises(MessageNotFound):
            q.get(GIVEN)
        assert other.get(GIVEN).payload == b"there"

    def test_an_empty_batch_is_answered_with_an_empty_one(self, ps: Penstock, q: Queue) -> None:
        ps.create_queue("other")
        before = q.stats()
        assert (q.enqueue_many([]), q.upsert([]), q.ack([]), q.nack([])) == ([], [], [], [])
        assert (q.reject([]), q.extend([], lease_s=1), list(q.move([], target="other"))) == ([], [], [])
        assert q.stats() == before

    def test_a_batch_may_come_in_any_sequence(self, q: Queue) -> None:
        for call in (q.enqueue_many, q.upsert):
            assert errors(call(deque([NewMessage(b"1"), NewMessage(b"2")]))) == [None, None]
        assert len(drain(q)) == 4

    def test_one_item_that_is_no_list_is_refused(self, q: Queue) -> None:
        for wrong in ("text", b"bytes", NewMessage(), None, 7, {"a": "b"}):
            with pytest.raises(InvalidMessage):
                q.enqueue_many(cast(Any, wrong))
            with pytest.raises(InvalidMessage):
                q.ack(cast(Any, wrong))

    @pytest.mark.parametrize("wrong", [-1, None])
    def test_a_first_item_of_which_all_is_wrong_is_refused(self, q: Queue, wrong: Any) -> None:
        message = NewMessage(b"", fairness_key=cast(Any, None), priority=wrong, weight=wrong)
        (result,) = q.enqueue_many([message])
        assert (result.ok, result.id, q.length()) == (False, None, 0)

    def test_enqueue_raises_what_enqueue_many_reports(self, q: Queue) -> None:
        with pytest.raises(InvalidMessage, match="payload"):
            q.enqueue(cast(Any, "text"))
        assert q.length() == 0

    def test_a_queue_that_was_deleted_takes_nothing_more(self, ps: Penstock, q: Queue) -> None:
        ps.delete_queue("q")
        with pytest.raises(QueueNotFound, match="'q'"):
            q.enqueue(b"")

    def test_headers_that_the_caller_changes_afterwards_do_not_change_the_message(self, q: Queue) -> None:
        headers = {"a": "1"}
        message_id = q.enqueue(b"", headers=headers)
        headers["a"] = "2"
        q.get(message_id).headers["a"] = "3"
        delivery = take_one(q)
        delivery.headers["a"] = "4"
        assert q.get(message_id).headers == {"a": "1"}
        assert q.get(message_id).state == State.LEASED

    def test_messages_of_equal_headers_do_not_share_them(self, q: Queue) -> None:
        q.enqueue_many([NewMessage(headers={"a": "1"})] * 3)
        for looked_at in (q.peek(3), q.lease(3)):
            looked_at[0].headers["a"] = "2"
            assert [one.headers for one in looked_at[1:]] == [{"a": "1"}] * 2
