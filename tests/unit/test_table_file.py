"""Tables that are written by columns: RocksDB finds in them what was put, or that they are damaged."""

from __future__ import annotations

import errno
import os
import random
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import StorageCorrupt, StorageError, StorageFull
from penstock.errors import BackendNotInstalled
from penstock.kv.base import Row
from penstock.kv.rocksdb import RocksStore
from penstock.kv.table_file import BLOCK_BYTES, Lines, TableFile


def lines(groups: Sequence[tuple[bytes, Sequence[bytes]]], values: Sequence[bytes], cut: int = 0) -> Lines:
    """By prefix, suffixes; values in two parts, the first of up to so many bytes."""
    suffixes = [suffix for _, some in groups for suffix in some]
    table = np.frombuffer(b"".join(suffixes), np.uint8).reshape(len(suffixes), -1)
    parts = [
        pa.array([value[:cut] for value in values], pa.large_binary()),
        pa.array([value[cut:] for value in values], pa.large_binary()),
    ]
    return Lines([prefix for prefix, _ in groups], [len(some) for _, some in groups], table, parts)


def rows_of(groups: Sequence[tuple[bytes, Sequence[bytes]]], values: Sequence[bytes]) -> list[Row]:
    found = [prefix + suffix for prefix, some in groups for suffix in some]
    return list(zip(found, values, strict=True))


def numbered(count: int, width: int = 16, step: int = 1) -> list[bytes]:
    return [(n * step).to_bytes(width, "big") for n in range(count)]


def taken_in(folder: Path, path: Path) -> list[Row]:
    """What a store has that took the table in: by scan, by look-up, and after it was compacted."""
    store = RocksStore.open(folder, ["a"])
    try:
        space = store.space("a")
        store.ingest([str(path)], space)
        rows = list(store.scan(space, b"", None))
        assert list(store.get_many([key for key, _ in rows], space)) == [value for _, value in rows]
        assert all(value is None for value in store.get_many([key + b"\0" for key, _ in rows], space))
        backwards = list(store.scan(space, b"", None, reverse=True))
        assert backwards[::-1] == rows
        store.compact()
        assert list(store.scan(space, b"", None)) == rows
        return rows
    finally:
        store.close()


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[tuple[list[tuple[bytes, list[bytes]]], list[bytes]]], int]:
    """Some calls' worth of rows, in order, and where values are cut into parts."""
    width = draw(st.sampled_from([8, 16, 24]))
    prefixes = sorted(draw(st.sets(st.binary(min_size=3, max_size=3), min_size=1, max_size=6)))
    if draw(st.booleans()):
        prefixes = [prefix * 60 for prefix in prefixes]  # Longer than a number of one byte says.
    calls = []
    for at in range(0, len(prefixes), 2):
        groups = []
        for prefix in prefixes[at : at + 2]:
            numbers = draw(st.sets(st.integers(0, 2 ** (8 * width) - 1), min_size=1, max_size=12))
            groups.append((prefix, [number.to_bytes(width, "big") for number in sorted(numbers)]))
        count = sum(len(some) for _, some in groups)
        sizes = draw(
            st.lists(st.sampled_from([0, 1, 127, 128, 300, 16_384, 40_000]), min_size=count, max_size=count)
        )
        calls.append((groups, [random.Random(size + n).randbytes(size) for n, size in enumerate(sizes)]))
    return calls, draw(st.sampled_from([0, 5, 200]))


@settings(max_examples=60, deadline=None)
@given(table=tables(), compress=st.booleans())
def test_rocksdb_finds_what_was_put(
    tmp_path_factory: pytest.TempPathFactory,
    table: tuple[list[tuple[list[tuple[bytes, list[bytes]]], list[bytes]]], int],
    compress: bool,
) -> None:
    folder = tmp_path_factory.mktemp("table")
    calls, cut = table
    file = TableFile(str(folder / "t.sst"), compress=compress)
    for groups, values in calls:
        file.put(lines(groups, values, cut))
    file.finish()
    assert taken_in(folder / "s", folder / "t.sst") == [row for call in calls for row in rows_of(*call)]


@pytest.mark.parametrize("value", [b"", b"16 bytes of value", b"x" * 300, b"y" * 40_000])
def test_one_value_of_all_rows_is_that_of_each(tmp_path: Path, value: bytes) -> None:
    groups = [(b"key %03d" % n, numbered(1 + 7 * n, 24, step=97)) for n in range(12)]
    each = [value for _, some in groups for _ in some]
    file = TableFile(str(tmp_path / "t.sst"))
    file.put(lines(groups, each)._replace(values=value))
    file.finish()
    assert taken_in(tmp_path / "s", tmp_path / "t.sst") == rows_of(groups, each)


@pytest.mark.parametrize("compress", [False, True], ids=["plain", "compressed"])
def test_many_rows_in_many_blocks(tmp_path: Path, compress: bool) -> None:
    chance = random.Random(7)
    groups = [(b"key %03d" % n, numbered(chance.randrange(1, 900), 24, step=97)) for n in range(60)]
    values = [b"x" * chance.randrange(120) for _, some in groups for _ in some]
    file = TableFile(str(tmp_path / "t.sst"), compress=compress)
    file.put(lines(groups, values, 10))
    file.finish()
    assert taken_in(tmp_path / "s", tmp_path / "t.sst") == rows_of(groups, values)


def test_what_can_be_compressed_is(tmp_path: Path) -> None:
    sizes = []
    for compress in (False, True):
        file = TableFile(str(tmp_path / "t.sst"), compress=compress)
        file.put(lines([(b"k", numbered(2000))], [b"the same again " * 10] * 2000))
        file.finish()
        sizes.append((tmp_path / "t.sst").stat().st_size)
    assert sizes[1] * 10 < sizes[0]


@pytest.mark.parametrize(
    "groups",
    [
        [(b"a", numbered(3)[::-1])],
        [(b"a", [*numbered(3), *numbered(3)[2:]])],
        [(b"b", numbered(3)), (b"a", numbered(3))],
        [(b"a", numbered(3)), (b"a", numbered(3))],
        [(b"a", numbered(3)), (b"ab", numbered(3))],
        [(b"a", [bytes(7) + b"\1" + bytes(8), bytes(8) + b"\xff" * 8])],
    ],
    ids=["backwards", "twice", "prefixes", "prefix twice", "prefix of another", "second word only"],
)
def test_rows_that_are_not_in_order_are_refused(
    tmp_path: Path, groups: list[tuple[bytes, list[bytes]]]
) -> None:
    file = TableFile(str(tmp_path / "t.sst"))
    with pytest.raises(StorageError, match="not in order"):
        file.put(lines(groups, [b"v"] * sum(len(some) for _, some in groups)))


def test_rows_that_come_before_those_of_an_earlier_call_are_refused(tmp_path: Path) -> None:
    for prefix, suffixes in ((b"a", numbered(3)), (b"b", numbered(3)[2:])):
        file = TableFile(str(tmp_path / "t.sst"))
        file.put(lines([(b"b", numbered(3))], [b"v"] * 3))
        with pytest.raises(StorageError, match="not in order"):
            file.put(lines([(prefix, suffixes)], [b"v"] * len(suffixes)))


@pytest.mark.parametrize("compress", [False, True], ids=["plain", "compressed"])
def test_a_flipped_bit_of_any_block_is_noticed(tmp_path: Path, compress: bool) -> None:
    """Wherever it is, what is read is what was put, or it is said to be damaged: never anything else."""
    groups, values = [(b"k", numbered(600))], [b"value %d " % n * 12 for n in range(600)]
    file = TableFile(str(tmp_path / "t.sst"), compress=compress)
    file.put(lines(groups, values))
    file.finish()
    whole = (tmp_path / "t.sst").read_bytes()
    noticed = 0
    for at in range(0, len(whole), len(whole) // 60):
        raw = bytearray(whole)
        raw[at] ^= 0x10
        (tmp_path / "bad.sst").write_bytes(raw)
        store = RocksStore.open(tmp_path / f"s{at}", ["a"])
        try:
            store.ingest([str(tmp_path / "bad.sst")], store.space("a"))
            rows = list(store.scan(store.space("a"), b"", None))
            assert rows == rows_of(groups, values), at
        except (StorageCorrupt, StorageError):
            noticed += 1
        finally:
            store.close()
    assert noticed > 50


def test_what_the_system_took_a_part_of_is_written_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def writes_some(handle: int, pieces: Sequence[bytes]) -> int:
        return os.write(handle, b"".join(pieces)[:7])

    monkeypatch.setattr(os, "writev", writes_some)
    groups, values = [(b"k", numbered(900))], [b"v%d" % n * 9 for n in range(900)]
    file = TableFile(str(tmp_path / "t.sst"))
    file.put(lines(groups, values))
    file.finish()
    assert taken_in(tmp_path / "s", tmp_path / "t.sst") == rows_of(groups, values)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_disk_without_room_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def refuse(*what: object) -> int:
        raise OSError(number, os.strerror(number))

    file = TableFile(str(tmp_path / "t.sst"))
    monkeypatch.setattr(os, "writev", refuse)
    with pytest.raises(StorageFull):
        file.put(lines([(b"k", numbered(3))], [b"v"] * 3))


@pytest.mark.parametrize("name", ["LOCKER", "checksum", "No space left"])
def test_the_name_of_a_folder_is_no_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def refuse(*what: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(tmp_path / name / "t.sst"))

    (tmp_path / name).mkdir()
    file = TableFile(str(tmp_path / name / "t.sst"))
    monkeypatch.setattr(os, "writev", refuse)
    with pytest.raises(StorageError) as told:
        file.put(lines([(b"k", numbered(3))], [b"v"] * 3))
    assert type(told.value) is StorageError


def test_blocks_are_as_large_as_they_should_be_however_long_keys_are(tmp_path: Path) -> None:
    groups = [(b"%04d" % n * 250, numbered(1)) for n in range(300)]
    file = TableFile(str(tmp_path / "t.sst"))
    file.put(lines(groups, [b"v"] * 300))
    sizes = [size for _, _, size in file._index]
    file.finish()
    assert max(sizes) < 2 * BLOCK_BYTES
    assert taken_in(tmp_path / "s", tmp_path / "t.sst") == rows_of(groups, [b"v"] * 300)


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="no folder"):
        TableFile(str(tmp_path / "no folder" / "t.sst"))


def test_what_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xxhash", None)
    with pytest.raises(BackendNotInstalled, match=r"xxhash is not installed; pip .*penstock\[spark\]"):
        TableFile(str(tmp_path / "t.sst"))
