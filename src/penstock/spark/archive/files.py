"""Rows into Parquet files, by the tasks of a job: by queue and day, on disk before they are told of."""

from __future__ import annotations

import os
import uuid
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.errors import StorageCorrupt
from penstock.event import HOLE, NOBODY, Kind
from penstock.message import format_id
from penstock.spark.archive.layout import (
    SOURCES,
    ArchiveTable,
    archive_arrow_schema,
    day_number,
    day_of,
    name_column,
    part_folder,
)
from penstock.spark.archive.log import ArchiveFile, made_folder, storage_error, sync_folder

if TYPE_CHECKING:
    import pyarrow

#: Files that a task has open at a time: rows come by queue and, mostly, by day.
MOST_OPEN = 16
#: Rows, or bytes in memory, that are written together.
GROUP_ROWS = 131_072
GROUP_BYTES = 32 * 1024 * 1024
#: A file that has reached so many bytes is closed, and another begun.
FILE_BYTES = 256 * 1024 * 1024


class Reading(msgspec.Struct, frozen=True):
    """What all rows of a queue or world share: its generation, its last event, and when it was read."""

    generation: int
    read_seq: int
    read_at_ns: int


class FileWriter:
    """The rows of one task. `close` when all have come: only then are its files there, and durable."""

    def __init__(self, root: str, table: ArchiveTable, readings: dict[str, Reading]) -> None:
        self._root = Path(root)
        self._table = table
        self._readings = readings
        self._schema = archive_arrow_schema(table)
        self._open: OrderedDict[tuple[str, str], OpenFile] = OrderedDict()
        #: Of this attempt alone: one that is tried again writes other files.
        self._prefix = uuid.uuid4().hex[:16]
        self._made = 0
        self.files: list[ArchiveFile] = []

    def write(self, batch: pyarrow.RecordBatch) -> None:
        for name, day, rows in _runs(batch, self._table, self._readings):
            # Settings are a row a queue: they share a file.
            shared = "" if self._table == "queues" else name
            file = self._file(shared, day)
            file.write(_with_reading(rows, self._readings[name], self._schema))
            if file.size_bytes >= FILE_BYTES:
                self._finish(shared, day)

    def close(self) -> list[ArchiveFile]:
        for name, day in list(self._open):
            self._finish(name, day)
        return self.files

    def discard(self) -> None:
        """The task has failed: what it wrote is nobody's."""
        for file in self._open.values():
            file.discard()
        self._open.clear()

    def _file(self, name: str, day: str) -> OpenFile:
        key = (name, day)
        if key not in self._open:
            if len(self._open) >= MOST_OPEN:
                self._finish(*next(iter(self._open)))
            path = f"{part_folder(self._table, name, day)}/{self._prefix}-{self._made:04}.parquet"
            self._made += 1
            self._open[key] = OpenFile(self._root, path, self._schema)
        self._open.move_to_end(key)
        return self._open[key]

    def _finish(self, name: str, day: str) -> None:
        file = self._open.pop((name, day))
        size_bytes, extent = file.close(), file.extent()
        if self._table == "base":  # How messages stood after this event, whichever brought each there.
            extent["first_seq"] = extent["last_seq"] = self._readings[name].read_seq
        self.files.append(
            ArchiveFile(
                table=self._table,
                name=name,
                generation=self._readings[name].generation if name else 0,
                day=day,
                path=file.path,
                rows=file.rows,
                size_bytes=size_bytes,
                **extent,
            )
        )


class OpenFile:
    """One file that is being written. Rows wait until there are enough for a row group."""

    def __init__(self, root: Path, path: str, schema: pyarrow.Schema) -> None:
        import pyarrow.parquet as pq

        self.path = path
        self.rows = 0
        self.size_bytes = 0
        self._whole = root / path
        self._waiting: list[pyarrow.RecordBatch] = []
        self._waiting_rows = self._waiting_bytes = 0
        self._seqs: list[int] = []
        self._times_ns: list[int] = []
        self._end = 0, ""
        self._bringing = self._repaired = 0
        self._holes: list[int] = []
        try:
            made_folder(self._whole.parent, root)
            self._sink = open(self._whole, "xb")  # noqa: SIM115  (closed by `close` or `discard`)
        except OSError as error:
            raise storage_error(error, self._whole) from error
        self._writer = pq.ParquetWriter(
            self._sink, schema, compression="zstd", version="2.6", write_page_checksum=True
        )
        self._schema = schema

    def write(self, batch: pyarrow.RecordBatch) -> None:
        self._waiting.append(batch)
        self._waiting_rows += batch.num_rows
        self._waiting_bytes += batch.nbytes
        self.rows += batch.num_rows
        if self._waiting_rows >= GROUP_ROWS or self._waiting_bytes >= GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        import pyarrow as pa

        if not self._waiting:
            return
        table = pa.Table.from_batches(self._waiting, self._schema)
        self._note(table)
        try:
            self._writer.write_table(table, row_group_size=table.num_rows)
        except OSError as error:
            raise storage_error(error, self._whole) from error
        self.size_bytes = self._sink.tell()
        self._waiting, self._waiting_rows, self._waiting_bytes = [], 0, 0

    def _note(self, table: pyarrow.Table) -> None:
        import pyarrow.compute as pc

        for column, kept in (("seq", self._seqs), ("at_ns", self._times_ns)):
            if column in table.column_names:
                bounds: Any = pc.min_max(table[column])
                kept += [
                    value for value in (bounds["min"].as_py(), bounds["max"].as_py()) if value is not None
                ]
        if "at_ns" not in table.column_names:
            return
        whose = "id" if "world" in table.column_names else "message_id"
        if table["seq"][-1].as_py() == max(self._seqs):
            self._end = table["at_ns"][-1].as_py(), table[whose][-1].as_py()
        if whose == "id":  # Kinds of entries are the user's, whatever they are called.
            return
        counted: Any = pc.value_counts(table["kind"])
        counts = {one["values"]: one["counts"] for one in counted.to_pylist()}
        self._bringing += counts.get(Kind.ENQUEUED, 0) + counts.get(Kind.UPDATED, 0)
        if Kind.REPAIRED in counts:
            self._repaired += counts[Kind.REPAIRED]
            of_nobody = (pc.field("message_id") == format_id(NOBODY)) & (pc.field("extra") == HOLE)
            lost: Any = table.select(["seq", "message_id", "extra"]).filter(of_nobody)["seq"].to_pylist()
            self._holes += [*lost[:1], *lost[-1:]]

    def extent(self) -> dict[str, Any]:
        seqs, times_ns = self._seqs or [0], self._times_ns or [0]
        return {
            "first_seq": min(seqs),
            "last_seq": max(seqs),
            "first_at_ns": min(times_ns),
            "last_at_ns": max(times_ns),
            "end_at_ns": self._end[0],
            "end_id": self._end[1],
            "bringing": self._bringing,
            "repaired": self._repaired,
            "first_hole_seq": min(self._holes, default=0),
            "last_hole_seq": max(self._holes, default=0),
        }

    def close(self) -> int:
        """Its bytes, all of which are on disk."""
        try:
            self._flush()
            self._writer.close()
            self._sink.flush()
            os.fsync(self._sink.fileno())
            size_bytes = self._sink.tell()
            self._sink.close()
            sync_folder(self._whole.parent)
        except OSError as error:
            raise storage_error(error, self._whole) from error
        return size_bytes

    def discard(self) -> None:
        with suppress(OSError, ValueError):  # Whatever was wrong, it is thrown away.
            self._writer.close()
        self._sink.close()
        self._whole.unlink(missing_ok=True)


def damaged(path: Path, error: Exception) -> StorageCorrupt:
    return StorageCorrupt(f"{path} cannot be read: {error}; put it back from a copy of the archive")


def damage_of(path: Path) -> str:
    """What is wrong with a file, all of whose pages are read; nothing of it is kept."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as opened:
            for _ in opened.iter_batches():
                pass
    except (OSError, pa.ArrowException) as error:
        return str(damaged(path, error))
    return ""


def write_files(
    batches: Iterable[pyarrow.RecordBatch], root: str, table: ArchiveTable, readings: dict[str, Reading]
) -> list[ArchiveFile]:
    """What a task does with its rows: the files that it made of them."""
    writer = FileWriter(root, table, readings)
    try:
        for batch in batches:
            writer.write(batch)
        return writer.close()
    except BaseException:
        writer.discard()
        raise


def _runs(
    batch: pyarrow.RecordBatch, table: ArchiveTable, readings: dict[str, Reading]
) -> Iterator[tuple[str, str, pyarrow.RecordBatch]]:
    """Rows that follow each other and are of one queue and day: name, day, rows."""
    import numpy as np

    if not batch.num_rows:
        return
    names = batch.column(name_column(table)).dictionary_encode()
    codes = names.indices.to_numpy(zero_copy_only=False)
    known = names.dictionary.to_pylist()
    time_column = SOURCES[table][1]
    if time_column:
        times_ns = batch.column(time_column).to_numpy(zero_copy_only=False)
        days = times_ns // (86_400 * 10**9)
    else:
        days = np.array([day_number(readings[known[code]].read_at_ns) for code in codes])
    starts = np.flatnonzero(np.diff(codes) | (np.diff(days) != 0)) + 1
    bounds = [0, *starts.tolist(), batch.num_rows]
    for start, end in pairwise(bounds):
        day = day_of(int(days[start]) * 86_400 * 10**9)
        yield known[codes[start]], day, batch.slice(start, end - start)


def _with_reading(rows: pyarrow.RecordBatch, reading: Reading, schema: pyarrow.Schema) -> pyarrow.RecordBatch:
    import pyarrow as pa

    count = rows.num_rows
    added = {
        "generation": pa.repeat(pa.scalar(reading.generation, pa.int32()), count),
        "read_seq": pa.repeat(pa.scalar(reading.read_seq, pa.int64()), count),
        "read_at_ns": pa.repeat(pa.scalar(reading.read_at_ns, pa.int64()), count),
    }
    columns: list[Any] = [
        added[field.name] if field.name in added else rows.column(field.name).cast(field.type)
        for field in schema
    ]
    made: pyarrow.RecordBatch = pa.RecordBatch.from_arrays(columns, schema=schema)
    return made
