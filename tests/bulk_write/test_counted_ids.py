"""Ids of a job that follow each other are written once for many: in staged files, and in journals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import penstock
from penstock import Penstock, Txn
from penstock.backends.bulk import Staged
from penstock.backends.embedded import chunks, ingesting, stager
from penstock.backends.embedded.tables import frames
from tests.bulk.reading import read

ROWS = 1000


@pytest.fixture(autouse=True, params=[1, 10_000], ids=["tables", "rows"])
def small(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "CHUNK_ROWS", 300)
    monkeypatch.setattr(chunks, "TABLE_ROWS", request.param)
    monkeypatch.setattr(stager, "SLICE_ROWS", 100)
    monkeypatch.setattr(ingesting, "FRAME_ROWS", 64)


def written(ps: Penstock, **columns: Any) -> tuple[Staged, list[str]]:
    """What was staged of some payloads, and the ids by the journal, in its order."""
    ps.create_queue("q")
    ticket, txn = ps.begin_write("q"), Txn("app", 1)
    with penstock.open_writer(ticket) as writer:
        staged = writer.stage(txn, 3, [pa.record_batch(columns)])
    assert ps.commit_write(ticket, txn, [staged]).enqueued == staged.rows
    return staged, [event.message_id for event in ps.queue("q").events(limit=2 * ROWS)]


def payloads(bad: tuple[int, ...] = ()) -> pa.Array[Any]:
    return pa.array([None if n in bad else b"%d" % n for n in range(ROWS)], pa.binary())


def test_each_event_has_its_message_and_none_has_an_id_of_its_own(tmp_path: Path) -> None:
    with penstock.open(tmp_path) as ps:
        staged, ids = written(ps, payload=payloads())
        assert [ps.queue("q").get(one).payload for one in ids] == [b"%d" % n for n in range(ROWS)]
        rows_bytes = sum(chunk.sizes_bytes[2] for chunk in staged.chunks if chunk.sizes_bytes[0])
        assert rows_bytes < ROWS
        assert ps.queue("q").stats().journal_bytes < 4 * ROWS
        assert ps.check().ok


def test_rows_that_were_set_aside_leave_gaps(tmp_path: Path) -> None:
    bad = (0, 7, 350, 999)
    with penstock.open(tmp_path) as ps:
        _, ids = written(ps, payload=payloads(bad))
        found = [ps.queue("q").get(one).payload for one in ids]
        assert found == [b"%d" % n for n in range(ROWS) if n not in bad]
        assert ps.check().ok


def test_rows_that_wait_or_expire_have_ids_that_are_counted_too(tmp_path: Path) -> None:
    waits = pa.array([3600.0 if n % 9 == 0 else None for n in range(ROWS)])
    ends = pa.array([7200.0 if n % 10 == 0 else None for n in range(ROWS)])
    with penstock.open(tmp_path) as ps:
        _, ids = written(ps, payload=payloads(), delay_s=waits, ttl_s=ends)
        for n, one in enumerate(ids):
            message = ps.queue("q").get(one)
            assert (message.payload, message.state) == (b"%d" % n, "ready" if n % 9 else "delayed")
            assert (message.expires_at_ns is not None) == (n % 10 == 0)
        assert ps.check().ok


def test_a_table_of_events_has_them_and_takes_some_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frames, "CHUNK_EVENTS", 100)
    most, made = [0], frames.Events

    def counted(runs: frames.Runs, low: int, high: int) -> frames.Events:
        most[0] = max(most[0], int(runs.rows.sum()))
        return made(runs, low, high)

    monkeypatch.setattr("penstock.backends.embedded.tables.events.Events", counted)
    with penstock.open(tmp_path) as ps:
        _, ids = written(ps, payload=payloads())
        rows = read(ps.take_snapshot(), "events")
        assert [row["message_id"] for row in rows] == ids
        assert 64 <= most[0] <= 100 + 64


def test_a_repair_of_a_journal_keeps_them(tmp_path: Path) -> None:
    with penstock.open(tmp_path) as ps:
        _, ids = written(ps, payload=payloads())
        engine = ps._default.engine  # type: ignore[attr-defined]  # the rows behind the facade
        frames_there = list(engine.kv.scan(engine.journal, b"", None))
        batch = engine.kv.batch()
        batch.delete(frames_there[5][0], engine.journal)
        engine.kv.write(batch)
        assert not ps.check().ok
        ps.check(repair=True)
        assert ps.check().ok
        told = ps.queue("q").events(limit=4 * ROWS)
        found = {event.message_id for event in told if event.kind == "enqueued"}
        assert found <= set(ids)
        assert len(found) >= ROWS - 64
        assert ps.queue("q").length() == ROWS
