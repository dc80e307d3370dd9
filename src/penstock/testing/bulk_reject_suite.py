"""Bulk writes: rows, columns, jobs and queues that are not what they should be."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import pytest

from penstock import InvalidMessage, Penstock, Queue, QueueNotFound
from penstock.backends.bulk import Txn, Written
from penstock.message import MAX_PAYLOAD_BYTES
from penstock.testing.bulk_write_suite import Bulk, BulkWriteCase, Columns, batch_of
from penstock.testing.harness import drain, requires

if TYPE_CHECKING:
    import pyarrow as pa


class BulkRejectSuite(BulkWriteCase):
    """What is refused, row by row or as a whole, and what is not harmed by it."""

    # -- what is wrong with rows --------------------------------------------------------------------

    @requires("bulk_write")
    def test_bad_rows_are_set_aside_with_their_reason_and_fail_no_other(
        self, ps: Penstock, q: Queue, bulk: Bulk
    ) -> None:
        columns = {
            "payload": [b"a", None, b"c", b"d", b"e", b"f"],
            "fairness_key": ["k", "k", "x" * 1025, "nul\0", None, "k"],
            "weight": [1, 1, 1, 1, 1001, None],
        }
        assert bulk.write(ps, "q", columns) == Written(enqueued=2, rejected=4)
        assert drain(q) == [b"a", b"f"]
        reasons = dict(bulk.rejected)
        assert reasons[1] == "payload is null"
        assert "1025 bytes" in reasons[2]
        assert "NUL" in reasons[3]
        assert "weight is 1001" in reasons[4]

    @requires("bulk_write")
    def test_rows_of_every_kind_are_checked_as_enqueue_checks_them(
        self, ps: Penstock, q: Queue, bulk: Bulk
    ) -> None:
        bad: list[Columns] = [
            {"payload": [b""], "headers": [[("penstock-x", "1")]]},
            {"payload": [b""], "headers": [[("a", "v" * 70_000)]]},
            {"payload": [b""], "headers": [[("a", None)]]},
            {"payload": [b""], "throttle_keys": [["a"] * 17]},
            {"payload": [b""], "throttle_keys": [["a", None]]},
            {"payload": [b""], "priority": [10]},
            {"payload": [b""], "delay_s": [-1.0]},
            {"payload": [b""], "delay_s": [float("nan")]},
            {"payload": [b""], "ttl_s": [0.0]},
            {"payload": [b""], "dedup_id": [""]},
            {"payload": [b""], "id": ["not a uuid"]},
            {"payload": [None], "id": [str(uuid.UUID(int=1))]},
        ]
        for version, columns in enumerate(bad):
            written = bulk.write(ps, "q", columns, txn=Txn("suite", version))
            assert written == Written(rejected=1), columns
        assert len(bulk.rejected) == len(bad)
        assert q.length() == 0

    @requires("bulk_write")
    def test_a_payload_over_the_limit_is_set_aside(self, ps: Penstock, q: Queue, bulk: Bulk) -> None:
        large = bytes(MAX_PAYLOAD_BYTES + 1)
        assert bulk.write(ps, "q", {"payload": [b"a", large]}) == Written(enqueued=1, rejected=1)
        assert bulk.rejected[0][0] == 1
        assert "64 MiB" in bulk.rejected[0][1]

    @requires("bulk_write")
    def test_text_that_is_not_utf8_is_set_aside(self, ps: Penstock, q: Queue, bulk: Bulk) -> None:
        import pyarrow as pa

        broken = pa.array([b"fine", b"\xff"], pa.binary()).view(pa.string())
        payload = pa.array([b"a", b"b"], pa.binary())
        ticket = ps.begin_write("q")
        for version, name in enumerate(("fairness_key", "dedup_id")):
            txn = Txn("suite", version)
            columns: dict[str, pa.Array[Any]] = {"payload": payload, name: broken}
            staged = bulk.stage(ticket, txn, 0, pa.record_batch(columns))
            assert ps.commit_write(ticket, txn, [staged]) == Written(enqueued=1, rejected=1)
        assert all("not UTF-8" in reason for _, reason in bulk.rejected)

    @requires("bulk_write", "fifo")
    def test_what_a_fifo_queue_refuses_is_set_aside(self, ps: Penstock, bulk: Bulk) -> None:
        q = ps.create_queue("q", fifo=True)
        columns = {"payload": [b"a", b"b", b"c"], "priority": [9, None, None], "delay_s": [None, 3.0, None]}
        assert bulk.write(ps, "q", columns) == Written(enqueued=1, rejected=2)
        assert drain(q) == [b"c"]

    @requires("bulk_write")
    @pytest.mark.parametrize(
        ("columns", "says"),
        [
            ({"text": ["a"]}, "column 'text'"),
            ({"fairness_key": ["a"]}, "'payload' is missing"),
            ({"payload": [b"a"], "queue": ["q"]}, "leave one out"),
        ],
    )
    def test_columns_that_are_not_a_messages_are_refused(
        self, ps: Penstock, q: Queue, bulk: Bulk, columns: Columns, says: str
    ) -> None:
        with pytest.raises(InvalidMessage, match=says):
            bulk.write(ps, "q", columns)

    @requires("bulk_write")
    @pytest.mark.parametrize(
        "name", ["payload", "headers", "fairness_key", "weight", "throttle_keys", "delay_s", "id"]
    )
    def test_a_column_of_another_type_is_refused_by_name(
        self, ps: Penstock, q: Queue, bulk: Bulk, name: str
    ) -> None:
        import pyarrow as pa

        columns = {"payload": pa.array([b"a"]), name: pa.array([[{"x": 1}]])}
        with pytest.raises(InvalidMessage, match=f"column '{name}' is .*accepted"):
            bulk.stage(ps.begin_write("q"), Txn("suite", 1), 0, pa.record_batch(columns))

    @requires("bulk_write")
    @pytest.mark.parametrize("txn", [Txn("", 1), Txn("a" * 1025, 1), Txn("a", -1), Txn("a", 2**63)])
    def test_a_job_without_a_proper_name_is_refused(
        self, ps: Penstock, q: Queue, bulk: Bulk, txn: Txn
    ) -> None:
        ticket = ps.begin_write("q")
        for attempt in (
            lambda: bulk.stage(ticket, txn, 0, batch_of({"payload": [b"a"]})),
            lambda: ps.commit_write(ticket, txn, []),
        ):
            with pytest.raises(InvalidMessage, match="txn"):
                attempt()

    # -- queues -------------------------------------------------------------------------------------

    @requires("bulk_write")
    def test_rows_go_to_the_queue_that_their_column_names(self, ps: Penstock, q: Queue, bulk: Bulk) -> None:
        other = ps.create_queue("other/ü")
        columns = {
            "payload": [b"a", b"b", b"c", b"d", b"e"],
            "queue": ["q", "other/ü", "q", "nowhere", None],
        }
        assert bulk.write(ps, None, columns) == Written(enqueued=3, rejected=2)
        assert drain(q) == [b"a", b"c"]
        assert drain(other) == [b"b"]
        assert ["nowhere" in reason or "null" in reason for _, reason in bulk.rejected] == [True, True]

    @requires("bulk_write")
    def test_a_queue_that_does_not_exist_is_refused(self, ps: Penstock) -> None:
        with pytest.raises(QueueNotFound):
            ps.begin_write("nowhere")

    @requires("bulk_write")
    def test_no_queue_at_all_is_refused(self, ps: Penstock, q: Queue, bulk: Bulk) -> None:
        with pytest.raises(InvalidMessage, match="name the queue"):
            bulk.write(ps, None, {"payload": [b"a"]})

    @requires("bulk_write")
    def test_a_queue_that_was_deleted_meanwhile_is_refused_and_nothing_is_written(
        self, ps: Penstock, q: Queue, bulk: Bulk
    ) -> None:
        other = ps.create_queue("other")
        ticket, txn = ps.begin_write(), Txn("suite", 1)
        staged = bulk.stage(ticket, txn, 0, batch_of({"payload": [b"a", b"b"], "queue": ["q", "other"]}))
        ps.delete_queue("q")
        ps.create_queue("q")  # Another one, though it has the name.
        with pytest.raises(QueueNotFound, match="'q'"):
            ps.commit_write(ticket, txn, [staged])
        assert other.length() == ps.queue("q").length() == 0

    @requires("bulk_write")
    def test_a_queue_whose_script_must_see_messages_refuses_by_name(self, ps: Penstock, bulk: Bulk) -> None:
        pytest.importorskip("lupa")
        ps.create_queue("plain")
        ps.create_queue("q", on_enqueue="function on_enqueue(m) end")
        with pytest.raises(InvalidMessage, match="'q' has an on_enqueue script"):
            ps.begin_write("q")
        columns = {"payload": [b"a", b"b"], "queue": ["q", "plain"]}
        assert bulk.write(ps, None, columns) == Written(enqueued=1, rejected=1)
        ticket, txn = ps.begin_write("plain"), Txn("suite", 2)
        staged = bulk.stage(ticket, txn, 0, batch_of({"payload": [b"c"]}))
        ps.update_queue("plain", on_enqueue="function on_enqueue(m) end")
        with pytest.raises(InvalidMessage, match="'plain' has an on_enqueue script"):
            ps.commit_write(ticket, txn, [staged])
