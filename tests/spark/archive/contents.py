"""What an archive has, read without Spark: the files that its log names, and what must hold of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from penstock import Penstock
from penstock.spark.archive.layout import ArchiveTable, archive_arrow_schema
from penstock.spark.archive.log import ArchiveLog

Row = dict[str, Any]


def rows(folder: Path, table: ArchiveTable, name: str | None = None) -> list[Row]:
    """All rows of a table, by number; of one queue, or of all."""
    log = ArchiveLog(folder)
    found: list[Row] = []
    for file in log.read().files.values():
        if file.table == table and name in (None, file.name):
            content = pq.ParquetFile(log.root / file.path).read()
            assert content.num_rows == file.rows, file.path
            assert content.schema.equals(archive_arrow_schema(table)), file.path
            found += _rows(content)
    return sorted(found, key=lambda row: (row.get("generation", 0), row.get("seq") or 0))


def _rows(content: pa.Table) -> list[Row]:
    rows = content.to_pylist()
    for row in rows:
        if "headers" in row:
            row["headers"] = dict(row["headers"])
    return rows


def has_everything(folder: Path, ps: Penstock, name: str) -> None:
    """Every event of a queue up to the archive's position once, without a gap; a body for each that came."""
    position = ArchiveLog(folder).read().queues[name]
    events = [row for row in rows(folder, "events", name) if row["generation"] == position.generation]
    assert [row["seq"] for row in events] == list(range(1, position.seq + 1))
    came = [row["seq"] for row in events if row["kind"] in ("enqueued", "updated")]
    bodies = [row for row in rows(folder, "bodies", name) if row["generation"] == position.generation]
    assert [row["seq"] for row in bodies] == came
    kept = {event.seq: event for event in ps.queue(name).events(after=0, limit=10**9)}
    for row in events:
        event = kept.get(row["seq"])
        if event is not None:
            assert (row["at_ns"], row["kind"], row["message_id"]) == (
                event.at_ns,
                str(event.kind),
                event.message_id,
            )
