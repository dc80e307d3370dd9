"""Bits of an archive's files that are not what was written: whoever reads them says so, and which file."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import penstock
from penstock import NewMessage, StorageCorrupt
from penstock.spark.archive.files import OpenFile, damage_of
from penstock.spark.archive.layout import ArchiveTable
from penstock.spark.archive.log import ArchiveLog
from penstock.spark.archive.merging import merged
from penstock.spark.archive.reading import Archive
from penstock.spark.failures import translated
from penstock.spark.jobs.archive import archive
from penstock.spark.jobs.auditing.run import Wanted
from penstock.spark.jobs.auditing.run import run as audit
from penstock.spark.jobs.compact import compact
from penstock.spark.jobs.rebuild import rebuild
from penstock.spark.store import Store
from tests.check.stores import flipped

PAYLOADS = [random.Random(n).randbytes(1000) for n in range(10)]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "store"))


@pytest.fixture
def folder(spark: SparkSession, store: Store, tmp_path: Path) -> Path:
    """Archived in two runs, so that there is something to merge."""
    folder = tmp_path / "archive"
    with penstock.open(f"rocksdb:{tmp_path}/store?durability=os") as ps:
        queue = ps.create_queue("q/1")
        for half in (PAYLOADS[:5], PAYLOADS[5:]):
            queue.enqueue_many([NewMessage(one) for one in half])
            archive(spark, store, str(folder))
    return folder


def _files(folder: Path, table: ArchiveTable) -> list[Path]:
    return [folder / file.path for file in ArchiveLog(folder).read().files.values() if file.table == table]


def _flip_payload(path: Path) -> None:
    raw = path.read_bytes()
    (place,) = [at for one in PAYLOADS[:1] if (at := raw.find(one[100:200])) > 0]
    path.write_bytes(flipped(raw, place))


def test_a_flipped_bit_is_noticed_by_whoever_reads_and_the_file_is_named(
    spark: SparkSession, store: Store, folder: Path, tmp_path: Path
) -> None:
    compact(spark, str(folder), keep_s=0)
    (path,) = _files(folder, "bodies")
    assert path.name.endswith("-merged.parquet")
    _flip_payload(path)
    readers: list[Callable[[], object]] = [
        lambda: rebuild(spark, str(folder), Store(str(tmp_path / "rebuilt"))),
        lambda: audit(spark, Wanted(archive=str(folder))),
        lambda: audit(spark, Wanted(store=store, archive=str(folder))),
        lambda: Archive(spark, folder).table("bodies").collect(),
    ]
    for read in readers:
        with pytest.raises(StorageCorrupt, match=path.name), translated():
            read()


def test_damaged_files_are_neither_merged_nor_are_settings_taken_from_them(
    spark: SparkSession, folder: Path
) -> None:
    state = ArchiveLog(folder).read()
    group = sorted(
        (file for file in state.files.values() if file.table == "bodies"), key=lambda one: one.first_seq
    )
    _flip_payload(folder / group[0].path)
    with pytest.raises(StorageCorrupt, match=Path(group[0].path).name):
        merged(str(folder), group)
    (settings,) = _files(folder, "queues")
    for at in range(4, settings.stat().st_size // 2):
        if damage_of(settings):
            break
        settings.write_bytes(flipped(settings.read_bytes(), at))
    with pytest.raises(StorageCorrupt, match=settings.name):
        Archive(spark, folder).settings()


def test_files_that_have_no_checksums_are_read_as_they_are(spark: SparkSession, folder: Path) -> None:
    (path, _) = _files(folder, "bodies")
    pq.write_table(pq.ParquetFile(path).read(), path, compression="zstd")
    assert damage_of(path) == ""
    found = Archive(spark, folder).table("bodies").select("payload").collect()
    assert sorted(bytes(row.payload) for row in found) == sorted(PAYLOADS)


def test_every_page_that_is_written_has_a_checksum(tmp_path: Path) -> None:
    """Of dictionaries as of values: half of them would be found by luck alone."""
    types: dict[str, pa.DataType] = {"n": pa.int64(), "text": pa.string()}
    schema = pa.schema(types)
    rows = pa.RecordBatch.from_pydict({"n": list(range(500)), "text": ["some text"] * 500}, schema=schema)
    file = OpenFile(tmp_path, "file.parquet", schema)
    file.write(rows)
    file.close()
    path = tmp_path / "file.parquet"
    raw, metadata = path.read_bytes(), pq.ParquetFile(path).metadata
    for number in range(2):
        column = metadata.row_group(0).column(number)
        start = column.dictionary_page_offset or column.data_page_offset
        for at in range(start, start + column.total_compressed_size, 5):
            path.write_bytes(flipped(raw, at))
            assert damage_of(path) or pq.ParquetFile(path).read().to_batches() == [rows]
