"""What a lease has read ahead is not served for a message that a bulk write has put under its id."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import penstock
from penstock import NewMessage, Txn
from penstock.backends.embedded import chunks, lanes


@pytest.mark.parametrize("table_rows", [1, 10_000], ids=["tables", "rows"])
def test_a_body_that_was_remembered_is_not_served_once_a_bulk_write_has_another(
    table_rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunks, "TABLE_ROWS", table_rows)
    monkeypatch.setattr(lanes, "KEPT_BODIES", 0)  # As if more were waiting than are kept with their rows.
    with penstock.open(tmp_path) as ps:
        q = ps.create_queue("q")
        ticket, txn = ps.begin_write("q"), Txn("app", 1)
        messages = [NewMessage(b"old", fairness_key=f"{n // 20}") for n in range(200)]
        for n in range(2, 8):
            messages[n] = NewMessage(b"old", fairness_key="0", delay_s=60)
        ids = [result.id or "" for result in q.enqueue_many(messages)][2:8]
        assert len(q.lease(20)) == 20  # It passes over those, and remembers them.
        q.purge("delayed")
        with penstock.open_writer(ticket) as writer:
            new = pa.array([b"new"] * len(ids))
            columns: dict[str, pa.Array[Any]] = {"id": pa.array(ids), "payload": new}
            rows = pa.record_batch(columns)
            staged = writer.stage(txn, 0, [rows])
        assert ps.commit_write(ticket, txn, [staged]).enqueued == len(ids)
        found: dict[str, bytes] = {}
        while held := q.lease(10):
            found |= {one.id: one.payload for one in held}
        assert [found[one] for one in ids] == [b"new"] * len(ids)
