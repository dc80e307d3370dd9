"""Damaged write-ahead logs: cut where RocksDB would hang, nothing thrown away."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.kv.rocksdb import RocksStore
from penstock.kv.wal import SET_ASIDE, cut_logs, first_recycled, mend_logs

BLOCK = 32_768


def record(kind: int, data: bytes) -> bytes:
    return struct.pack("<IHB", 0, len(data), kind) + data


def test_a_sound_log_is_followed_to_its_end() -> None:
    assert first_recycled(record(1, b"a" * 100) * 50 + bytes(200)) is None


@pytest.mark.parametrize("kind", [5, 6, 7, 8, 11])
def test_a_recycled_record_is_found_where_it_starts(kind: int) -> None:
    sound = record(1, b"a" * 100) * 3
    assert first_recycled(sound + record(kind, b"x") + sound) == len(sound)


def test_records_are_followed_across_the_trailer_of_a_block() -> None:
    block = record(2, b"a" * (BLOCK - 7 - 5))  # Leaves five bytes, too few for a header.
    assert first_recycled(block + bytes(5) + record(5, b"x")) == BLOCK


@pytest.mark.parametrize("stop", [bytes(7), struct.pack("<IHB", 0, 40_000, 1)], ids=["end", "too long"])
def test_behind_the_end_or_damage_of_a_block_the_next_one_is_looked_at(stop: bytes) -> None:
    block = (record(1, b"a") + stop).ljust(BLOCK, b"\xff")
    assert first_recycled(block + record(1, b"b") + record(6, b"x")) == BLOCK + len(record(1, b"b"))


@given(st.binary(max_size=3 * BLOCK))
def test_any_bytes_are_followed_without_an_error(raw: bytes) -> None:
    found = first_recycled(raw)
    assert found is None or raw[found + 6] in (5, 6, 7, 8, 11)


def headers(raw: bytes) -> list[int]:
    """Where records start, in a log of one block."""
    found, at = [], 0
    while at + 7 <= len(raw) and raw[at + 6]:
        found.append(at)
        at += 7 + int(struct.unpack_from("<H", raw, at + 4)[0])
    return found


def killed_store(folder: Path) -> tuple[Path, bytes]:
    """A store as kill -9 leaves it, by copying its files while it is open; its log and what that holds."""
    live, copy = folder / "live", folder / "copy"
    store = RocksStore.open(live, ["a"])
    space = store.space("a")
    for i in range(100):
        batch = store.batch()
        batch.put(b"%03d" % i, b"v" * 50, space)
        store.write(batch, sync=True)
    copy.mkdir()
    for file in live.iterdir():
        if file.name != "LOCK":
            (copy / file.name).write_bytes(file.read_bytes())
    del space
    store.close()
    (log,) = (path for path in copy.glob("*.log") if path.stat().st_size)
    return log, log.read_bytes()


def test_a_flipped_record_type_is_cut_off_and_set_aside(tmp_path: Path) -> None:
    log, raw = killed_store(tmp_path)
    header = next(at for at in headers(raw) if b"050" in raw[at : at + 60])
    damaged = bytearray(raw)
    damaged[header + 6] = 5
    log.write_bytes(bytes(damaged))
    (kept,) = mend_logs(log.parent)
    assert log.read_bytes() + kept.read_bytes() == bytes(damaged)
    assert kept.parent.name == SET_ASIDE
    store = RocksStore.open(log.parent, ["a"])
    rows = [key for key, _ in store.scan(store.space("a"), b"", None)]
    assert rows == [b"%03d" % i for i in range(50)]
    store.close()


def test_logs_are_cut_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    _, raw = killed_store(tmp_path)
    for name, content in (("999999.log", raw), ("1000000.log", raw[:-3]), ("1000001.log", raw)):
        (tmp_path / name).write_bytes(content)
    torn = headers(raw)[-1]
    assert [kept.name for kept in cut_logs(tmp_path)] == [f"1000000.log.{torn}", "1000001.log.0"]
    assert (tmp_path / "999999.log").read_bytes() == raw


def test_the_logs_of_an_open_store_are_left_alone(tmp_path: Path) -> None:
    store = RocksStore.open(tmp_path / "s", ["a"])
    log = next((tmp_path / "s").glob("*.log"))
    with log.open("ab") as file:
        file.write(record(5, b"x"))
    size = log.stat().st_size
    assert mend_logs(tmp_path / "s") == []
    assert log.stat().st_size == size
    os.truncate(log, size - 8)
    store.close()
