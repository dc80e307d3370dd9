"""Persistence: what was acknowledged is there when the store is opened again."""

from __future__ import annotations

from penstock import Entry, ManualClock, NewMessage, Retry
from penstock.testing.bulk_suite import one_of_each
from penstock.testing.folding import read_events
from penstock.testing.harness import (
    BackendCase,
    Subject,
    ack,
    bury,
    drain,
    errors,
    ids,
    payloads,
    receipts,
    requires,
    sweep_all,
    take,
    take_one,
)


class PersistenceSuite(BackendCase):
    """Closing and opening again."""

    @requires("persistence", "delay")
    def test_messages_in_every_state_are_there_after_reopening(self, subject: Subject) -> None:
        q = one_of_each(subject.ps)
        q.nack(receipts(take(q)), delay_s=0, reason="why")
        before = {message.id: message for message in q.iter()}
        length, due = q.length(), subject.ps.due()
        ps = subject.reopen()
        q = ps.queue("mixed")
        assert {message.id: message for message in q.iter()} == before
        assert (q.length(), ps.due()) == (length, due)

    @requires("persistence")
    def test_settings_of_queues_are_there_after_reopening(self, subject: Subject) -> None:
        subject.ps.create_queue("dead")
        subject.ps.create_queue("q", dead_letter="dead", lease_s=7, retry=Retry(delay_s=2), retention_s=1)
        subject.ps.create_queue("gone")
        subject.ps.update_queue("q", max_attempts=9)
        subject.ps.delete_queue("gone")
        before = subject.ps.queues()
        assert subject.reopen().queues() == before

    @requires("persistence")
    def test_a_receipt_is_good_after_reopening(self, subject: Subject) -> None:
        q = subject.ps.create_queue("q")
        q.enqueue_many([NewMessage()] * 3)
        acked, nacked, stale = take(q, 3)
        ack(q, [stale])
        q = subject.reopen().queue("q")
        assert errors(q.ack([acked.receipt, stale.receipt])) == [None, "StaleReceipt"]
        assert errors(q.nack([nacked.receipt], delay_s=0)) == [None]
        again = take_one(q)
        assert (again.id, again.attempts) == (nacked.id, 2)
        assert again.receipt not in receipts([acked, nacked, stale])

    @requires("persistence", "delay")
    def test_what_fell_due_while_the_store_was_closed_is_handed_out_after_reopening(
        self, subject: Subject, clock: ManualClock
    ) -> None:
        q = subject.ps.create_queue("q")
        q.enqueue(b"leased")
        take_one(q, lease_s=10)
        q.enqueue(b"delayed", delay_s=10)
        clock.advance(10)
        q = subject.reopen().queue("q")
        assert sorted(payloads(q.lease(10))) == [b"delayed", b"leased"]

    @requires("persistence")
    def test_order_goes_on_after_reopening(self, subject: Subject) -> None:
        q = subject.ps.create_queue("q")
        q.enqueue_many([NewMessage(b"%d" % n) for n in range(10)])
        delivered = payloads(take(q, 3))
        q = subject.reopen().queue("q")
        q.enqueue(b"10")
        delivered += payloads(take(q, 2))
        q = subject.reopen().queue("q")
        assert delivered + drain(q) == [b"%d" % n for n in range(11)]

    @requires("persistence", "fairness", "prioritization")
    def test_every_key_and_priority_is_found_after_reopening(self, subject: Subject) -> None:
        q = subject.ps.create_queue("q")
        batch = [
            NewMessage(b"%d" % n, fairness_key=f"k{n % 9}", priority=n % 10, weight=1 + n % 3)
            for n in range(180)
        ]
        q.enqueue_many(batch)
        first = take(q, 50)
        ack(q, first)
        q = subject.reopen().queue("q")
        assert sorted(payloads(first) + drain(q), key=int) == [b"%d" % n for n in range(180)]

    @requires("persistence", "fifo")
    def test_a_fifo_key_is_blocked_after_reopening_too(self, subject: Subject, clock: ManualClock) -> None:
        q = subject.ps.create_queue("line", fifo=True)
        q.enqueue_many([NewMessage(b"%d" % n, fairness_key=key) for n in (1, 2) for key in ("a", "b")])
        held = take(q, 2)
        q.nack([held[0].receipt], delay_s=10)
        q = subject.reopen().queue("line")
        assert q.lease(10) == []
        ack(q, held[1:])
        assert [(d.fairness_key, d.payload) for d in q.lease(10)] == [(held[1].fairness_key, b"2")]
        clock.advance(10)
        assert [(d.fairness_key, d.payload) for d in q.lease(10)] == [(held[0].fairness_key, b"1")]

    @requires("persistence", "idempotent_enqueue")
    def test_dedup_ids_hold_after_reopening(self, subject: Subject, clock: ManualClock) -> None:
        first = subject.ps.create_queue("q").enqueue(b"", dedup_id="d")
        q = subject.reopen().queue("q")
        assert q.enqueue(b"", dedup_id="d") == first
        clock.advance(301)
        q = subject.reopen().queue("q")
        assert q.enqueue(b"", dedup_id="d") != first

    @requires("persistence", "journal")
    def test_the_journal_and_its_cursors_are_there_after_reopening(self, subject: Subject) -> None:
        q = subject.ps.create_queue("q")
        required = q.cursor("b", required=True)
        q.enqueue_many([NewMessage()] * 5)
        drain(q)
        q.cursor("a").commit(7)
        required.commit(3)
        before, stats = read_events(q), q.stats()
        ps = subject.reopen()
        q = ps.queue("q")
        assert read_events(q) == before
        assert [(one.name, one.position, one.required) for one in q.cursors()] == [
            ("a", 7, False),
            ("b", 3, True),
        ]
        assert (q.stats().last_seq, q.stats().journal_bytes) == (15, stats.journal_bytes)
        assert (q.stats().held_bodies, q.stats().unread_by_required) == (5, 12)
        q.enqueue(b"")
        assert [event.seq for event in q.cursor("a").read()] == list(range(8, 17))

    @requires("persistence", "journal")
    def test_health_warns_of_held_bodies_as_soon_as_the_store_is_open(self, subject: Subject) -> None:
        q = subject.ps.create_queue("q")
        q.cursor("archive", required=True)
        q.enqueue(b"")
        drain(q)
        assert subject.reopen().health().status == "degraded"

    @requires("persistence", "journal")
    def test_worlds_and_state_are_there_after_reopening(self, subject: Subject) -> None:
        world = subject.ps.journal("w")
        world.append([Entry("k", b"1", ["l"], ["f"], [1.5])])
        world.configure(retention_s=60)
        subject.ps.state.put("k", b"v")
        before, stats = world.scan(), world.stats()
        ps = subject.reopen()
        assert (ps.journal("w").scan(), ps.journal("w").stats()) == (before, stats)
        assert (ps.get_entries([before[0].id or ""]), ps.state.get("k")) == (before, b"v")
        ps.journal("w").append([Entry("k", b"2")])
        assert [entry.seq for entry in ps.journal("w").scan()] == [1, 2]

    @requires("persistence")
    def test_totals_go_on_after_reopening(self, subject: Subject) -> None:
        q = subject.ps.create_queue("q")
        q.enqueue_many([NewMessage()] * 4)
        ack(q, take(q, 2))
        q.reject(receipts(take(q)))
        q = subject.reopen().queue("q")
        ack(q, [take_one(q)])
        stats = q.stats()
        assert (stats.enqueued_total, stats.acked_total, stats.failed_total) == (4, 3, 1)

    @requires("persistence")
    def test_ids_made_after_reopening_are_new(self, subject: Subject) -> None:
        found = ids(subject.ps.create_queue("q").enqueue_many([NewMessage()] * 50))
        for _ in range(3):
            found += ids(subject.reopen().queue("q").enqueue_many([NewMessage()] * 50))
        assert len(set(found)) == 200

    @requires("persistence")
    def test_a_store_reopened_with_the_same_seed_and_time_overwrites_nothing(self, subject: Subject) -> None:
        subject.ps.create_queue("q")
        payloads_given = [b"1", b"2", b"3"]
        for payload in payloads_given:
            subject.reopen(seed=1).queue("q").enqueue(payload)
        assert sorted(drain(subject.ps.queue("q"))) == payloads_given

    @requires("persistence")
    def test_a_deleted_queue_stays_deleted_and_its_rest_is_swept_after_reopening(
        self, subject: Subject
    ) -> None:
        q = subject.ps.create_queue("q")
        q.enqueue_many([NewMessage()] * 1700)
        take(q, 900)
        subject.ps.delete_queue("q")
        ps = subject.reopen()
        assert (ps.queues(), ps.due()) == ([], [])
        sweep_all(ps)
        assert ps.check().messages == 0
        assert ps.create_queue("q").length() == 0

    @requires("persistence")
    def test_the_dead_come_back_after_reopening(self, subject: Subject) -> None:
        subject.ps.create_queue("dead")
        bury(subject.ps.create_queue("q", dead_letter="dead"), b"x", reason="why")
        ps = subject.reopen()
        assert ps.queue("dead").redrive() == 1
        assert drain(ps.queue("q")) == [b"x"]

    @requires("persistence")
    def test_reopening_again_and_again_changes_nothing(self, subject: Subject) -> None:
        q = subject.ps.create_queue("q")
        q.enqueue_many([NewMessage(b"%d" % n) for n in range(20)])
        take(q, 5)
        before = (list(q.iter()), q.stats().last_seq)
        for _ in range(3):
            q = subject.reopen().queue("q")
            assert (list(q.iter()), q.stats().last_seq) == before
