"""An audit from where its tables come from to what it found: of a store, an archive, or both."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession

from penstock.backends.bulk import Damage
from penstock.spark.archive.reading import Archive
from penstock.spark.jobs import inputs
from penstock.spark.jobs.audit import (
    BODY_COLUMNS,
    CONTENT_COLUMNS,
    ENTRY_COLUMNS,
    EVENT_COLUMNS,
    MESSAGE_COLUMNS,
    Audited,
    Finding,
    audit,
    summary,
)
from penstock.spark.jobs.auditing.contents import checked
from penstock.spark.jobs.auditing.findings import SCHEMA
from penstock.spark.jobs.inputs import Columns
from penstock.spark.jobs.lives import READ_COLUMNS, extents
from penstock.spark.jobs.watch import Progress
from penstock.spark.store import Store
from penstock.tables import TABLES

_OF_STORE: Columns = {
    "events": EVENT_COLUMNS,
    "queues": [column.name for column in TABLES["queues"]],
    "messages": MESSAGE_COLUMNS,
    "entries": ENTRY_COLUMNS,
}
_OF_ARCHIVE: Columns = {"events": EVENT_COLUMNS, "bodies": BODY_COLUMNS, "entries": ENTRY_COLUMNS}
#: Its queues may have been archived up to different moments, which its rows tell.
_OF_ARCHIVE_ALONE: Columns = {"events": (*EVENT_COLUMNS, *READ_COLUMNS), "entries": ENTRY_COLUMNS}


class Wanted(NamedTuple):
    """What to audit: a store, an archive, or a store with the history that an archive has of it.

    At most `limit` findings are told; all of them go to the folder `out`, if there is one, as lines of JSON.
    """

    store: Store | None = None
    archive: str | None = None
    queues: Sequence[str] | None = None
    limit: int = 100
    out: str | None = None


def run(spark: SparkSession, wanted: Wanted, progress: Progress = lambda *_: None) -> Audited:
    """What is damaged, and so cannot be read, is a finding like any other."""
    with tempfile.TemporaryDirectory(prefix="penstock-audit-") as rejects:
        with _tables(spark, wanted, rejects) as tables:
            audited = _audited(tables, wanted, progress)
        damaged = [_finding(damage) for damage in _damages(rejects)]
    if damaged:
        audited.counts["damaged"] = len(damaged)
        audited.findings += damaged[: max(0, wanted.limit - len(audited.findings))]
        if wanted.out is not None:
            rows = spark.createDataFrame([msgspec.structs.astuple(one) for one in damaged], SCHEMA)
            rows.coalesce(1).write.mode("append").json(wanted.out)
    return audited


@contextmanager
def _tables(spark: SparkSession, wanted: Wanted, rejects: str) -> Iterator[dict[str, DataFrame]]:
    store, archive, queues = wanted.store, wanted.archive, wanted.queues
    if store is None:
        # Contents have nothing to be compared with here but the checksums of their files.
        Archive(spark, archive or "").check_files(("bodies", "base"), queues)
        yield inputs.of_archive(spark, archive or "", _OF_ARCHIVE_ALONE, queues).tables
    elif archive is None:
        with inputs.of_store(spark, store, _OF_STORE, queues, rejects) as live:
            yield live.tables
    else:
        columns = {**_OF_STORE, "messages": (*MESSAGE_COLUMNS, *CONTENT_COLUMNS)}, _OF_ARCHIVE
        with inputs.of_both(spark, store, archive, columns, queues, rejects) as both:
            yield both.tables


def _audited(tables: dict[str, DataFrame], wanted: Wanted, progress: Progress) -> Audited:
    """What is gone through several times is kept on disk meanwhile; of contents, only checksums are."""
    with ExitStack() as kept:

        def keep(rows: DataFrame) -> DataFrame:
            kept.callback(rows.persist(StorageLevel.DISK_ONLY).unpersist)
            return rows

        events, queues, messages = keep(tables["events"]), tables.get("queues"), tables.get("messages")
        if messages is not None:
            messages = keep(checked(messages) if "payload" in messages.columns else messages)
        progress("reading events", 0, 2)
        extent = extents(events, queues)
        found = audit(events, queues, messages, tables.get("bodies"), tables.get("entries"), extent)
        findings = keep(found)
        progress("following messages", 1, 2)
        audited = summary(findings, extent, messages, wanted.limit)
        if wanted.out is not None:
            findings.write.json(wanted.out)
        return audited


def _damages(rejects: str) -> Iterator[Damage]:
    for file in sorted(Path(rejects).rglob("*.jsonl")):
        for line in file.read_bytes().splitlines():
            yield msgspec.json.decode(line, type=Damage)


def _finding(damage: Damage) -> Finding:
    place, _, message_id = damage.where.partition("message ")
    return Finding(
        "damaged", damage.name, message_id if not place else None, None, f"{damage.where}: {damage.what}"
    )
