"""Staged files that are damaged or gone: nothing comes, or the rest comes when the job is run again."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import penstock
from penstock import InvalidMessage, ManualClock, Penstock, StorageCorrupt, Txn, WriteTicket, Written
from penstock.backends.bulk import Staged
from penstock.backends.embedded import chunks, slices, staged
from penstock.testing.harness import drain

ROWS = 400
TXN = Txn("app", 1)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "CHUNK_ROWS", 50)
    monkeypatch.setattr("penstock.backends.embedded.stager.SLICE_ROWS", 25)
    monkeypatch.setattr(slices, "SLICE_ROWS", 100)


@pytest.fixture
def tables(small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "TABLE_ROWS", 1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "store"


def opened(folder: Path) -> Penstock:
    return penstock.open(folder, clock=ManualClock())


@pytest.fixture
def ps(folder: Path) -> Iterator[Penstock]:
    with opened(folder) as ps:
        ps.create_queue("q")
        yield ps


def payloads(count: int = ROWS) -> list[bytes]:
    return [b"%04d" % n for n in range(count)]


def stage(ticket: WriteTicket, partitions: int = 1) -> list[Staged]:
    rows, size = payloads(), ROWS // partitions
    with penstock.open_writer(ticket) as writer:
        return [
            writer.stage(
                TXN, n, [pa.record_batch({"payload": pa.array(rows[n * size :][:size], pa.binary())})]
            )
            for n in range(partitions)
        ]


def file_of(folder: Path, ending: str, at: int) -> Path:
    return sorted((folder / staged.STAGING).glob(f"*/*{ending}"))[at]


def overwrite(path: Path, at: slice) -> None:
    raw = bytearray(path.read_bytes())
    raw[at] = bytes(len(raw[at]))
    path.write_bytes(raw)


def half_done(ps: Penstock, folder: Path, ending: str) -> tuple[WriteTicket, list[Staged]]:
    """A job of which half is in when its files turn out to be damaged."""
    ticket = ps.begin_write("q")
    parts = stage(ticket)
    overwrite(file_of(folder, ending, 4), slice(-60, -8))
    with pytest.raises(StorageCorrupt, match="run the job again"):
        ps.commit_write(ticket, TXN, parts)
    assert "backup" not in str(ps.health())  # The store itself is sound.
    assert ps.queue("q").length() == 200
    return ticket, parts


@pytest.mark.usefixtures("tables")
@pytest.mark.parametrize("ending", staged.FILES)
def test_a_staged_file_that_was_cut_is_refused_and_nothing_comes(
    ps: Penstock, folder: Path, ending: str
) -> None:
    ticket = ps.begin_write("q")
    parts = stage(ticket)
    path = file_of(folder, ending, 0)
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(StorageCorrupt, match="run the job again"):
        ps.commit_write(ticket, TXN, parts)
    assert ps.queue("q").length() == 0
    assert ps.health().status == "healthy"
    ticket = ps.begin_write("q")
    assert ps.commit_write(ticket, TXN, stage(ticket)).enqueued == ROWS


@pytest.mark.usefixtures("tables")
@pytest.mark.parametrize("ending", [staged.MESSAGES, staged.ROWS])
def test_a_staged_file_that_is_damaged_is_refused_and_nothing_comes(
    ps: Penstock, folder: Path, ending: str
) -> None:
    ticket = ps.begin_write("q")
    parts = stage(ticket)
    overwrite(file_of(folder, ending, 0), slice(-60, -8))
    with pytest.raises(StorageCorrupt, match="run the job again"):
        ps.commit_write(ticket, TXN, parts)
    assert ps.queue("q").length() == 0
    assert ps.check().ok
    assert ps.health().status == "healthy"
    ticket = ps.begin_write("q")
    assert ps.commit_write(ticket, TXN, stage(ticket)).enqueued == ROWS


def test_a_flipped_bit_in_a_body_that_is_staged_without_tables_is_noticed(ps: Penstock, folder: Path) -> None:
    ticket = ps.begin_write("q")
    parts = stage(ticket)
    path = file_of(folder, staged.ROWS, 0)
    at = path.read_bytes().index(b"0007")
    overwrite(path, slice(at, at + 1))
    with pytest.raises(StorageCorrupt, match="run the job again"):
        ps.commit_write(ticket, TXN, parts)
    assert ps.queue("q").length() == 0


@pytest.mark.usefixtures("tables")
@pytest.mark.parametrize("ending", [staged.MESSAGES, staged.ROWS])
def test_a_job_whose_files_are_damaged_half_way_is_finished_when_it_is_run_again(
    ps: Penstock, folder: Path, ending: str
) -> None:
    half_done(ps, folder, ending)
    q = ps.queue("q")
    got = drain(q)  # What is in and consumed must not come once more.
    assert got == payloads()[:200]
    assert ps.health().status == "degraded"
    assert set(ps.check().counts) == {"load_cut_off"}
    ticket = ps.begin_write("q")
    assert ps.commit_write(ticket, TXN, stage(ticket)) == Written(enqueued=ROWS)
    assert drain(q) == payloads()[200:]
    assert ps.health().status == "healthy"
    assert ps.check().ok
    assert ps.commit_write(ticket, TXN, []).again


def test_a_job_whose_files_are_gone_is_finished_when_it_is_run_again_after_opening(folder: Path) -> None:
    with opened(folder) as ps:
        ps.create_queue("q")
        half_done(ps, folder, staged.ROWS)
    shutil.rmtree(folder / staged.STAGING)
    with opened(folder) as ps:
        ticket = ps.begin_write("q")
        assert ps.commit_write(ticket, TXN, stage(ticket)) == Written(enqueued=ROWS)
        assert drain(ps.queue("q")) == payloads()
        assert ps.check().ok


def test_a_job_that_is_run_again_with_other_partitions_is_refused_for_its_rows_would_double(
    ps: Penstock, folder: Path
) -> None:
    half_done(ps, folder, staged.ROWS)
    ticket = ps.begin_write("q")
    with pytest.raises(InvalidMessage, match=r"200 messages .* in the same partitions"):
        ps.commit_write(ticket, TXN, stage(ticket, 4))
    assert ps.queue("q").length() == 200
    ticket = ps.begin_write("q")
    assert ps.commit_write(ticket, TXN, stage(ticket)) == Written(enqueued=ROWS)
    assert drain(ps.queue("q")) == payloads()


@pytest.mark.parametrize("ending", [staged.MESSAGES, staged.ROWS])
@pytest.mark.usefixtures("tables")
def test_a_repair_ends_a_job_that_cannot_go_on(folder: Path, ending: str) -> None:
    with opened(folder) as ps:
        ps.create_queue("q")
        half_done(ps, folder, ending)
    with opened(folder) as ps:
        report = ps.check(repair=True)
        assert report.counts == {"load_cut_off": 1}
        assert report.remaining == 0
        assert "ended" in report.problems[0].action
        assert ps.check().problems == []
        assert ps.health().status == "healthy"
        assert ps.queue("q").length() == 200
        ticket = ps.begin_write("q")
        assert ps.commit_write(ticket, TXN, stage(ticket)) == Written(enqueued=200, existing=200)
        assert sorted(drain(ps.queue("q"))) == payloads()
