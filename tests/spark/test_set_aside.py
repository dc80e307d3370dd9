"""Bad rows of a write on disk: hidden until the job is there, private, and as durable as the messages."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from penstock import InvalidConfig, Txn, WriteTicket, Written
from penstock.spark import options, set_aside, write_options
from penstock.spark.set_aside import Hidden, SetAside, job_name, run_name

TXN = Txn("nightly", 3)
JOB = job_name(TXN, "orders")
FIRST, SECOND = "1" * 32, "2" * 32


def attempt(folder: Path, partition: int, rows: list[int], job: str = JOB, ticket: str = FIRST) -> Hidden:
    one = SetAside(str(folder), job, run_name(ticket), partition)
    one(pa.record_batch({"row": pa.array(rows)}))
    found = one.close()
    assert found is not None
    return found


def rows(folder: Path) -> list[int]:
    tables = [pa.parquet.read_table(file) for file in folder.glob("*.parquet")]
    return sorted(row["row"] for table in tables for row in table.to_pylist())


def settle(folder: Path, ticket: str, written: Written) -> list[int]:
    set_aside.settle(
        str(folder), JOB, WriteTicket(writer="", id=ticket, place="", at_ns=0, queues={}), written
    )
    return rows(folder)


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        (Written(rejected=4), [4, 5, 6, 7]),
        (Written(), [4, 5, 6, 7]),
        (Written(rejected=4, by=FIRST, again=True), [0, 1, 2, 3]),
        (Written(rejected=4, by=FIRST), [0, 1, 2, 3]),
        (Written(rejected=1, by="unknown", again=True), [0, 1, 2, 3]),
        (Written(by="3" * 32, again=True), []),
        (Written(superseded=True), [0, 1, 2, 3]),
    ],
)
def test_what_the_run_has_set_aside_that_counted_stays_and_other_jobs_are_left_alone(
    tmp_path: Path, written: Written, kept: list[int]
) -> None:
    others = [attempt(tmp_path, 0, [100], job_name(TXN, "mails")), attempt(tmp_path, 0, [200], f"{JOB}0")]
    set_aside.reveal(str(tmp_path), others)
    set_aside.reveal(str(tmp_path), [attempt(tmp_path, n, [n]) for n in range(4)])
    second = [attempt(tmp_path, 0, [4, 5, 6, 7], ticket=SECOND)]
    for _ in range(2):
        set_aside.reveal(str(tmp_path), second)
    assert rows(tmp_path) == [0, 1, 2, 3, 4, 5, 6, 7, 100, 200]
    assert settle(tmp_path, SECOND, written) == [*kept, 100, 200]


def test_bad_rows_that_are_nowhere_else_stay(tmp_path: Path) -> None:
    set_aside.reveal(str(tmp_path), [attempt(tmp_path, 0, [1])])
    assert settle(tmp_path, FIRST, Written(rejected=1, by=SECOND, again=True)) == [1]


def test_what_attempts_have_left_goes_with_their_job_or_after_a_day(tmp_path: Path) -> None:
    attempt(tmp_path, 0, [1])
    old, young = attempt(tmp_path, 0, [2], "killed").path, attempt(tmp_path, 0, [3], "under-way").path
    long_ago_s = Path(old).stat().st_mtime - set_aside.HIDDEN_KEPT_S - 60
    os.utime(old, (long_ago_s, long_ago_s))
    set_aside.drop_hidden(str(tmp_path), JOB)
    assert [str(path) for path in tmp_path.iterdir()] == [young]


def test_only_the_user_may_look_at_rows_that_were_set_aside(tmp_path: Path) -> None:
    found = attempt(tmp_path / "rejects", 0, [1])
    set_aside.reveal(str(tmp_path / "rejects"), [found])
    assert (tmp_path / "rejects").stat().st_mode & 0o077 == 0
    assert Path(found.final).stat().st_mode & 0o077 == 0


def test_rows_that_the_driver_does_not_see_are_told_by_machine_and_folder(tmp_path: Path) -> None:
    found = [attempt(tmp_path, n, [n]) for n in range(2)]
    elsewhere = found[1]._replace(host="worker-7")
    Path(elsewhere.path).unlink()
    with pytest.raises(
        InvalidConfig, match=rf"rejectsPath: .*worker-7 has put into {tmp_path} are not there"
    ):
        set_aside.reveal(str(tmp_path), [found[0], elsewhere])
    assert rows(tmp_path) == []


def test_rows_and_their_names_are_on_disk_before_the_job_is_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or a power cut would leave the job, and take what it could not enqueue."""
    synced: list[str] = []
    fsync = os.fsync

    def told(handle: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{handle}"))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", told)
    folder = tmp_path / "new" / "rejects"
    found = attempt(folder, 0, [1])
    assert sorted(synced) == sorted([str(tmp_path), str(folder.parent), found.path])
    set_aside.reveal(str(folder), [found])
    assert synced[3:] == [str(folder)]


@pytest.mark.parametrize("parsed", [write_options.parsed, options.parsed])
def test_a_folder_for_bad_rows_is_that_of_the_driver_wherever_tasks_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parsed: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    for given in ("./a/../rejects", (tmp_path / "rejects").as_uri()):
        assert parsed({"url": "data", "rejectsPath": given}, "batch").rejects == str(tmp_path / "rejects")
