"""Files of an archive: where rows go by queue and day, whatever names are, and what a failed task leaves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.message import MAX_NAME_BYTES
from penstock.spark.archive import files
from penstock.spark.archive.files import FileWriter, Reading, write_files
from penstock.spark.archive.layout import day_of, folder_name
from penstock.tables import arrow_schema

DAY_NS = 86_400 * 10**9
READING = Reading(1, 100, 5)


def _entries(*rows: tuple[str, int, int]) -> pa.RecordBatch:
    """Of world, number and time."""
    made: list[dict[str, Any]] = [
        {
            "world": world,
            "id": f"{seq}",
            "seq": seq,
            "at": at_ns // 1000,
            "at_ns": at_ns,
            "kind": "k",
            "body": b"",
            "labels": [],
            "flags": [],
            "vector": None,
        }
        for world, seq, at_ns in rows
    ]
    return pa.RecordBatch.from_pylist(made, schema=arrow_schema("entries"))


names = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=400)


@given(names.filter(lambda name: len(name.encode()) <= MAX_NAME_BYTES))
def test_any_name_is_safe_as_a_folder(name: str) -> None:
    made = folder_name(name)
    assert 1 <= len(made) <= 180
    assert set(made) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-%~")


@given(names, names)
def test_two_names_never_share_a_folder(one: str, other: str) -> None:
    assert (folder_name(one) == folder_name(other)) == (one == other)


@pytest.mark.parametrize(
    "name", ["..", ".", "a/b", "a" * 1024, "a" * 1023 + "b", "x=1", "%2F", "~", "ä" * 512]
)
def test_hostile_names_are_told_apart_by_their_folders(name: str) -> None:
    others = {"..", ".", "a/b", "a" * 1024, "a" * 1023 + "b", "x=1", "%2F", "~", "ä" * 512} - {name}
    assert folder_name(name) not in {folder_name(other) for other in others}


def test_rows_go_by_world_and_day_and_keep_their_order(tmp_path: Path) -> None:
    batch = _entries(
        ("a/b", 1, 0), ("a/b", 2, 1), ("a/b", 3, DAY_NS), ("c", 1, DAY_NS), ("a/b", 4, DAY_NS + 1)
    )
    made = write_files([batch], str(tmp_path), "entries", {"a/b": READING, "c": READING})
    assert sorted((file.name, file.day, file.rows, file.first_seq, file.last_seq) for file in made) == [
        ("a/b", "1970-01-01", 2, 1, 2),
        ("a/b", "1970-01-02", 2, 3, 4),
        ("c", "1970-01-02", 1, 1, 1),
    ]
    for file in made:
        assert file.path.startswith(f"entries/world={folder_name(file.name)}/day={file.day}/")
        content = pq.read_table(tmp_path / file.path, partitioning=None)
        assert set(content["world"].to_pylist()) == {file.name}
        assert set(content["read_seq"].to_pylist()) == {100}
        assert (tmp_path / file.path).stat().st_size == file.size_bytes


def test_many_worlds_at_once_open_few_files_and_lose_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "MOST_OPEN", 3)
    worlds = [f"w{n}" for n in range(10)]
    batches = [_entries(*((world, turn, turn) for world in worlds)) for turn in range(1, 5)]
    made = write_files(batches, str(tmp_path), "entries", dict.fromkeys(worlds, READING))
    found = {
        (row["world"], row["seq"])
        for file in made
        for row in pq.read_table(tmp_path / file.path, partitioning=None).to_pylist()
    }
    assert found == {(world, turn) for world in worlds for turn in range(1, 5)}
    assert sum(file.rows for file in made) == 40


def test_a_large_file_is_closed_and_another_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "FILE_BYTES", 1)
    monkeypatch.setattr(files, "GROUP_ROWS", 2)
    made = write_files(
        [_entries(("w", 1, 0), ("w", 2, 0)), _entries(("w", 3, 0))], str(tmp_path), "entries", {"w": READING}
    )
    assert [file.rows for file in made] == [2, 1]


def test_a_task_that_fails_leaves_no_file_that_is_told_of(tmp_path: Path) -> None:
    def batches() -> object:
        yield _entries(("w", 1, 0))
        raise RuntimeError("the disk is on fire")

    with pytest.raises(RuntimeError, match="on fire"):
        write_files(batches(), str(tmp_path), "entries", {"w": READING})  # type: ignore[arg-type]
    assert not list(tmp_path.rglob("*.parquet"))


def test_files_of_two_attempts_never_meet(tmp_path: Path) -> None:
    paths = set()
    for _ in range(2):
        writer = FileWriter(str(tmp_path), "entries", {"w": READING})
        writer.write(_entries(("w", 1, 0)))
        paths |= {file.path for file in writer.close()}
    assert len(paths) == 2


def test_days_are_those_of_utc() -> None:
    assert [day_of(at_ns) for at_ns in (0, DAY_NS - 1, DAY_NS, 1_794_000_000 * 10**9)] == [
        "1970-01-01",
        "1970-01-01",
        "1970-01-02",
        "2026-11-06",
    ]
