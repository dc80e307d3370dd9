"""Where a store must do without a table that cannot be opened, what came in bulk beside it is kept."""

from __future__ import annotations

import os
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import penstock
from penstock import ManualClock, NewMessage, Txn
from penstock.backends.embedded import chunks
from penstock.kv import opened
from penstock.kv.damage import tables_of
from penstock.kv.rocksdb import RocksStore
from penstock.kv.scratch import _made_beside
from penstock.kv.tuning import family_options

ROWS = 120


def _without_compactions(*args: Any, **kwargs: Any) -> Any:
    """Which would put tables together before one of them can be lost."""
    options = family_options(*args, **kwargs)
    options.set_disable_auto_compactions(True)
    return options


@pytest.mark.parametrize("given_ids", [False, True])
def test_a_broken_table_costs_nothing_of_what_came_in_bulk(
    tmp_path: Path, given_ids: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunks, "TABLE_ROWS", 1)
    monkeypatch.setattr(chunks, "CHUNK_ROWS", 40)  # Several tables, which with given ids overlap.
    monkeypatch.setattr("penstock.backends.embedded.stager.SLICE_ROWS", 20)
    monkeypatch.setattr(opened, "family_options", _without_compactions)
    folder, clock = tmp_path / "store", ManualClock()
    with penstock.open(folder, clock=clock) as ps:
        q = ps.create_queue("q")
        ticket, txn = ps.begin_write("q"), Txn("app", 1)
        columns: dict[str, pa.Array[Any]] = {
            "payload": pa.array([b"%03d" % n for n in range(ROWS)], pa.binary())
        }
        if given_ids:
            ids = [str(uuid.uuid5(uuid.NAMESPACE_URL, str(n))) for n in range(ROWS)]
            columns["id"] = pa.array(ids)
        with penstock.open_writer(ticket) as writer:
            ps.commit_write(ticket, txn, [writer.stage(txn, 0, [pa.record_batch(columns)])])
        q.ack([delivery.receipt for delivery in q.lease(30)])
    # A table of deletions, and one of messages that is about to be lost.
    with penstock.open(folder, clock=clock) as ps:
        ps.queue("q").enqueue_many([NewMessage(b"lost %d" % n) for n in range(50)])
    store = RocksStore.open(folder, ["messages"])
    tables = sorted(tables_of(store._families[store.space("messages")]))
    store.close()
    own = [name for name in tables if not _made_beside(folder / name)]
    assert len(own) >= 2
    assert len(tables) > len(own)
    os.truncate(folder / own[-1], 100)

    with penstock.open(folder, clock=clock) as ps:
        assert ps.check(repair=True).remaining == 0
        left = sorted(m.payload for m in ps.queue("q").iter() if not m.payload.startswith(b"lost"))
        assert left == [b"%03d" % n for n in range(30, ROWS)]


@pytest.mark.parametrize("at", [0.0, 0.5, 0.9])
def test_a_flipped_bit_costs_its_block_and_no_more(tmp_path: Path, at: float) -> None:
    folder, clock, rows = tmp_path / "store", ManualClock(), 10_000
    with penstock.open(folder, clock=clock) as ps:
        ps.create_queue("q")
        ticket, txn = ps.begin_write("q"), Txn("app", 1)
        columns = {"payload": pa.array([b"%05d" % n * 20 for n in range(rows)], pa.binary())}
        with penstock.open_writer(ticket) as writer:
            ps.commit_write(ticket, txn, [writer.stage(txn, 0, [pa.record_batch(columns)])])
    store = RocksStore.open(folder, ["messages"])
    (table,) = tables_of(store._families[store.space("messages")])
    store.close()
    with (folder / table).open("r+b") as file:
        file.seek(int((folder / table).stat().st_size * at) + 100)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes((byte[0] ^ 1,)))
    with penstock.open(folder, clock=clock) as ps:
        assert not ps.check().ok
        assert ps.check(repair=True).remaining == 0
        left = [m.payload for m in ps.queue("q").iter()]
        assert rows - 300 < len(left) < rows
        assert set(left) < {b"%05d" % n * 20 for n in range(rows)}
