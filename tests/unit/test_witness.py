"""A list of tables that was cut short: RocksDB would take it for all there is, and delete the rest."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import penstock
from penstock import NewMessage, StorageCorrupt
from penstock.kv.witness import WITNESS, Witness

MESSAGES = 200


def fill(folder: Path, openings: int = 3) -> None:
    """Each opening leaves tables, and a list of them that is made anew."""
    for n in range(openings):
        with penstock.open(folder) as ps:
            q = ps.queue("q") if n else ps.create_queue("q")
            q.enqueue_many([NewMessage(b"x" * 200)] * MESSAGES)


def manifest(folder: Path) -> Path:
    return folder / (folder / "CURRENT").read_text().strip()


def depth(folder: Path) -> int:
    with penstock.open(folder) as ps:
        assert ps.check().ok
        return ps.queue("q").length()


@pytest.mark.parametrize("left", [0, 0.1, 0.5, 0.9, -1])
def test_a_list_of_tables_that_was_cut_short_is_refused_and_costs_no_table(
    tmp_path: Path, left: float
) -> None:
    fill(tmp_path)
    whole = manifest(tmp_path).read_bytes()
    length = int(len(whole) * left) if left >= 0 else len(whole) - 1
    manifest(tmp_path).write_bytes(whole[:length])
    tables = set(tmp_path.glob("*.sst"))
    for _ in range(2):
        with pytest.raises(StorageCorrupt, match="restore a backup"):
            penstock.open(tmp_path)
    assert set(tmp_path.glob("*.sst")) == tables
    manifest(tmp_path).write_bytes(whole)
    assert depth(tmp_path) == 3 * MESSAGES


def test_the_list_after_the_millionth_file_is_a_later_one(tmp_path: Path) -> None:
    for name, length in (("MANIFEST-999998", 500), ("MANIFEST-1000003", 300)):
        (tmp_path / name).write_bytes(bytes(length))
        (tmp_path / "CURRENT").write_text(f"{name}\n")
        witness = Witness(str(tmp_path))
        witness.verify()
        witness.note()
    (tmp_path / "CURRENT").write_text("MANIFEST-999998\n")
    with pytest.raises(
        StorageCorrupt, match="was MANIFEST-1000003 of 300 bytes and is MANIFEST-999998 of 500"
    ):
        Witness(str(tmp_path)).verify()


def test_an_older_list_of_tables_is_refused(tmp_path: Path) -> None:
    fill(tmp_path, openings=1)
    older, current = manifest(tmp_path), (tmp_path / "CURRENT").read_text()
    raw = older.read_bytes()
    with penstock.open(tmp_path) as ps:
        ps.queue("q").enqueue_many([NewMessage()] * MESSAGES)
    newer = (tmp_path / "CURRENT").read_text()
    assert newer != current
    older.write_bytes(raw)
    (tmp_path / "CURRENT").write_text(current)
    with pytest.raises(StorageCorrupt, match=older.name):
        penstock.open(tmp_path)
    (tmp_path / "CURRENT").write_text(newer)
    assert depth(tmp_path) == 2 * MESSAGES


@pytest.mark.parametrize("raw", [None, b"", b"\xff" * 30, b"MANIFEST-999999 1 00000000\n", b"MANIFEST 5"])
def test_a_witness_that_is_missing_or_damaged_is_in_nobodys_way(tmp_path: Path, raw: bytes | None) -> None:
    fill(tmp_path)
    (tmp_path / WITNESS).unlink()
    if raw is not None:
        (tmp_path / WITNESS).write_bytes(raw)
    assert depth(tmp_path) == 3 * MESSAGES
    name, length = (tmp_path / WITNESS).read_text().split()[:2]
    assert (name, int(length)) == (manifest(tmp_path).name, manifest(tmp_path).stat().st_size)


def test_an_opening_in_vain_may_be_tried_again(tmp_path: Path) -> None:
    """The list of tables may have grown meanwhile, or be another: never shorter."""
    fill(tmp_path, openings=1)
    for path in (tmp_path / WITNESS, tmp_path / f"{WITNESS}.unfinished"):
        path.unlink(missing_ok=True)
        path.mkdir()  # It cannot be written, nor read.
    with penstock.open(tmp_path) as ps:
        ps.queue("q").enqueue(b"x")
    assert depth(tmp_path) == MESSAGES + 1


_GROWS_AND_DIES = """
import os, sys, time
import penstock
from penstock import NewMessage
from penstock.kv.witness import WITNESS
path = sys.argv[1]
ps = penstock.open(path)
q = ps.create_queue("q")
seen = open(os.path.join(path, WITNESS)).read()
q.enqueue_many([NewMessage(b"x")] * 100)
ps._default._kv.compact()
while open(os.path.join(path, WITNESS)).read() == seen:
    time.sleep(0.01)
os.kill(os.getpid(), 9)
"""


def test_what_a_process_had_before_it_was_killed_is_known(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", _GROWS_AND_DIES, tmp_path], check=False, timeout=60)
    whole = manifest(tmp_path).read_bytes()
    manifest(tmp_path).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(StorageCorrupt):
        penstock.open(tmp_path)
    manifest(tmp_path).write_bytes(whole)
    assert depth(tmp_path) == 100


def test_nothing_is_written_while_nothing_changes(tmp_path: Path) -> None:
    fill(tmp_path, openings=1)
    witness = Witness(str(tmp_path))
    before = (tmp_path / WITNESS).stat()
    witness.note()
    assert (tmp_path / WITNESS).stat().st_ino == before.st_ino
