"""Bulk requests: what is asked for is what is read, in as many parts as are wanted; the rest is refused."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from penstock import Entry, InvalidMessage, NewMessage, Queue
from penstock.backends.bulk import BulkPlan, BulkRequest, SeqRange
from penstock.backends.registry import open_reader, release_snapshot
from penstock.errors import HistoryTruncated
from penstock.tables import TABLES, TableName
from penstock.testing.bulk_read_suite import BulkCase, Row, mixed_load
from penstock.testing.harness import Subject, ids, receipts, requires, sweep_all, take


class BulkPlanSuite(BulkCase):
    """What is asked for is what is read, in as many parts as are wanted."""

    @requires("bulk_read")
    def test_partitions_share_no_row_and_leave_none_out(self, subject: Subject) -> None:
        ps = subject.ps
        for number, count in enumerate((4000, 10, 2500)):
            q = ps.create_queue(f"q{number}")
            for start in range(0, count, 500):
                q.enqueue_many([NewMessage(b"x")] * min(500, count - start))
                subject.clock.advance(0.5)
            q.reject(receipts(q.lease(count // 4)))
            ps.journal(f"w{number}").append([Entry("k")] * count)
        snapshot = ps.take_snapshot()
        for table in TABLES:
            for wanted in (1, 2, 7):
                plan = self.planned(subject, snapshot, table=table, partitions=wanted)
                self.check_parts(table, plan, self.read(subject, plan))
        release_snapshot(snapshot)

    def check_parts(self, table: str, plan: BulkPlan, parts: list[list[Row]]) -> None:
        assert [part.number for part in plan.partitions] == list(range(len(parts)))
        assert len(parts) <= plan.request.partitions
        rows = [row for part in parts for row in part]
        places = [(row.get("queue"), row.get("name"), row.get("id"), row.get("seq")) for row in rows]
        assert len(set(places)) == len(places)
        assert len(rows) == sum(extent.rows for extent in plan.extents.values())
        if table in ("events", "entries"):
            assert max(map(len, parts)) <= 2 * len(rows) / plan.request.partitions

    @requires("bulk_read")
    def test_columns_come_alone_and_in_the_order_asked_for(self, subject: Subject, q: Queue) -> None:
        mixed_load(subject.ps, q)
        subject.ps.journal("w").append([Entry("k", b"b", vector=[1.0])])
        snapshot = subject.ps.take_snapshot()
        with open_reader(snapshot, self.keys(), subject.clock) as reader:

            def rows(table: TableName, *columns: str) -> list[Row]:
                plan = reader.plan(BulkRequest(table=table, columns=columns or None))
                return [row for part in plan.partitions for b in reader.read(part) for row in b.to_pylist()]

            for table, columns in TABLES.items():
                whole, names = rows(table), tuple(column.name for column in reversed(columns))
                assert list(rows(table, *names)[0].items()) == list(reversed(whole[0].items()))
                for name in names:
                    assert rows(table, name) == [{name: row[name]} for row in whole]
            reader.release()

    @requires("bulk_read")
    def test_states_times_and_kinds_are_filters(self, subject: Subject) -> None:
        ps, clock = subject.ps, subject.clock
        q = ps.create_queue("q", retention_s=1000)
        mixed_load(ps, q)
        clock.advance(10)
        at_ns = clock.now_ns()
        q.enqueue_many([NewMessage()] * 3)
        clock.advance(10)
        q.enqueue(b"last")
        ps.journal("w").append([Entry("a"), Entry("b"), Entry("c")])
        whole: dict[str, list[Row]] = {table: self.rows(subject, table) for table in TABLES}
        wanted: list[tuple[str, dict[str, Any], Callable[[Row], bool]]] = [
            ("messages", {"states": ("dead",)}, lambda row: row["state"] == "dead"),
            ("messages", {"states": ("dead", "leased")}, lambda row: row["state"] in ("dead", "leased")),
            ("messages", {"states": ("ready", "done")}, lambda row: row["state"] in ("ready", "done")),
            ("messages", {"states": ()}, lambda row: False),
            ("messages", {"since_ns": at_ns}, lambda row: row["enqueued_at_ns"] >= at_ns),
            ("messages", {"until_ns": at_ns}, lambda row: row["enqueued_at_ns"] < at_ns),
            ("bodies", {"since_ns": at_ns}, lambda row: row["enqueued_at_ns"] >= at_ns),
            ("dead", {"since_ns": at_ns}, lambda row: False),
            ("events", {"kinds": ("nacked", "dead")}, lambda row: row["kind"] in ("nacked", "dead")),
            (
                "events",
                {"since_ns": at_ns, "until_ns": at_ns + 1, "kinds": ("enqueued",)},
                lambda row: row["at_ns"] == at_ns,
            ),
            ("entries", {"kinds": ("a", "c")}, lambda row: row["kind"] in ("a", "c")),
            ("entries", {"until_ns": at_ns}, lambda row: row["at_ns"] < at_ns),
            ("queues", {"pattern": "else.*"}, lambda row: row["name"] == "elsewhere"),
        ]
        for table, request, fits in wanted:
            found = self.rows(subject, table, **request)
            expected = [row for row in whole[table] if fits(row)]
            assert sorted(found, key=repr) == sorted(expected, key=repr), (table, request)

    @requires("bulk_read", "journal")
    def test_ranges_of_seqs_are_half_open_and_end_with_the_snapshot(self, subject: Subject, q: Queue) -> None:
        for _ in range(4):
            q.enqueue_many([NewMessage()] * 5)
        ps = subject.ps
        ps.journal("w").append([Entry("k")] * 7)
        ps.journal("w").append([Entry("k")] * 3)

        def seqs(table: str, name: str, *bounds: int | None, **more: Any) -> list[int]:
            request = {"seqs": {name: SeqRange(*bounds)}, "names": (name,), **more}  # type: ignore[arg-type]
            return [row["seq"] for row in self.rows(subject, table, **request)]

        assert seqs("events", "q", 3, 12) == list(range(3, 12))
        assert seqs("events", "q", 3, 12, partitions=5) == list(range(3, 12))
        assert seqs("events", "q", 20, 21) == [20]
        assert seqs("events", "q", 18, 1000) == [18, 19, 20]
        assert seqs("events", "q", 18) == [18, 19, 20]
        assert seqs("events", "q", 21) == seqs("events", "q", 7, 7) == []
        assert seqs("bodies", "q", 4, 7) == [4, 5, 6]
        assert seqs("entries", "w", 6, 9) == [6, 7, 8]
        assert seqs("entries", "w", 0, 3) == [1, 2]

    @requires("bulk_read", "journal")
    def test_a_range_that_retention_has_passed_is_told(self, subject: Subject) -> None:
        q = subject.ps.create_queue("q", journal_retention_s=10)
        q.enqueue_many([NewMessage()] * 5)
        subject.clock.advance(11)
        q.enqueue_many([NewMessage()] * 2)
        sweep_all(subject.ps)
        assert q.stats().first_seq == 6
        with pytest.raises(HistoryTruncated, match="starts at 6") as caught:
            self.rows(subject, "events", seqs={"q": SeqRange(3)})
        assert caught.value.first_seq == 6
        for request in (
            {},
            {"seqs": {"q": SeqRange(0)}},
            {"seqs": {"q": SeqRange(3)}, "on_truncated": "skip"},
        ):
            assert [row["seq"] for row in self.rows(subject, "events", **request)] == [6, 7]
        snapshot = subject.ps.take_snapshot()
        extent = self.planned(subject, snapshot, table="events").extents["q"]
        assert (extent.first_seq, extent.last_seq, extent.rows) == (6, 7, 2)
        release_snapshot(snapshot)

    @requires("bulk_read")
    def test_what_cannot_be_asked_for_is_refused_by_name(self, subject: Subject, q: Queue) -> None:
        bad: list[tuple[dict[str, Any], str]] = [
            ({"table": "nonsense"}, "'nonsense' is not known; accepted: messages"),
            ({"table": "messages", "columns": ("id", "colour")}, "no column 'colour'; it has: queue"),
            ({"table": "messages", "columns": ("id", "id")}, "'id' is asked for twice"),
            ({"table": "messages", "columns": ()}, "no columns"),
            ({"table": "messages", "states": ("tired",)}, "state 'tired' is not known; accepted: delayed"),
            ({"table": "events", "kinds": ("sung",)}, "kind 'sung' is not known; accepted: enqueued"),
            ({"table": "events", "states": ("dead",)}, "states does not go with the table events"),
            ({"table": "dead", "states": ("dead",)}, "states does not go with the table dead"),
            ({"table": "messages", "seqs": {"q": SeqRange(1)}}, "seqs does not go with the table messages"),
            ({"table": "messages", "kinds": ("enqueued",)}, "kinds does not go with"),
            ({"table": "events", "seqs": {"x": SeqRange(1)}}, "seqs has 'x'"),
            ({"table": "events", "seqs": {"q": SeqRange(-1)}}, "first is -1"),
            ({"table": "events", "since_ns": -5}, "since_ns or until_ns is -5"),
            ({"table": "events", "names": ("q",), "pattern": "q"}, "names and pattern are both given"),
            ({"table": "events", "pattern": "["}, "not a regular expression"),
            ({"table": "events", "partitions": 0}, "partitions is 0"),
        ]
        snapshot = subject.ps.take_snapshot()
        for request, text in bad:
            with pytest.raises(InvalidMessage) as caught:
                self.planned(subject, snapshot, **request)
            assert text in str(caught.value)
        release_snapshot(snapshot)
        for lifetime_s in (0, -1, "long", True, 1e12):
            with pytest.raises(InvalidMessage, match="lifetime_s"):
                subject.ps.take_snapshot(lifetime_s=lifetime_s)  # type: ignore[arg-type]  # on purpose

    @requires("bulk_read")
    def test_ids_that_a_producer_chose_are_cut_and_read_like_any(self, subject: Subject, q: Queue) -> None:
        rng = random.Random(3)
        chosen = [f"{rng.getrandbits(128):032x}" for _ in range(3000)] + ["f" * 32, "0" * 31 + "1"]
        texts = [f"{h[:8]}-{h[8:12]}-{h[12:16]}-{h[16:20]}-{h[20:]}" for h in chosen]
        assert sorted(ids(q.enqueue_many([NewMessage(id=text) for text in texts]))) == sorted(texts)
        q.nack(receipts(take(q, 1500)), delay_s=0)
        found = self.rows(subject, "messages", partitions=3, columns=("id", "attempts"))
        assert sorted(row["id"] for row in found) == sorted(texts)
        assert sum(row["attempts"] for row in found) == 1500
