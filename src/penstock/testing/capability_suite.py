"""Capabilities: a flag that is on is proved, a flag that is off is refused by name."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock import Entry, NewMessage, Penstock, Queue, Retry, Unsupported
from penstock.capabilities import MEANING, Capabilities
from penstock.testing.harness import (
    BackendCase,
    Subject,
    drain,
    errors,
    ids,
    receipts,
    refuses,
    requires,
    take,
)
from penstock.testing.proofs import PROOFS


def names_the_flag(error: object, flag: str, ps: Penstock) -> bool:
    """`Unsupported` as it must be: the flag, this backend, and who has it."""
    assert isinstance(error, Unsupported), error
    assert error.flag == flag
    assert error.backend == ps.info().default.backend
    text = str(error)
    assert flag in text
    assert error.backend in text
    assert error.backend not in error.having
    assert all(name in text for name in error.having)
    assert error.having or "no backend has it" in text
    return True


class CapabilitySuite(BackendCase):
    """The flags."""

    def test_every_flag_has_a_meaning_and_a_place_in_the_table(self) -> None:
        flags = set(Capabilities.__struct_fields__)
        assert set(PROOFS) == set(MEANING) == flags
        asked_for = {flag for flag, (_, needs) in MEANING.items() if needs}
        assert {flag for flag, proof in PROOFS.items() if proof.off} == asked_for

    def test_every_flag_that_is_on_has_its_proof(self, subject: Subject) -> None:
        for flag in subject.capabilities.names():
            assert PROOFS[flag].on, f"{flag} is on, but no test proves it"
            for name in PROOFS[flag].on:
                test = getattr(type(self), name, None)
                assert callable(test), f"{name}, which proves {flag}, is missing"
                assert flag in getattr(test, "requires", ()), f"{name} does not require {flag}"

    def test_every_flag_that_is_off_has_the_proof_that_it_is_refused(self, subject: Subject) -> None:
        off = set(MEANING) - set(subject.capabilities.names())
        for flag in off:
            for name in PROOFS[flag].off:
                test = getattr(type(self), name, None)
                assert callable(test), f"{name}, which proves that {flag} is refused, is missing"
                assert getattr(test, "refuses", ()) == (flag,), f"{name} is not about {flag}"

    # -- properties of the engine ---------------------------------------------------------------

    @requires("atomic_ack")
    def test_an_ack_removes_message_and_lease_in_one_step(self, ps: Penstock, q: Queue) -> None:
        q.enqueue_many([NewMessage()] * 3)
        held = take(q, 3)
        for left in (2, 1, 0):
            assert errors(q.ack([held[left].receipt])) == [None]
            leases = [item for item in ps.due() if item.what == "lease"]
            assert (q.stats().leased, q.length(), len(leases)) == (left, left, left)
            assert ps.check().ok

    @requires("transactions")
    def test_a_message_that_changes_queues_is_in_exactly_one(self, ps: Penstock) -> None:
        dead = ps.create_queue("dead")
        q = ps.create_queue("work", dead_letter="dead")
        found = ids(q.enqueue_many([NewMessage()] * 900))

        def in_exactly_one() -> bool:
            here, there = ([message.id for message in queue.iter()] for queue in (q, dead))
            return sorted(here + there) == sorted(found) and ps.check().ok

        q.reject(receipts(take(q, 600)))
        assert in_exactly_one()
        assert dead.redrive(limit=550) == 550
        assert in_exactly_one()
        q.move([*found[:700], found[0], "nonsense"], target="dead")
        assert in_exactly_one()

    @requires("clustering")
    def test_queues_on_several_machines_are_one_store(self, ps: Penstock) -> None:
        """Whatever lies where: messages go round all queues, and each is in exactly one of them."""
        dead = ps.create_queue("dead")
        queues = [ps.create_queue(f"q{n}", dead_letter="dead") for n in range(12)]
        found = [one for q in queues for one in ids(q.enqueue_many([NewMessage()] * 5))]

        def in_exactly_one() -> bool:
            there = [message.id for q in (*queues, dead) for message in q.iter()]
            return sorted(there) == sorted(found) and ps.check().ok

        for q, other in zip(queues, queues[1:] + queues[:1], strict=True):
            assert errors(q.reject(receipts(take(q, 2)))) == [None] * 2
            assert errors(q.move(ids(q.peek(2)), target=other.name)) == [None] * 2
        assert in_exactly_one()
        assert (dead.length(), dead.redrive()) == (24, 24)
        assert in_exactly_one()
        kept = [settings for settings in ps.queues() if settings.name != "q3"]
        found = sorted(set(found) - {message.id for message in queues.pop(3).iter()})
        ps.replace_queues(kept)
        assert in_exactly_one()

    @requires("batch_operations")
    def test_every_batch_is_answered_item_by_item_in_one_call(self, ps: Penstock, q: Queue) -> None:
        ps.create_queue("other")
        found = ids(q.enqueue_many([NewMessage(b"%d" % n) for n in range(1000)]))
        assert (
            errors(q.upsert([NewMessage(b"%d" % n, id=one) for n, one in enumerate(found)])) == [None] * 1000
        )
        held = receipts(take(q, 800))
        mixed = [*held[:200], "nonsense"]
        expected = [None] * 200 + ["StaleReceipt"]
        assert errors(q.extend(mixed, lease_s=60)) == expected
        assert errors(q.ack(mixed)) == expected
        assert errors(q.nack([*held[200:400], "nonsense"], delay_s=0)) == expected
        assert errors(q.reject([*held[400:600], "nonsense"])) == expected
        assert errors(q.move([*found[800:], found[0]], target="other")) == [None] * 200 + ["MessageNotFound"]
        stats = q.stats()
        assert (stats.ready, stats.leased, stats.dead, stats.acked_total) == (200, 200, 200, 200)

    # -- off ------------------------------------------------------------------------------------

    @refuses("consumer_groups")
    def test_a_group_is_refused_without_consumer_groups(self, ps: Penstock, q: Queue) -> None:
        q.enqueue(b"")
        assert call_refused(ps, lambda: q.lease(group="g"), "consumer_groups")
        assert call_refused(ps, lambda: q.create_group("g"), "consumer_groups")
        assert call_refused(ps, q.groups, "consumer_groups")
        assert call_refused(ps, lambda: q.drop_group("g"), "consumer_groups")
        assert call_refused(ps, lambda: q.group("g"), "consumer_groups")
        assert q.stats().ready == 1

    @refuses("replay")
    def test_going_back_is_refused_without_replay(self, subject: Subject, q: Queue) -> None:
        if not subject.capabilities.journal:
            pytest.skip("without a journal there is no cursor to move")
        q.enqueue_many([NewMessage()] * 2)
        cursor = q.cursor("c")
        cursor.commit(2)
        assert call_refused(subject.ps, lambda: cursor.commit(1), "replay")
        assert cursor.position == 2

    @refuses("idempotent_enqueue")
    def test_a_dedup_id_is_refused_without_idempotent_enqueue(self, ps: Penstock, q: Queue) -> None:
        assert refused_alone(ps, q, NewMessage(dedup_id="d"), "idempotent_enqueue")

    @refuses("time_to_live")
    def test_a_ttl_is_refused_without_time_to_live(self, ps: Penstock, q: Queue) -> None:
        assert refused_alone(ps, q, NewMessage(ttl_s=1), "time_to_live")

    @refuses("prioritization")
    def test_a_priority_is_refused_without_prioritization(self, ps: Penstock, q: Queue) -> None:
        assert refused_alone(ps, q, NewMessage(priority=5), "prioritization")

    @refuses("delay")
    def test_a_delay_is_refused_without_delay(self, ps: Penstock, q: Queue) -> None:
        assert refused_alone(ps, q, NewMessage(delay_s=1), "delay")
        assert call_refused(ps, lambda: ps.create_queue("slow", retry=Retry(delay_s=1)), "delay")
        q.enqueue(b"")
        (receipt,) = receipts(take(q))
        assert call_refused(ps, lambda: q.nack([receipt], delay_s=1), "delay")
        assert errors(q.nack([receipt], delay_s=0)) == [None]

    @refuses("fairness")
    def test_a_key_or_weight_is_refused_without_fairness(self, ps: Penstock, q: Queue) -> None:
        assert refused_alone(ps, q, NewMessage(fairness_key="k"), "fairness")
        assert refused_alone(ps, q, NewMessage(weight=2), "fairness")

    @refuses("throttling")
    def test_throttles_are_refused_without_throttling(self, ps: Penstock, q: Queue) -> None:
        assert refused_alone(ps, q, NewMessage(throttle_keys=["k"]), "throttling")
        assert call_refused(ps, lambda: ps.throttles.set("k", rate_per_s=1, burst=1), "throttling")
        assert call_refused(ps, lambda: ps.throttles.get("k"), "throttling")
        assert call_refused(ps, ps.throttles.list, "throttling")
        assert call_refused(ps, lambda: ps.throttles.delete("k"), "throttling")

    @refuses("journal")
    def test_history_is_refused_without_a_journal(self, ps: Penstock, q: Queue) -> None:
        assert call_refused(ps, q.events, "journal")
        assert call_refused(ps, lambda: q.cursor("c"), "journal")
        assert call_refused(ps, lambda: ps.journal("w").append([Entry("k")]), "journal")
        assert call_refused(ps, ps.journal("w").scan, "journal")

    @refuses("fifo")
    def test_a_fifo_queue_is_refused_without_fifo(self, ps: Penstock) -> None:
        assert call_refused(ps, lambda: ps.create_queue("line", fifo=True), "fifo")
        assert call_refused(ps, lambda: ps.replace_queues([{"name": "line", "fifo": True}]), "fifo")
        assert ps.queues() == []


def call_refused(ps: Penstock, call: Callable[[], object], flag: str) -> bool:
    with pytest.raises(Unsupported) as caught:
        call()
    return names_the_flag(caught.value, flag, ps)


def refused_alone(ps: Penstock, q: Queue, message: NewMessage, flag: str) -> bool:
    """The message is refused for the flag, in both calls that take it, and its neighbours are not."""
    for call in (q.enqueue_many, q.upsert):
        first, refused, last = call([NewMessage(b"first"), message, NewMessage(b"last")])
        assert first.ok
        assert last.ok
        assert names_the_flag(refused.error, flag, ps)
        assert drain(q) == [b"first", b"last"]
    return True
