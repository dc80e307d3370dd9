"""Bulk writes: what is staged is seen by nobody, what is committed is there once, whatever is tried again."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from penstock import InvalidMessage, Kind, ManualClock, NewMessage, Penstock, Queue, Unsupported
from penstock.backends.bulk import Staged, Txn, WriteTicket, Written
from penstock.backends.registry import open_writer
from penstock.keyring import KeyProvider
from penstock.testing.harness import (
    BackendCase,
    Subject,
    ack,
    drain,
    ids,
    payloads,
    refuses,
    requires,
    sweep_all,
    take,
    take_one,
)

Columns = Mapping[str, Any]


def batch_of(columns: Columns) -> Any:
    import pyarrow as pa

    types = {
        "payload": pa.binary(),
        "headers": pa.map_(pa.string(), pa.string()),
        "throttle_keys": pa.list_(pa.string()),
        "weight": pa.int32(),
        "priority": pa.int32(),
        "delay_s": pa.float64(),
        "ttl_s": pa.float64(),
    }
    return pa.record_batch(
        {name: pa.array(list(values), types.get(name, pa.string())) for name, values in columns.items()}
    )


def payloads_of(q: Queue) -> list[bytes]:
    """Of those that are ready, in their line."""
    return [message.payload for message in q.iter(state="ready")]


class Bulk:
    """Stages and commits, partition by partition, as a job would."""

    def __init__(self, open_keys: KeyProvider | None = None) -> None:
        self._keys = open_keys
        self.rejected: list[tuple[int, str]] = []
        #: Under which `write` has written, the last one last.
        self.tickets: list[WriteTicket] = []

    def stage(self, ticket: WriteTicket, txn: Txn, partition: int, *batches: Any) -> Staged:
        def set_aside(batch: Any) -> None:
            self.rejected += zip(batch["row"].to_pylist(), batch["reason"].to_pylist(), strict=True)

        with open_writer(ticket, self._keys) as writer:
            return writer.stage(txn, partition, batches, set_aside)

    def write(self, ps: Penstock, queue: str | None, *parts: Columns, txn: Txn | None = None) -> Written:
        """One partition for each of the columns given."""
        txn = txn or Txn("suite", 1)
        ticket = ps.begin_write(queue)
        self.tickets.append(ticket)
        staged = [self.stage(ticket, txn, at, batch_of(columns)) for at, columns in enumerate(parts)]
        return ps.commit_write(ticket, txn, staged)


class BulkWriteCase(BackendCase):
    """The fixtures of bulk writes."""

    @pytest.fixture
    def bulk(self) -> Bulk:
        return Bulk(self.keys())

    def keys(self) -> KeyProvider | None:
        """Where staging finds the keys of an encrypted store."""
        return None


class BulkWriteSuite(BulkWriteCase):
    """What a bulk write promises, where there is one."""

    @refuses("bulk_write")
    def test_bulk_write_is_refused_by_name_where_there_is_none(self, ps: Penstock, q: Queue) -> None:
        with pytest.raises(Unsupported, match="bulk_write"):
            ps.begin_write("q")

    # -- seen or not --------------------------------------------------------------------------------

    @requires("bulk_write")
    def test_staged_rows_are_seen_by_nobody_until_they_are_committed(
        self, ps: Penstock, q: Queue, bulk: Bulk
    ) -> None:
        ticket, txn = ps.begin_write("q"), Txn("suite", 1)
        staged = bulk.stage(ticket, txn, 0, batch_of({"payload": [b"a", b"b"]}))
        assert (staged.rows, staged.rejected) == (2, 0)
        assert q.length() == 0
        assert list(q.events()) == []
        assert q.lease(10) == []

        assert ps.commit_write(ticket, txn, [staged]) == Written(enqueued=2)
        assert q.stats().ready == q.stats().enqueued_total == 2
        assert drain(q) == [b"a", b"b"]

    @requires("bulk_write")
    def test_every_row_is_an_enqueued_event_in_order(self, ps: Penstock, q: Queue, bulk: Bulk) -> None:
        q.enqueue(b"first")
        bulk.write(ps, "q", {"payload": [b"%d" % n for n in range(20)]})
        events = q.events()
        assert [event.seq for event in events] == list(range(1, 22))
        assert {event.kind for event in events} == {"enqueued"}
        waiting = q.list(limit=100).items
        assert [event.message_id for event in events] == ids(waiting)
        assert payloads(waiting) == [b"first", *(b"%d" % n for n in range(20))]

    @requires("bulk_write")
    def test_partitions_come_in_their_order_and_rows_in_theirs(
        self, ps: Penstock, q: Queue, bulk: Bulk
    ) -> None:
        ticket, txn = ps.begin_write("q"), Txn("suite", 1)
        later = bulk.stage(ticket, txn, 7, batch_of({"payload": [b"c", b"d"]}))
        sooner = bulk.stage(ticket, txn, 2, batch_of({"payload": [b"a", b"b"]}))
        ps.commit_write(ticket, txn, [later, sooner])
        assert drain(q) == [b"a", b"b", b"c", b"d"]

    @requires("bulk_write")
    def test_a_write_takes_its_place_in_line_when_it_begins(
        self, ps: Penstock, q: Queue, clock: ManualClock, bulk: Bulk
    ) -> None:
        q.enqueue(b"before")
        clock.advance(1)
        ticket, txn = ps.begin_write("q"), Txn("suite", 1)
        clock.advance(1)
        q.enqueue(b"meanwhile")
        staged = bulk.stage(ticket, txn, 0, batch_of({"payload": [b"bulk"]}))
        clock.advance(1)
        ps.commit_write(ticket, txn, [staged])
        message = next(one for one in q.list().items if one.payload == b"bulk")
        assert message.enqueued_at_ns == message.visible_at_ns == ticket.at_ns
        assert drain(q) == [b"before", b"bulk", b"meanwhile"]

    @requires("bulk_write")
    def test_a_lane_that_is_half_served_goes_on_with_what_came_in_bulk(
        self, ps: Penstock, q: Queue, clock: ManualClock, bulk: Bulk
    ) -> None:
        q.enqueue_many([NewMessage(b"%d" % n) for n in range(10)])
        served = payloads(take(q, 4))
        clock.advance(1)
        bulk.write(ps, "q", {"payload": [b"%d" % n for n in range(10, 15)]})
        clock.advance(1)
        q.enqueue(b"15")
        assert served + drain(q, 3) == [b"%d" % n for n in range(16)]

    @requires("bulk_write")
    def test_who_waits_for_work_is_woken_by_a_commit(self, ps: Penstock, q: Queue, bulk: Bulk) -> None:
        bulk.write(ps, "q", {"payload": [b"a"]})
        assert payloads(q.lease(1, wait_s=5)) == [b"a"]

    @requires("bulk_write")
    def test_what_was_committed_is_there_after_reopening(self, subject: Subject, bulk: Bulk) -> None:
        subject.ps.create_queue("q")
        bulk.write(subject.ps, "q", {"payload": [b"a", b"b"], "fairness_key": ["x", None]})
        q = subject.reopen().queue("q")
        assert sorted(drain(q)) == [b"a", b"b"]

    @requires("bulk_write")
    def test_a_commit_of_nothing_is_one_all_the_same(self, ps: Penstock, q: Queue, bulk: Bulk) -> None:
        ticket = ps.begin_write("q")
        assert ps.commit_write(ticket, Txn("suite", 1), []) == Written()
        assert ps.commit_write(ticket, Txn("suite", 1), []) == Written(again=True)
        empty = bulk.stage(ticket, Txn("suite", 2), 0, batch_of({"payload": []}))
        assert ps.commit_write(ticket, Txn("suite", 2), [empty]) == Written()

    # -- what a row says ----------------------------------------------------------------------------

    @requires("bulk_write", "prioritization", "fairness", "throttling")
    def test_every_field_of_a_message_has_its_column(self, ps: Penstock, q: Queue, bulk: Bulk) -> None:
        given = str(uuid.uuid5(uuid.NAMESPACE_URL, "given"))
        bulk.write(
            ps,
            "q",
            {
                "payload": [b"x", b"y"],
                "headers": [[("type", "mail"), ("to", "ü")], None],
                "fairness_key": ["tenant", None],
                "weight": [7, None],
                "throttle_keys": [["api", "db"], None],
                "priority": [9, None],
                "ttl_s": [60.0, None],
                "dedup_id": ["once", None],
                "id": [given, None],
            },
        )
        x, y = sorted(q.list().items, key=lambda message: message.payload)
        assert x.id == given
        assert (x.headers, x.fairness_key, x.weight) == ({"type": "mail", "to": "ü"}, "tenant", 7)
        assert (list(x.throttle_keys), x.priority, x.dedup_id) == (["api", "db"], 9, "once")
        assert x.expires_at_ns == x.enqueued_at_ns + 60 * 10**9
        assert (y.headers, y.fairness_key, y.weight) == ({}, "", 1)
        assert (list(y.throttle_keys), y.priority, y.dedup_id) == ([], 4, None)
        assert y.expires_at_ns is None

    @requires("bulk_write")
    def test_a_column_of_text_is_a_payload_too(self, ps: Penstock, q: Queue, bulk: Bulk) -> None:
        import pyarrow as pa

        ticket, txn = ps.begin_write("q"), Txn("suite", 1)
        for partition, kind in enumerate((pa.string(), pa.large_string(), pa.large_binary(), pa.binary())):
            values = ["ü"] if partition < 2 else ["ü".encode()]
            staged = bulk.stage(
                ticket,
                Txn("suite", partition),
                partition,
                pa.record_batch({"payload": pa.array(values, kind)}),
            )
            ps.commit_write(ticket, Txn("suite", partition), [staged])
        assert drain(q) == ["ü".encode()] * 4
        assert txn.version == 1

    @requires("bulk_write", "delay")
    def test_delayed_rows_become_visible_when_they_are_due(
        self, ps: Penstock, q: Queue, clock: ManualClock, bulk: Bulk
    ) -> None:
        bulk.write(ps, "q", {"payload": [b"late", b"now", b"soon"], "delay_s": [20.0, None, 10.0]})
        assert (q.stats().delayed, q.stats().ready) == (2, 1)
        assert drain(q) == [b"now"]
        clock.advance(10)
        assert drain(q) == [b"soon"]
        clock.advance(10)
        assert drain(q) == [b"late"]

    @requires("bulk_write", "delay")
    def test_a_delay_counts_from_the_beginning_and_may_be_over_at_the_commit(
        self, ps: Penstock, q: Queue, clock: ManualClock, bulk: Bulk
    ) -> None:
        ticket, txn = ps.begin_write("q"), Txn("suite", 1)
        staged = bulk.stage(ticket, txn, 0, batch_of({"payload": [b"a"], "delay_s": [5.0]}))
        clock.advance(6)
        ps.commit_write(ticket, txn, [staged])
        assert drain(q) == [b"a"]

    @requires("bulk_write", "time_to_live", "delay")
    def test_rows_expire_when_their_time_is_over(
        self, ps: Penstock, q: Queue, clock: ManualClock, bulk: Bulk
    ) -> None:
        columns = {"payload": [b"a", b"b", b"c"], "ttl_s": [5.0, 50.0, 5.0], "delay_s": [None, None, 4.0]}
        bulk.write(ps, "q", columns)
        clock.advance(6)
        sweep_all(ps)
        assert drain(q) == [b"b"]
        assert [event.kind for event in q.events()].count(Kind.EXPIRED) == 2

    @requires("bulk_write", "fairness")
    def test_fairness_keys_take_turns(self, ps: Penstock, q: Queue, bulk: Bulk) -> None:
        keys = ["a"] * 30 + ["b"] * 30
        bulk.write(ps, "q", {"payload": [key.encode() for key in keys], "fairness_key": keys})
        first = payloads(take(q, 20))
        assert first.count(b"a") == first.count(b"b") == 10

    @requires("bulk_write")
    @pytest.mark.parametrize("rows", [20, 5000])
    def test_no_fairness_key_and_an_empty_one_are_the_same(
        self, ps: Penstock, q: Queue, bulk: Bulk, rows: int
    ) -> None:
        q.enqueue(b"before")
        assert drain(q) == [b"before"]
        expected = [b"%d" % n for n in range(rows)]
        keys = [None] * (rows // 2) + [""] * (rows // 2)
        bulk.write(ps, "q", {"payload": expected, "fairness_key": keys})
        alternating = {"payload": expected, "fairness_key": [None, ""] * (rows // 2)}
        bulk.write(ps, "q", alternating, txn=Txn("suite", 2))
        assert drain(q) == expected * 2

    @requires("bulk_write", "fifo")
    @pytest.mark.parametrize("rows", [20, 5000])
    def test_batches_with_and_without_a_column_of_ids_come_in_their_order(
        self, ps: Penstock, bulk: Bulk, rows: int
    ) -> None:
        q = ps.create_queue("q", fifo=True)
        q.enqueue(b"before")
        assert drain(q) == [b"before"]
        ticket, txn, none = ps.begin_write("q"), Txn("suite", 1), [None] * rows
        parts = [[b"%d %d" % (part, n) for n in range(rows)] for part in range(4)]
        columns = [
            {"payload": payloads, **({"id": none} if part % 2 else {})} for part, payloads in enumerate(parts)
        ]
        staged = bulk.stage(ticket, txn, 0, *map(batch_of, columns))
        ps.commit_write(ticket, txn, [staged])
        expected = [payload for part in parts for payload in part]
        assert payloads_of(q) == expected
        if rows < 100:  # One by one: of many that takes long.
            assert drain(q, 1) == expected

    @requires("bulk_write")
    def test_large_payloads_are_compressed_as_the_queue_says(self, ps: Penstock, bulk: Bulk) -> None:
        q = ps.create_queue("q", compress_over_bytes=100)
        rows = [b"x" * 10_000, b"y" * 50, bytes(range(256))]
        bulk.write(ps, "q", {"payload": rows}, {"payload": rows, "headers": [[("a", "b")]] * 3})
        assert drain(q) == rows * 2

    @requires("bulk_write", "fifo")
    def test_a_fifo_queue_keeps_the_order_of_rows(self, ps: Penstock, bulk: Bulk) -> None:
        q = ps.create_queue("q", fifo=True)
        columns = {"payload": [b"%d" % n for n in range(12)], "fairness_key": ["a", "b"] * 6}
        bulk.write(ps, "q", columns)
        seen: dict[str, list[bytes]] = {"a": [], "b": []}
        while deliveries := q.lease(10):
            assert len(deliveries) <= 2
            for delivery in deliveries:
                seen[delivery.fairness_key].append(delivery.payload)
            ack(q, deliveries)
        assert seen == {"a": [b"%d" % n for n in range(0, 12, 2)], "b": [b"%d" % n for n in range(1, 12, 2)]}

    @requires("bulk_write", "fifo")
    def test_given_ids_do_not_change_the_order_of_a_fifo_queue(self, ps: Penstock, bulk: Bulk) -> None:
        q = ps.create_queue("q", fifo=True)
        given = [str(uuid.uuid5(uuid.NAMESPACE_URL, str(n))) for n in range(20)]
        bulk.write(ps, "q", {"payload": [b"%d" % n for n in range(20)], "id": given})
        assert drain(q, 1) == [b"%d" % n for n in range(20)]

    # -- once ---------------------------------------------------------------------------------------

    @requires("bulk_write")
    def test_the_same_job_again_does_nothing_and_is_answered_the_same(
        self, ps: Penstock, q: Queue, bulk: Bulk
    ) -> None:
        columns = {"payload": [b"a", b"b", None]}
        assert bulk.write(ps, "q", columns) == Written(enqueued=2, rejected=1)
        assert drain(q) == [b"a", b"b"]
        by = bulk.tickets[0].id
        for _ in range(2):
            answer = bulk.write(ps, "q", columns)
            assert answer == Written(enqueued=2, rejected=1, again=True, by=by)
        assert ps.commit_write(bulk.tickets[0], Txn("suite", 1), []) == Written(
            enqueued=2, rejected=1, again=True
        )
        assert q.length() == 0

    @requires("bulk_write")
    def test_the_same_job_is_known_after_reopening(self, subject: Subject, bulk: Bulk) -> None:
        subject.ps.create_queue("q")
        bulk.write(subject.ps, "q", {"payload": [b"a"]})
        ps = subject.reopen()
        answer = bulk.write(ps, "q", {"payload": [b"a"]})
        assert answer == Written(enqueued=1, again=True, by=bulk.tickets[0].id)
        assert ps.queue("q").length() == 1

    @requires("bulk_write")
    def test_a_later_version_writes_and_an_earlier_one_is_superseded(
        self, ps: Penstock, q: Queue, bulk: Bulk
    ) -> None:
        assert bulk.write(ps, "q", {"payload": [b"a"]}, txn=Txn("app", 5)).enqueued == 1
        assert bulk.write(ps, "q", {"payload": [b"b"]}, txn=Txn("app", 6)).enqueued == 1
        assert bulk.write(ps, "q", {"payload": [b"c"]}, txn=Txn("app", 4)) == Written(superseded=True)
        assert bulk.write(ps, "q", {"payload": [b"d"]}, txn=Txn("other", 4)).enqueued == 1
        assert drain(q) == [b"a", b"b", b"d"]

    @requires("bulk_write")
    def test_a_job_counts_once_for_each_queue_that_it_writes_to(
        self, ps: Penstock, q: Queue, bulk: Bulk
    ) -> None:
        other = ps.create_queue("other")
        columns = {"payload": [b"a", b"b"]}
        for again in (False, True):
            for name in ("q", "other"):
                answer = bulk.write(ps, name, columns)
                assert (answer.enqueued, answer.again) == (2, again)
        found = {message.id for one in (q, other) for message in one.iter()}
        assert len(found) == 4
        assert drain(q) == drain(other) == [b"a", b"b"]

    @requires("bulk_write")
    def test_a_task_that_is_tried_again_counts_once(self, ps: Penstock, q: Queue, bulk: Bulk) -> None:
        ticket, txn = ps.begin_write("q"), Txn("suite", 1)
        bulk.stage(ticket, txn, 0, batch_of({"payload": [b"lost", b"too"]}))
        second = bulk.stage(ticket, txn, 0, batch_of({"payload": [b"a"]}))
        assert ps.commit_write(ticket, txn, [second]) == Written(enqueued=1)
        assert drain(q) == [b"a"]

    @requires("bulk_write")
    def test_a_partition_that_is_committed_twice_is_refused(self, ps: Penstock, q: Queue, bulk: Bulk) -> None:
        ticket, txn = ps.begin_write("q"), Txn("suite", 1)
        both = [bulk.stage(ticket, txn, 0, batch_of({"payload": [b"a"]})) for _ in range(2)]
        with pytest.raises(InvalidMessage, match="partition 0"):
            ps.commit_write(ticket, txn, both)
        assert q.length() == 0

    @requires("bulk_write")
    def test_an_id_that_exists_is_left_as_it_is_and_counted(self, ps: Penstock, q: Queue, bulk: Bulk) -> None:
        given = [str(uuid.uuid5(uuid.NAMESPACE_URL, str(n))) for n in range(4)]
        q.enqueue(b"old", id=given[1])
        columns = {"payload": [b"0", b"1", b"2", b"2 again", b"own"], "id": [*given[:3], given[2], None]}
        assert bulk.write(ps, "q", columns) == Written(enqueued=3, existing=2)
        assert q.get(given[1]).payload == b"old"
        assert sorted(drain(q)) == [b"0", b"2", b"old", b"own"]

    @requires("bulk_write")
    def test_an_id_in_two_partitions_is_enqueued_once(self, ps: Penstock, q: Queue, bulk: Bulk) -> None:
        given = str(uuid.uuid5(uuid.NAMESPACE_URL, "given"))
        one = {"payload": [b"a"], "id": [given]}
        assert bulk.write(ps, "q", one, {"payload": [b"b"], "id": [given]}) == Written(enqueued=1, existing=1)
        assert drain(q) == [b"a"]

    @requires("bulk_write")
    def test_the_id_of_a_message_that_is_gone_can_be_used_again(
        self, ps: Penstock, q: Queue, bulk: Bulk
    ) -> None:
        given = str(uuid.uuid5(uuid.NAMESPACE_URL, "given"))
        cursor = q.cursor("archive", required=True)
        q.enqueue(b"old", id=given)
        assert drain(q) == [b"old"]
        assert q.stats().held_bodies == 1
        assert bulk.write(ps, "q", {"payload": [b"new"], "id": [given]}) == Written(enqueued=1)
        assert q.get(given).payload == b"new"
        cursor.commit(q.stats().last_seq)

    @requires("bulk_write", "idempotent_enqueue")
    def test_a_dedup_id_counts_once_in_its_window(
        self, ps: Penstock, q: Queue, clock: ManualClock, bulk: Bulk
    ) -> None:
        q.enqueue(b"old", dedup_id="x")
        columns = {"payload": [b"a", b"b", b"c", b"d"], "dedup_id": ["x", "y", "y", None]}
        assert bulk.write(ps, "q", columns) == Written(enqueued=2, existing=2)
        assert sorted(drain(q)) == [b"b", b"d", b"old"]
        clock.advance(301)
        assert bulk.write(ps, "q", columns, txn=Txn("suite", 2)) == Written(enqueued=3, existing=1)

    @requires("bulk_write", "idempotent_enqueue")
    def test_an_id_of_a_duplicate_is_free_for_the_next_row(self, ps: Penstock, q: Queue, bulk: Bulk) -> None:
        q.enqueue(b"old", dedup_id="x")
        given = str(uuid.uuid5(uuid.NAMESPACE_URL, "twice"))
        columns = {"payload": [b"a", b"b", b"c"], "dedup_id": ["x", "y", "z"], "id": [given] * 3}
        assert bulk.write(ps, "q", columns) == Written(enqueued=1, existing=2)
        assert sorted(drain(q)) == [b"b", b"old"]

    @requires("bulk_write")
    def test_a_cursor_reads_what_came_in_bulk(self, ps: Penstock, q: Queue, bulk: Bulk) -> None:
        cursor = q.cursor("tail")
        bulk.write(ps, "q", {"payload": [b"%d" % n for n in range(50)]})
        seen = []
        while events := cursor.read(7):
            seen += [event.message_id for event in events]
            cursor.commit(events[-1].seq)
        assert seen == ids(q.list(limit=100).items)

    # -- given up -----------------------------------------------------------------------------------

    @requires("bulk_write")
    def test_an_aborted_write_leaves_nothing_and_cannot_be_committed(
        self, ps: Penstock, q: Queue, bulk: Bulk
    ) -> None:
        ticket, txn = ps.begin_write("q"), Txn("suite", 1)
        staged = bulk.stage(ticket, txn, 0, batch_of({"payload": [b"a"]}))
        ps.abort_write(ticket, txn)
        ps.abort_write(ticket, txn)
        with pytest.raises(Exception, match="run the job again"):
            ps.commit_write(ticket, txn, [staged])
        assert q.length() == 0
        assert bulk.write(ps, "q", {"payload": [b"b"]}, txn=txn) == Written(enqueued=1)

    @requires("bulk_write")
    def test_an_abort_after_the_commit_changes_nothing(self, ps: Penstock, q: Queue, bulk: Bulk) -> None:
        ticket, txn = ps.begin_write("q"), Txn("suite", 1)
        staged = bulk.stage(ticket, txn, 0, batch_of({"payload": [b"a"]}))
        ps.commit_write(ticket, txn, [staged])
        ps.abort_write(ticket, txn)
        assert drain(q) == [b"a"]

    @requires("bulk_write")
    def test_messages_that_came_in_bulk_live_as_others_do(
        self, ps: Penstock, q: Queue, clock: ManualClock, bulk: Bulk
    ) -> None:
        ps.create_queue("target")
        steps: list[Callable[[], object]] = [
            lambda: q.nack([take_one(q).receipt]),
            lambda: q.reject([take_one(q).receipt]),
            lambda: q.move([q.list().items[0].id], target="target"),
            lambda: q.upsert([NewMessage(b"changed", id=q.list().items[0].id)]),
            lambda: take_one(q, lease_s=1),
        ]
        bulk.write(ps, "q", {"payload": [b"%d" % n for n in range(10)]})
        for step in steps:
            step()
        clock.advance(5)
        sweep_all(ps)
        assert q.purge() == 8
        assert q.redrive() == 1
        assert len(drain(q)) == 1
        assert len(drain(ps.queue("target"))) == 1
