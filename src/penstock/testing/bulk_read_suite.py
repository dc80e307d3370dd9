"""Bulk reads: the tables of a snapshot are what the calls of the API answer, whole, and cut as one likes."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from penstock import Entry, NewMessage, Penstock, Queue, QueueNotFound, SnapshotNotFound
from penstock.backends.bulk import BulkPlan, BulkRequest, SeqRange, Snapshot
from penstock.backends.registry import open_reader, release_snapshot
from penstock.errors import Unsupported
from penstock.keyring import KeyProvider
from penstock.message import STORED_STATES, Message
from penstock.tables import TABLES, arrow_schema
from penstock.testing.harness import (
    BackendCase,
    Subject,
    ack,
    receipts,
    refuses,
    requires,
    sweep_all,
    take,
)

Row = dict[str, Any]


def plain(row: Row) -> Row:
    """Arrow gives maps as pairs, and nothing knows of order in them."""
    return {name: dict(value) if name == "headers" else value for name, value in row.items()}


def mixed_load(ps: Penstock, q: Queue, seed: int = 1) -> None:
    """Messages in every state, with everything that one can have, by every kind of event."""
    rng = random.Random(seed)
    ps.create_queue("elsewhere")
    most_keys = 3 if ps.info().default.capabilities.throttling else 1
    q.enqueue_many(
        [
            NewMessage(
                payload=rng.randbytes(rng.randrange(400)),
                headers={f"h{at}": "v" * at for at in range(rng.randrange(4))},
                fairness_key=rng.choice(["", "a", "grün"]),
                weight=rng.randint(1, 1000),
                throttle_keys=[f"k{at}" for at in range(rng.randrange(most_keys))],
                priority=rng.randint(0, 9),
                delay_s=rng.choice([0, 0, 50]),
                ttl_s=rng.choice([None, 500.0]),
                dedup_id=rng.choice([None, f"d{number}"]),
            )
            for number in range(120)
        ]
    )
    first = take(q, 40, consumer="büro")
    ack(q, first[:8])
    q.nack(receipts(first[8:14]), delay_s=0, reason="bad luck")
    q.nack(receipts(first[14:20]), delay_s=70)
    q.reject(receipts(first[20:26]), reason="böse")
    q.extend(receipts(first[26:30]), lease_s=900)
    q.upsert([NewMessage(b"new", id=message.id) for message in q.peek(3)])
    q.move([message.id for message in q.peek(4)], target="elsewhere")
    q.redrive(limit=2)
    # Back in line, and taken again from their second place.
    again = ps.create_queue("again", retention_s=1000)
    again.enqueue_many([NewMessage()] * 6)
    again.nack(receipts(take(again, 6)), delay_s=0)
    second = take(again, 4)
    ack(again, second[:1])
    again.reject(receipts(second[1:2]))


class BulkCase(BackendCase):
    """How the tests read."""

    def keys(self) -> KeyProvider | None:
        """Where a reader finds the keys of the store, if it is encrypted."""
        return None

    def planned(self, subject: Subject, snapshot: Snapshot, **request: Any) -> BulkPlan:
        with open_reader(snapshot, self.keys(), subject.clock) as reader:
            return reader.plan(BulkRequest(**request))

    def read(self, subject: Subject, plan: BulkPlan) -> list[list[Row]]:
        """The rows of each partition, which has travelled as another process would get it."""
        found = []
        for partition in plan.partitions:
            sent = msgspec.msgpack.encode(partition)
            partition = msgspec.msgpack.decode(sent, type=type(partition))
            with open_reader(partition.snapshot, self.keys(), subject.clock) as reader:
                batches = list(reader.read(partition))
            schema = arrow_schema(plan.request.table, plan.request.columns)
            for batch in batches:
                assert batch.schema == schema
                batch.validate(full=True)
            found.append([plain(row) for batch in batches for row in batch.to_pylist()])
        return found

    def rows(self, subject: Subject, table: str, **request: Any) -> list[Row]:
        """Of a snapshot that is taken now."""
        snapshot = subject.ps.take_snapshot()
        try:
            plan = self.planned(subject, snapshot, table=table, **request)
            return [row for part in self.read(subject, plan) for row in part]
        finally:
            release_snapshot(snapshot)


def as_row(message: Message) -> Row:
    row = msgspec.structs.asdict(message)
    del row["raw_id"]
    return {
        **row,
        "id": message.id,
        "state": str(message.state),
        "throttle_keys": list(message.throttle_keys),
    }


class BulkReadSuite(BulkCase):
    """What is read is what there is."""

    @requires("bulk_read")
    def test_every_message_is_read_as_a_listing_shows_it(self, subject: Subject) -> None:
        ps = subject.ps
        q = ps.create_queue("q", retention_s=1000, compress_over_bytes=200)
        mixed_load(ps, q)
        subject.clock.advance(60)  # Some delays have passed, some leases have ended.
        expected = {
            message.id: as_row(message)
            for state in STORED_STATES
            for settings in ps.queues()
            for message in ps.queue(settings.name).iter(state=state)
        }
        found = self.rows(subject, "messages")
        assert {state for row in found for state in [row["state"]]} == {str(one) for one in STORED_STATES}
        assert len(found) == len(expected)
        for row in found:
            one = expected[row["id"]]
            assert {name: row[name] for name in one} == one
            assert row["size_bytes"] == len(row["payload"])

    @requires("bulk_read")
    def test_times_come_as_timestamps_and_to_the_nanosecond(self, subject: Subject, q: Queue) -> None:
        subject.clock.set_ns(1_234_567_890_123_456_789)
        there = q.get(q.enqueue(b"", ttl_s=1))  # To the nanosecond, or to what the backend measures.
        (row,) = self.rows(subject, "messages")
        assert row["enqueued_at_ns"] == there.enqueued_at_ns
        assert row["enqueued_at"].isoformat() == "2009-02-13T23:31:30.123456+00:00"
        assert row["expires_at_ns"] == there.expires_at_ns
        assert row["expires_at"].isoformat() == "2009-02-13T23:31:31.123456+00:00"
        (event,) = self.rows(subject, "events")
        assert (event["at_ns"], event["at"]) == (row["enqueued_at_ns"], row["enqueued_at"])

    @requires("bulk_read", "delay", "time_to_live")
    def test_what_time_has_changed_is_changed_though_nobody_looked(self, subject: Subject, q: Queue) -> None:
        q.enqueue(b"now visible", delay_s=50)
        q.enqueue(b"expired", ttl_s=50)
        subject.clock.advance(60)
        (row,) = self.rows(subject, "messages")
        assert (row["payload"], row["state"]) == (b"now visible", "ready")

    @requires("bulk_read", "journal")
    def test_every_event_is_read_as_the_journal_has_it(self, subject: Subject) -> None:
        ps = subject.ps
        q = ps.create_queue("q", retention_s=1000, max_attempts=2)
        mixed_load(ps, q)
        subject.clock.advance(2000)
        sweep_all(ps)
        for name in ("q", "elsewhere"):
            expected = list(ps.queue(name).events(limit=10_000))
            found = self.rows(subject, "events", names=(name,))
            assert [row["seq"] for row in found] == [event.seq for event in expected]
            for row, event in zip(found, expected, strict=True):
                assert row["queue"] == name
                for field in ("at_ns", "message_id", "attempt", "due_ns", "consumer", "reason", "extra"):
                    assert row[field] == getattr(event, field)
                assert row["kind"] == str(event.kind)
                assert (row["due_at"] is None) == (event.due_ns == 0)

    @requires("bulk_read")
    def test_every_queue_is_read_with_its_settings_and_numbers(self, subject: Subject, q: Queue) -> None:
        mixed_load(subject.ps, q)
        found = {row["name"]: row for row in self.rows(subject, "queues")}
        assert list(found) == ["again", "elsewhere", "q"]
        for name, row in found.items():
            stats = subject.ps.queue(name).stats()
            for field in row.keys() & set(stats.__struct_fields__):
                assert row[field] == getattr(stats, field), field
            settings = next(one for one in subject.ps.queues() if one.name == name)
            assert msgspec.json.decode(row["settings"], type=type(settings)) == settings

    @requires("bulk_read", "journal")
    def test_every_entry_is_read_as_a_scan_answers_it(self, subject: Subject) -> None:
        ps = subject.ps
        for number in range(3):
            ps.journal("wörld").append(
                [
                    Entry("note", b"%d" % at, ["l"] * at, ["f", "ü"], [0.5, float(at)] if at % 2 else None)
                    for at in range(number * 5)
                ]
            )
            ps.journal("other").append([Entry("k")])
            subject.clock.advance(1)
        expected = ps.journal("wörld").scan()
        found = self.rows(subject, "entries", names=("wörld",))
        assert len(found) == 15
        for row, entry in zip(found, expected, strict=True):
            del row["at"]
            assert row == msgspec.structs.asdict(entry)
        assert len(self.rows(subject, "entries", pattern="w.*|other")) == 18
        assert self.rows(subject, "entries", names=("nowhere",)) == []

    @requires("bulk_read")
    def test_dead_is_the_dead_messages(self, subject: Subject, q: Queue) -> None:
        mixed_load(subject.ps, q)
        dead = {message.id: message.reason for message in q.iter(state="dead")}
        assert dead
        assert {row["id"]: row["reason"] for row in self.rows(subject, "dead", names=("q",))} == dead
        assert {row["queue"] for row in self.rows(subject, "dead")} == {"again", "q"}

    @requires("bulk_read", "journal")
    def test_bodies_that_a_required_cursor_needs_are_read_after_the_ack(self, subject: Subject) -> None:
        q = subject.ps.create_queue("q")
        cursor = q.cursor("archive", required=True)
        kept = q.enqueue(b"kept", headers={"a": "b"})
        ack(q, take(q))
        there = q.enqueue(b"there")
        assert [row["id"] for row in self.rows(subject, "messages")] == [there]
        found = self.rows(subject, "bodies")
        assert {row["id"]: row["payload"] for row in found} == {kept: b"kept", there: b"there"}
        assert {row["seq"] for row in found} == {None}
        by_seq = self.rows(subject, "bodies", seqs={"q": SeqRange(1, 2)})
        assert [(row["seq"], row["id"], row["headers"]) for row in by_seq] == [(1, kept, {"a": "b"})]
        cursor.commit(q.stats().last_seq)
        sweep_all(subject.ps)
        assert [row["id"] for row in self.rows(subject, "bodies")] == [there]

    @requires("bulk_read")
    def test_a_snapshot_shows_nothing_of_what_comes_later(self, subject: Subject, q: Queue) -> None:
        q.enqueue_many([NewMessage(b"%d" % number) for number in range(10)])
        snapshot = subject.ps.take_snapshot()
        ack(q, take(q, 5))
        q.enqueue(b"later")
        subject.ps.create_queue("later")
        found = self.read(subject, self.planned(subject, snapshot, table="messages"))[0]
        assert [row["payload"] for row in found] == [b"%d" % number for number in range(10)]
        (queue,) = self.read(subject, self.planned(subject, snapshot, table="queues"))[0]
        assert (queue["name"], queue["ready"], queue["last_seq"]) == ("q", 10, 10)
        release_snapshot(snapshot)

    @requires("bulk_read")
    def test_a_snapshot_that_is_asked_for_again_by_its_id_is_the_same(
        self, subject: Subject, q: Queue
    ) -> None:
        chosen = "00000000-0000-4000-8000-000000000001"
        q.enqueue(b"x")
        snapshot = subject.ps.take_snapshot(id=chosen)
        q.enqueue(b"later")
        assert subject.ps.take_snapshot(id=chosen) == snapshot
        assert snapshot.id == chosen
        found = self.read(subject, self.planned(subject, snapshot, table="messages"))[0]
        assert [row["payload"] for row in found] == [b"x"]
        release_snapshot(snapshot)
        assert len(self.rows(subject, "messages")) == 2

    @requires("bulk_read")
    def test_queues_of_one_name_are_told_apart_by_when_they_were_made(self, subject: Subject) -> None:
        seen = []
        for _ in range(2):
            q = subject.ps.create_queue("q")
            snapshot = subject.ps.take_snapshot()
            seen.append(self.planned(subject, snapshot, table="events").extents["q"].created_at_ns)
            assert q.stats().created_at_ns == seen[-1]
            release_snapshot(snapshot)
            subject.ps.delete_queue("q")
            subject.clock.advance(1)
        assert 0 < seen[0] < seen[1]

    @requires("bulk_read")
    def test_a_queue_that_is_deleted_meanwhile_is_still_in_the_snapshot(self, subject: Subject) -> None:
        q = subject.ps.create_queue("q")
        q.enqueue(b"x")
        snapshot = subject.ps.take_snapshot()
        subject.ps.delete_queue("q")
        sweep_all(subject.ps)
        plan = self.planned(subject, snapshot, table="messages", names=("q",))
        assert [row["payload"] for row in self.read(subject, plan)[0]] == [b"x"]
        release_snapshot(snapshot)
        with pytest.raises(QueueNotFound, match="'q'"):
            self.rows(subject, "messages", names=("q",))

    @requires("bulk_read")
    def test_a_released_snapshot_is_gone_for_everyone(self, subject: Subject, q: Queue) -> None:
        q.enqueue(b"x")
        snapshot = subject.ps.take_snapshot()
        plan = self.planned(subject, snapshot, table="messages")
        release_snapshot(snapshot)
        release_snapshot(snapshot)
        with pytest.raises(SnapshotNotFound, match=snapshot.id):
            self.read(subject, plan)

    @requires("bulk_read")
    def test_a_snapshot_lives_while_someone_reads_and_ends_when_nobody_does(
        self, subject: Subject, q: Queue
    ) -> None:
        q.enqueue(b"x")
        snapshot = subject.ps.take_snapshot(lifetime_s=100)
        for _ in range(5):
            subject.clock.advance(90)
            sweep_all(subject.ps)
            assert len(self.read(subject, self.planned(subject, snapshot, table="messages"))[0]) == 1
        subject.clock.advance(101)
        sweep_all(subject.ps)
        with pytest.raises(SnapshotNotFound, match="100 s"):
            self.planned(subject, snapshot, table="messages")

    @requires("bulk_read")
    def test_an_empty_queue_has_no_rows(self, subject: Subject, q: Queue) -> None:
        for table in TABLES:
            assert len(self.rows(subject, table, names=("q",))) == (1 if table == "queues" else 0)

    @refuses("bulk_read")
    def test_a_snapshot_is_refused_without_bulk_read(self, ps: Penstock) -> None:
        with pytest.raises(Unsupported) as caught:
            ps.take_snapshot()
        assert caught.value.flag == "bulk_read"
        assert "bulk_read" in str(caught.value)
