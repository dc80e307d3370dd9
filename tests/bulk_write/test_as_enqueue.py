"""Rows that come in bulk become what `enqueue` makes of the same messages, one by one."""

from __future__ import annotations

import tempfile
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import penstock
from penstock import ManualClock, NewMessage, Queue, Txn
from penstock.backends.embedded import chunks, slices, stager
from penstock.message import DEFAULT_PRIORITY
from tests.bulk_write.scenario import SCHEMA

#: Without the queue, with what the scenario leaves out.
FIELDS = pa.schema(
    [
        *(field for field in SCHEMA if field.name != "queue"),
        pa.field("weight", pa.int64()),
        pa.field("priority", pa.int64()),
        pa.field("throttle_keys", pa.list_(pa.string())),
    ]
)

maybe = st.none
names = st.sampled_from(["", "a", "b", "ü", "x" * 1025, "nul\0"])
IDS = [str(uuid.UUID(int=n, version=4)) for n in range(6)]

rows = st.fixed_dictionaries(
    {"payload": st.binary(max_size=300)},
    optional={
        "headers": st.dictionaries(
            st.sampled_from(["type", "penstock-x", ""]), st.text(max_size=5), max_size=2
        ),
        "fairness_key": names,
        "weight": st.integers(-1, 1002),
        "throttle_keys": st.lists(st.sampled_from(["t", "u", ""]), max_size=3),
        "priority": st.integers(-1, 10),
        "delay_s": st.sampled_from([-1.0, 0.0, 5.0, 1e12, float("inf")]),
        "ttl_s": st.sampled_from([0.0, 3.0, 50.0]),
        "dedup_id": st.sampled_from(["", "d", "e"]),
        "id": st.sampled_from([*IDS, "no id"]),
    },
)


def told(q: Queue) -> Counter[tuple[Any, ...]]:
    """Everything of a message but the id, where it was given none, and the time of its commit."""
    return Counter(
        (
            m.payload,
            m.state,
            tuple(sorted(m.headers.items())),
            m.fairness_key,
            m.weight,
            tuple(m.throttle_keys),
            m.priority,
            m.dedup_id,
            m.visible_at_ns,
            m.expires_at_ns,
            m.id if m.id in IDS else None,
        )
        for m in q.iter()
    )


def message(row: dict[str, Any]) -> NewMessage:
    return NewMessage(**row)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many chunks and slices, though there are few rows."""
    monkeypatch.setattr(chunks, "CHUNK_ROWS", 8)
    monkeypatch.setattr(chunks, "TABLE_ROWS", 6)
    monkeypatch.setattr(chunks, "READY_AT_ONCE", 2)
    monkeypatch.setattr(stager, "SLICE_ROWS", 5)
    monkeypatch.setattr(slices, "SLICE_ROWS", 12)
    monkeypatch.setattr(slices, "LOOSE_ROWS", 3)


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    st.lists(rows, max_size=25), st.lists(rows, max_size=25), st.booleans(), st.sampled_from([None, 0, 50])
)
def test_rows_in_bulk_are_what_enqueue_makes_of_them(
    before: list[dict[str, Any]], given_rows: list[dict[str, Any]], fifo: bool, compress: int | None
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        clock = ManualClock()
        with penstock.open(f"rocksdb:{Path(folder, 'store')}?durability=os", clock=clock) as ps:
            one = ps.create_queue("one", fifo=fifo, compress_over_bytes=compress)
            bulk = ps.create_queue("bulk", fifo=fifo, compress_over_bytes=compress)
            for q in (one, bulk):
                q.enqueue_many([message(row) for row in before])
            results = one.enqueue_many([message(row) for row in given_rows])

            ticket, txn = ps.begin_write("bulk"), Txn("property", 1)
            listed = [{field.name: row.get(field.name) for field in FIELDS} for row in given_rows]
            for row in listed:
                row["headers"] = None if row["headers"] is None else list(row["headers"].items())
            batch = pa.RecordBatch.from_pylist(listed, FIELDS)
            with penstock.open_writer(ticket) as writer:
                staged = writer.stage(txn, 0, [batch])
            written = ps.commit_write(ticket, txn, [staged])

            assert written.rejected == sum(not result.ok for result in results)
            assert written.existing == sum(result.duplicate for result in results)
            assert written.enqueued == sum(result.ok and not result.duplicate for result in results)
            assert told(bulk) == told(one)
            assert one.stats().last_seq == bulk.stats().last_seq
            report = ps.check()
            assert report.ok, report.problems
            assert all(m.priority == DEFAULT_PRIORITY for m in bulk.iter()) or not fifo
