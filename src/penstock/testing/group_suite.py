"""Consumer groups: every group sees every message, and settles it for itself."""

from __future__ import annotations

import threading
from collections import Counter

import pytest

from penstock import InvalidMessage, NewMessage, Penstock, Queue, QueueNotFound
from penstock.clock import ManualClock
from penstock.testing.background import wait_until
from penstock.testing.folding import prove_journal
from penstock.testing.harness import BackendCase, errors, ids, receipts, requires

MOST_GROUPS = 16


def worked(q: Queue, group: str | None, most: int = 1000) -> list[bytes]:
    """Everything that a group is handed, acked."""
    out: list[bytes] = []
    while held := q.lease(most, group=group):
        out += [one.payload for one in held]
        assert errors(q.ack(receipts(held))) == [None] * len(held)
    return out


def news(*payloads: bytes) -> list[NewMessage]:
    return [NewMessage(payload) for payload in payloads]


class GroupSuite(BackendCase):
    """What `lease(group=…)` promises."""

    @requires("consumer_groups")
    def test_every_group_sees_every_message(self, ps: Penstock, q: Queue) -> None:
        q.enqueue_many(news(b"1", b"2", b"3"))
        assert worked(q, "a", 2) == [b"1", b"2", b"3"]
        q.enqueue_many(news(b"4", b"5"))
        q.create_group("b")
        q.enqueue_many(news(b"6"))
        assert worked(q, "b") == [b"4", b"5", b"6"]
        assert worked(q, "a") == [b"4", b"5", b"6"]
        q.enqueue(b"7")
        assert (worked(q, "a"), worked(q, "b"), worked(q, "a")) == ([b"7"], [b"7"], [])
        assert ps.check().ok
        prove_journal(q.group("a"))
        prove_journal(q.group("b"))

    @requires("consumer_groups")
    def test_a_new_group_sees_all_that_is_not_processed(self, ps: Penstock, q: Queue) -> None:
        q.enqueue_many([NewMessage(b"%d" % n) for n in range(1000)])
        q.enqueue_many([NewMessage(b"later", delay_s=10), NewMessage(b"important", priority=9)])
        held = q.lease(600, group="first", lease_s=60)
        q.ack(receipts(held[:300]))
        q.reject(receipts(held[300:301]))
        q.nack(receipts(held[301:302]), delay_s=5)
        found = worked(q, "second", 100)
        done = {one.payload for one in held[:301]}
        assert found[0] == b"important" or b"important" in done
        expected = {b"%d" % n for n in range(1000)} | {b"important"}
        assert sorted(found) == sorted(expected - done)
        assert q.group("second").stats().delayed == 1
        assert ps.check().ok

    @requires("consumer_groups")
    def test_groups_settle_for_themselves(self, ps: Penstock, clock: ManualClock) -> None:
        q = ps.create_queue("work", max_attempts=2, lease_s=10)
        for name in ("a", "b"):
            q.create_group(name)
        message = q.enqueue(b"x")
        (in_a,), (in_b,) = q.lease(1, group="a"), q.lease(1, group="b")
        assert in_a.receipt != in_b.receipt
        assert errors(q.nack([in_a.receipt], delay_s=0)) == [None]
        assert errors(q.extend([in_b.receipt], lease_s=100)) == [None]
        (again,) = q.lease(1, group="a")
        assert (again.id, again.attempts) == (message, 2)
        assert errors(q.reject([again.receipt])) == [None]
        clock.advance(50)
        assert q.lease(1, group="b") == [], "its lease was extended"
        assert (q.group("a").stats().dead, q.group("b").stats().leased) == (1, 1)
        assert errors(q.ack([in_b.receipt])) == [None]
        assert errors(q.ack([in_a.receipt, again.receipt, in_b.receipt])) == ["StaleReceipt"] * 3
        assert q.group("a").get(message).state == "dead"
        assert q.group("a").redrive() == 1
        assert worked(q, "a") == [b"x"]
        assert worked(q, "b") == []
        assert ps.check().ok

    @requires("consumer_groups")
    def test_a_lease_without_a_group_is_one_of_the_usual_group(self, q: Queue) -> None:
        q.create_group("named")
        q.enqueue_many(news(b"1", b"2"))
        (usual,) = q.groups()[:1]
        assert usual.name == "named"
        assert worked(q, None) == [b"1", b"2"]
        assert worked(q, "named") == [b"1", b"2"]
        assert [one.name for one in q.groups()] == ["named", "default"]

    @requires("consumer_groups")
    def test_a_queue_of_named_groups_keeps_nothing_for_others(self, ps: Penstock, q: Queue) -> None:
        q.enqueue_many(news(b"1", b"2"))
        assert worked(q, "only") == [b"1", b"2"]
        assert (q.length(), [one.name for one in q.groups()]) == (0, ["only"])

    @requires("consumer_groups")
    def test_a_group_tells_what_is_leased_and_what_waits(self, q: Queue) -> None:
        assert q.groups() == []
        q.create_group("a")
        q.create_group("b")
        q.create_group("b")
        q.enqueue_many(news(b"1", b"2", b"3"))
        q.lease(2, group="b", consumer="one")
        assert [(one.name, one.pending, one.lag) for one in q.groups()] == [("a", 0, 3), ("b", 2, 1)]
        assert [event.kind for event in q.group("b").events()] == ["enqueued"] * 3 + ["leased"] * 2
        assert (q.group("a").stats().ready, q.group("b").stats().leased) == (3, 2)
        with pytest.raises(InvalidMessage, match="'c'"):
            q.group("c")

    @requires("consumer_groups")
    def test_leases_of_a_group_run_out_and_messages_expire_in_each(
        self, ps: Penstock, q: Queue, clock: ManualClock
    ) -> None:
        for name in ("a", "b"):
            q.create_group(name)
        q.enqueue_many([NewMessage(b"short", ttl_s=20), NewMessage(b"long"), NewMessage(b"late", delay_s=30)])
        held = q.lease(1, group="b", lease_s=5)
        clock.advance(6)
        assert [one.attempts for one in q.lease(1, group="b", lease_s=5)] == [1]
        assert errors(q.ack(receipts(held))) == ["StaleReceipt"]
        clock.advance(20)
        while ps.sweep():
            pass
        assert worked(q, "a") == [b"long"]
        assert worked(q, "b") == [b"long"]
        clock.advance(10)
        assert (worked(q, "a"), worked(q, "b")) == ([b"late"], [b"late"])
        assert ps.check().ok

    @requires("consumer_groups", "fairness")
    def test_each_group_has_its_turns_and_priorities(self, q: Queue) -> None:
        for name in ("a", "b"):
            q.create_group(name)
        q.enqueue_many([NewMessage(b"greedy", fairness_key="greedy")] * 20)
        q.enqueue_many([NewMessage(b"modest", fairness_key="modest")] * 5)
        for name in ("a", "b"):
            served = Counter(one.fairness_key for one in q.lease(10, group=name))
            assert served == {"greedy": 5, "modest": 5}

    @requires("consumer_groups")
    def test_a_replaced_message_is_replaced_wherever_it_waits_and_new_to_the_others(
        self, ps: Penstock, q: Queue
    ) -> None:
        for name in ("a", "b", "c"):
            q.create_group(name)
        (message,) = ids(q.enqueue_many(news(b"old")))
        held = q.lease(1, group="b")
        assert worked(q, "c") == [b"old"]
        assert errors(q.upsert([NewMessage(b"new", id=message)])) == ["MessageLeased"]
        q.nack(receipts(held), delay_s=0)
        assert errors(q.upsert([NewMessage(b"new", id=message)])) == [None]
        assert ps.check().ok
        for name in ("a", "b", "c"):
            assert worked(q, name) == [b"new"]
            prove_journal(q.group(name))
        assert ps.check().ok

    @requires("consumer_groups")
    def test_an_id_is_used_as_long_as_any_group_has_it(self, ps: Penstock, clock: ManualClock) -> None:
        q = ps.create_queue("work", max_attempts=1)
        for name in ("a", "b"):
            q.create_group(name)
        (message,) = ids(q.enqueue_many(news(b"1")))
        again = NewMessage(b"2", id=message, ttl_s=10)
        assert worked(q, "a") == [b"1"]
        assert q.enqueue_many([again])[0].duplicate, "it waits in b"
        held = q.lease(1, group="b")
        assert q.enqueue_many([again])[0].duplicate, "it is leased in b"
        q.reject(receipts(held))
        assert q.enqueue_many([again])[0].duplicate, "it is dead in b"
        assert errors(q.upsert([again])) == ["InvalidMessage"]
        assert (worked(q, "a"), q.group("b").stats().dead) == ([], 1)
        q.group("b").purge(state="dead")
        assert not q.enqueue_many([again])[0].duplicate
        assert worked(q, "a") == [b"2"]
        clock.advance(11)
        assert not q.enqueue_many([NewMessage(b"3", id=message)])[0].duplicate, "it has expired in b"
        assert (worked(q, "a"), worked(q, "b")) == ([b"3"], [b"3"])
        assert ps.check().ok
        prove_journal(q.group("b"))

    @requires("consumer_groups")
    def test_what_waits_in_a_further_group_alone_is_replaced_there_and_new_to_the_rest(
        self, ps: Penstock, q: Queue
    ) -> None:
        for name in ("a", "b", "c"):
            q.create_group(name)
        (message,) = ids(q.enqueue_many(news(b"old")))
        assert (worked(q, "a"), worked(q, "c")) == ([b"old"], [b"old"])
        assert errors(q.upsert([NewMessage(b"new", id=message, priority=7)])) == [None]
        assert q.get(message).payload == b"new"
        assert [event.kind for event in q.group("b").events()] == ["enqueued", "updated"]
        assert ps.check().ok
        for name in ("b", "a", "c"):
            assert worked(q, name) == [b"new"]
            prove_journal(q.group(name))
        assert ps.check().ok

    @requires("consumer_groups")
    def test_dead_letters_of_groups(self, ps: Penstock) -> None:
        dead = ps.create_queue("dead")
        q = ps.create_queue("work", dead_letter="dead")
        for name in ("a", "b"):
            q.create_group(name)
        q.enqueue_many(news(b"1", b"2"))
        q.reject(receipts(q.lease(1, group="a")))
        assert [message.payload for message in dead.peek()] == [b"1"]
        assert worked(q, "b") == [b"1", b"2"]
        assert dead.redrive() == 1
        assert worked(q, "a") == [b"2", b"1"]
        assert worked(q, "b") == [b"1"], "what is redriven is new to every group"
        assert ps.check().ok

    @requires("consumer_groups")
    def test_what_died_in_one_group_is_redriven_while_others_have_it(self, ps: Penstock) -> None:
        dead = ps.create_queue("dead")
        q = ps.create_queue("work", dead_letter="dead")
        for name in ("a", "b", "c"):
            q.create_group(name)
        for dying, waiting in (("b", "a"), ("a", "b")):
            q.enqueue_many(news(b"1"))
            assert worked(q, "c") == [b"1"]
            q.reject(receipts(q.lease(1, group=dying)))
            held = q.lease(1, group=waiting)
            assert (dead.redrive(), dead.length()) == (1, 0)
            assert ps.check().ok
            assert worked(q, dying) == [b"1"]
            assert worked(q, "c") == [b"1"], "what is redriven is new to every group that has it no more"
            assert errors(q.ack(receipts(held))) == [None]
            assert (worked(q, waiting), q.length()) == ([], 0)
        assert ps.check().ok
        for name in ("a", "b", "c"):
            prove_journal(q.group(name))

    @requires("consumer_groups")
    def test_a_group_that_is_dropped_holds_nothing_back(self, ps: Penstock, q: Queue) -> None:
        for name in ("a", "b"):
            q.create_group(name)
        q.enqueue_many([NewMessage(b"x")] * 700)
        assert len(worked(q, "a")) == 700
        held = q.lease(10, group="b")
        q.drop_group("b")
        assert [one.name for one in q.groups()] == ["a"]
        assert set(errors(q.ack(receipts(held)))) == {"StaleReceipt"}
        assert q.length() == 0
        assert ps.check().ok
        q.enqueue(b"y")
        assert worked(q, "b") == [b"y"], "one of the same name is new"
        assert worked(q, "a") == [b"y"]
        for name in ("a", "none"):
            with pytest.raises(InvalidMessage, match=name):
                q.drop_group(name)

    @requires("consumer_groups")
    def test_a_queue_goes_with_its_groups(self, ps: Penstock, q: Queue) -> None:
        for name in ("a", "b"):
            q.create_group(name)
        q.enqueue(b"x")
        (held,) = q.lease(1, group="b")
        ps.delete_queue(q.name)
        with pytest.raises(QueueNotFound):
            q.lease(1, group="b")
        q = ps.create_queue(q.name)
        assert q.groups() == []
        assert q.lease(1, group="b") == []
        assert errors(q.ack([held.receipt])) == ["StaleReceipt"]
        assert ps.check().ok

    @requires("consumer_groups")
    def test_a_purge_is_one_for_every_group(self, ps: Penstock, q: Queue) -> None:
        for name in ("a", "b"):
            q.create_group(name)
        q.enqueue_many([NewMessage(b"x")] * 5)
        held = q.lease(1, group="b")
        assert q.purge() == 5
        assert (worked(q, "a"), worked(q, "b")) == ([], [])
        assert errors(q.ack(receipts(held))) == [None]
        assert ps.check().ok

    @requires("consumer_groups")
    def test_settings_of_a_queue_count_in_every_group(self, ps: Penstock, q: Queue) -> None:
        for name in ("a", "b"):
            q.create_group(name)
        ps.update_queue(q.name, max_leased=2, retention_s=100)
        q.enqueue_many([NewMessage(b"x")] * 5)
        for name in ("a", "b"):
            held = q.lease(5, group=name)
            assert len(held) == 2
            q.ack(receipts(held))
            assert q.group(name).stats().done == 2
        assert ps.check().ok

    @requires("consumer_groups")
    @pytest.mark.parametrize("name", ["", "a\0b", "x" * 1025, 7, b"g"], ids=lambda name: repr(name)[:12])
    def test_a_group_without_a_name_is_refused(self, q: Queue, name: str) -> None:
        q.enqueue(b"x")
        for call in (lambda: q.lease(group=name), lambda: q.create_group(name), lambda: q.drop_group(name)):
            with pytest.raises(InvalidMessage):
                call()
        assert (q.groups(), q.length()) == ([], 1)

    @requires("consumer_groups")
    def test_names_of_groups_do_not_meet(self, ps: Penstock) -> None:
        names = ["a", "A", "a:b", "{a}", "a}", "g:a", "%61", "ü", " ", "*", "../a", "x" * 1024]
        queues = [ps.create_queue(name) for name in ("q", "q:g:a", "q}")]
        for q in queues:
            for name in names:
                q.create_group(name)
            q.enqueue(q.name.encode())
        for q in queues:
            for name in reversed(names):
                assert worked(q, name) == [q.name.encode()]
        assert ps.check().ok

    @requires("consumer_groups")
    def test_more_groups_than_a_queue_may_have_are_refused(self, q: Queue) -> None:
        for number in range(MOST_GROUPS):
            q.create_group(str(number))
        q.enqueue(b"x")
        with pytest.raises(InvalidMessage, match=str(MOST_GROUPS)):
            q.lease(group="one more")
        assert [worked(q, str(number)) for number in range(MOST_GROUPS)] == [[b"x"]] * MOST_GROUPS
        q.drop_group("3")
        q.create_group("one more")

    @requires("consumer_groups")
    def test_what_is_enqueued_while_a_group_comes_is_seen_by_it_once(self, ps: Penstock, q: Queue) -> None:
        q.create_group("first")
        q.enqueue_many([NewMessage(b"%d" % n) for n in range(2000)])
        is_over, sent = threading.Event(), [2000]
        done: set[bytes] = set()

        def enqueue() -> None:
            while not is_over.is_set():
                q.enqueue_many([NewMessage(b"%d" % n) for n in range(sent[0], sent[0] + 10)])
                sent[0] += 10

        def work() -> None:
            while not is_over.is_set():
                held = q.lease(20, group="first")
                done.update(one.payload for one in held)
                q.ack(receipts(held))

        threads = [threading.Thread(target=enqueue), threading.Thread(target=work)]
        for thread in threads:
            thread.start()
        q.create_group("second")
        is_there = sent[0] + 10
        wait_until(lambda: sent[0] > is_there + 50)
        is_over.set()
        for thread in threads:
            thread.join(60)
        seen = Counter(worked(q, "second"))
        assert set(seen.values()) == {1}
        missing = {b"%d" % n for n in range(sent[0])} - seen.keys()
        assert missing <= done, "something that nobody had done"
        assert all(int(one) < is_there for one in missing)
        worked(q, "first")
        assert [one.lag for one in q.groups()] == [0, 0]
        assert ps.check().ok
