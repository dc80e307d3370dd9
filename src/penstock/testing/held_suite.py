"""Held bodies: what outlives its message because a required cursor has not read so far."""

from __future__ import annotations

from penstock import ManualClock, NewMessage, Penstock, Queue
from penstock.testing.harness import BackendCase, ack, drain, ids, requires, sweep_all, take_one

GIVEN = "0191f2a0-0000-7000-8000-00000000abcd"


class HeldBodySuite(BackendCase):
    """Bodies that outlive their messages because a required cursor has not read so far."""

    @requires("journal")
    def test_a_body_outlives_its_ack_until_every_required_cursor_has_read_past_it(
        self, ps: Penstock, q: Queue
    ) -> None:
        archive, outbox = q.cursor("archive", required=True), q.cursor("outbox", required=True)
        q.enqueue_many([NewMessage(b"1"), NewMessage(b"2")])
        drain(q, batch=1)
        sweep_all(ps)
        assert (q.stats().held_bodies, q.length(), list(q.iter())) == (2, 0, [])
        archive.commit(6)
        sweep_all(ps)
        assert q.stats().held_bodies == 2
        outbox.commit(5)
        sweep_all(ps)
        assert q.stats().held_bodies == 1
        outbox.commit(6)
        sweep_all(ps)
        assert (q.stats().held_bodies, ps.check().messages) == (0, 0)

    @requires("journal", "time_to_live", "idempotent_enqueue")
    def test_the_body_of_an_expired_message_is_held_though_its_id_is_asked_for_again(
        self, ps: Penstock, q: Queue, clock: ManualClock
    ) -> None:
        cursor = q.cursor("archive", required=True)
        q.enqueue(b"old", id=GIVEN, ttl_s=1, dedup_id="d")
        clock.advance(5)
        (answer,) = q.enqueue_many([NewMessage(b"new", id=GIVEN, dedup_id="d")])
        assert (answer.id, answer.duplicate, q.length()) == (GIVEN, True, 0)
        assert q.stats().held_bodies == 1
        cursor.commit(2)
        sweep_all(ps)
        assert (q.stats().held_bodies, ps.check().messages) == (0, 0)

    @requires("journal", "time_to_live")
    def test_an_id_that_expired_is_free_though_a_cursor_has_not_read_so_far(
        self, ps: Penstock, q: Queue, clock: ManualClock
    ) -> None:
        q.cursor("archive", required=True)
        q.enqueue(b"old", id=GIVEN, ttl_s=1)
        clock.advance(5)
        assert q.enqueue(b"new", id=GIVEN) == GIVEN
        assert (q.get(GIVEN).payload, q.stats().held_bodies, q.length()) == (b"new", 0, 1)

    @requires("journal", "time_to_live")
    def test_a_body_is_held_however_its_message_went(self, ps: Penstock, clock: ManualClock) -> None:
        ps.create_queue("other")
        q = ps.create_queue("kept", retention_s=10, dead_letter="other")
        cursor = q.cursor("archive", required=True)
        q.enqueue(b"removed")
        ack(q, [take_one(q)])
        clock.advance(10)
        sweep_all(ps)
        q.enqueue(b"dead")
        q.reject([take_one(q).receipt])
        q.enqueue(b"purged")
        q.purge()
        q.move([q.enqueue(b"moved")], target="other")
        q.enqueue(b"expired", ttl_s=1)
        clock.advance(1)
        sweep_all(ps)
        assert (q.stats().held_bodies, q.length()) == (5, 0)
        cursor.commit(q.stats().last_seq)
        sweep_all(ps)
        assert q.stats().held_bodies == 0

    @requires("journal")
    def test_a_cursor_that_is_not_required_holds_nothing(self, ps: Penstock, q: Queue) -> None:
        q.cursor("slow")
        q.enqueue(b"")
        drain(q)
        sweep_all(ps)
        assert (q.stats().held_bodies, ps.check().messages) == (0, 0)

    @requires("journal")
    def test_dropping_a_required_cursor_frees_what_it_held(self, ps: Penstock, q: Queue) -> None:
        cursor = q.cursor("archive", required=True)
        q.enqueue_many([NewMessage()] * 700)
        drain(q)
        assert q.stats().held_bodies == 700
        cursor.drop()
        sweep_all(ps)
        assert (q.stats().held_bodies, ps.check().messages) == (0, 0)

    @requires("journal")
    def test_health_warns_of_what_a_required_cursor_holds_back(self, ps: Penstock, q: Queue) -> None:
        cursor = q.cursor("archive", required=True)
        q.enqueue(b"")
        drain(q)
        health = ps.health()
        assert health.status == "degraded"
        assert "'q'" in str(health.reasons)
        cursor.commit(q.stats().last_seq)
        sweep_all(ps)
        assert ps.health().status == "healthy"

    @requires("journal")
    def test_health_warns_of_a_journal_that_a_required_cursor_keeps_past_its_size(self, ps: Penstock) -> None:
        q = ps.create_queue("small", journal_max_bytes=1000)
        cursor = q.cursor("archive", required=True)
        for _ in range(50):
            q.enqueue(b"")
        sweep_all(ps)
        assert q.stats().journal_bytes > 1000
        assert ps.health().status == "degraded"
        cursor.commit(50)
        sweep_all(ps)
        assert (q.stats().journal_bytes <= 1000, ps.health().status) == (True, "healthy")

    @requires("journal")
    def test_health_warns_of_a_journal_that_a_required_cursor_keeps_past_its_retention(
        self, ps: Penstock, clock: ManualClock
    ) -> None:
        q = ps.create_queue("short", journal_retention_s=10)
        cursor = q.cursor("archive", required=True)
        q.enqueue(b"")
        clock.advance(100)
        sweep_all(ps)
        assert ps.health().status == "degraded"
        cursor.commit(1)
        sweep_all(ps)
        assert ps.health().status == "healthy"

    @requires("journal")
    def test_an_id_can_be_used_again_while_its_old_body_is_held(self, ps: Penstock, q: Queue) -> None:
        given = "0191f2a0-0000-7000-8000-00000000abcd"
        cursor = q.cursor("archive", required=True)
        for payload in (b"1", b"2", b"3"):
            assert ids(q.enqueue_many([NewMessage(payload, id=given)])) == [given]
            assert q.get(given).payload == payload
            ack(q, [take_one(q)])
        q.upsert([NewMessage(b"4", id=given)])
        assert drain(q) == [b"4"]
        cursor.commit(q.stats().last_seq)
        sweep_all(ps)
        assert (q.stats().held_bodies, ps.check().messages) == (0, 0)
