"""Where the tables of a job come from: one moment of a store, what an archive has, or both together."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import msgspec
from pyspark.sql import DataFrame, SparkSession

from penstock.backends.bulk import BulkReader, BulkRequest, Extent, SeqRange, Snapshot
from penstock.backends.registry import release_snapshot
from penstock.errors import InvalidConfig
from penstock.spark.archive.layout import SYSTEM_WORLD
from penstock.spark.archive.lifetimes import is_hole
from penstock.spark.archive.log import Position
from penstock.spark.archive.reading import Archive
from penstock.spark.store import Store, opened
from penstock.tables import TableName

#: By table, the columns that a job wants; others are neither read nor decoded.
Columns = Mapping[TableName, Sequence[str]]


class Inputs(NamedTuple):
    """Tables by name; `at_ns` is the moment that they show, if they are a store's."""

    tables: dict[str, DataFrame]
    at_ns: int | None = None


@contextmanager
def of_store(
    spark: SparkSession,
    store: Store,
    columns: Columns,
    queues: Sequence[str] | None = None,
    rejects: str | None = None,
) -> Iterator[Inputs]:
    """One moment of a store; of its worlds, the one that says what was done to queues.

    What is damaged is set aside in the folder `rejects`, by table; without one, it is an error.
    """
    with _snapshot(store) as snapshot:
        reading = _Reading(spark, store, snapshot, queues, rejects)
        yield Inputs(
            {table: reading.table(table, wanted) for table, wanted in columns.items()}, snapshot.at_ns
        )


@contextmanager
def of_both(
    spark: SparkSession,
    store: Store,
    folder: str,
    columns: tuple[Columns, Columns],
    queues: Sequence[str] | None = None,
    rejects: str | None = None,
) -> Iterator[Inputs]:
    """A store with the history before it: events of the archive, and what came since of the store.

    Queues that the store does not have any more are left out: there is nothing to compare them with.
    """
    archive = _archive(spark, folder, queues)
    with _snapshot(store) as snapshot:
        with opened(snapshot, store.key_source()) as reader:
            there = reader.plan(
                BulkRequest(table="events", names=None if queues is None else tuple(queues))
            ).extents
            ends = {name: at for name, at in archive.state.queues.items() if at.seq and name in there}
            _check_not_anew(ends, there)
            _check_same(reader, ends)
        archived = _archived(archive, columns[1], there)
        reading = _Reading(
            spark, store, snapshot, queues, rejects, {name: at.seq for name, at in ends.items()}
        )
        tables = {str(table): reading.table(table, wanted) for table, wanted in columns[0].items()}
        for table, rows in archived.items():
            tables[table] = rows.unionByName(tables[table]) if table in tables else rows
        yield Inputs(tables, snapshot.at_ns)


@contextmanager
def _snapshot(store: Store) -> Iterator[Snapshot]:
    snapshot = store.take_snapshot()
    try:
        yield snapshot
    finally:
        release_snapshot(snapshot)


class _Reading(NamedTuple):
    """How tables of one moment are read; of events, those after these places."""

    spark: SparkSession
    store: Store
    snapshot: Snapshot
    queues: Sequence[str] | None
    rejects: str | None
    after: Mapping[str, int] = {}

    def table(self, table: TableName, wanted: Sequence[str]) -> DataFrame:
        options = {
            **self.store.key_source().options(),
            "snapshot": msgspec.json.encode(self.snapshot).decode(),
            "table": table,
            "columns": ",".join(wanted),
            "rejectsPath": None if self.rejects is None else f"{self.rejects}/{table}",
        }
        if table == "entries":
            options["world"] = SYSTEM_WORLD
        elif self.queues is not None:
            options["queue"] = msgspec.json.encode(list(self.queues)).decode()
        if table == "events" and self.after:
            options["startingOffsets"] = msgspec.json.encode(self.after).decode()
            options["failOnDataLoss"] = "false"  # What is missing in between is found by its numbers.
        given = {name: value for name, value in options.items() if value is not None}
        return self.spark.read.format("penstock").options(**given).load()


def of_archive(
    spark: SparkSession, folder: str, columns: Columns, queues: Sequence[str] | None = None
) -> Inputs:
    """The latest history of each queue: one that was deleted and made anew has begun another."""
    archive = _archive(spark, folder, queues)
    return Inputs(_archived(archive, columns, archive.state.queues if queues is None else queues))


def _archive(spark: SparkSession, folder: str, queues: Sequence[str] | None) -> Archive:
    archive = Archive(spark, folder)
    for name in queues or ():
        archive.check_queue(name)
    return archive


def _archived(archive: Archive, columns: Columns, queues: Collection[str]) -> dict[str, DataFrame]:
    tables = {}
    for table, wanted in columns.items():
        if table not in ("events", "bodies", "entries"):
            raise InvalidConfig(f"an archive has no table {table} of one moment")
        names = {SYSTEM_WORLD} if table == "entries" else set(queues)
        tables[str(table)] = archive.table(table, names).select(*wanted)
    return tables


def _check_not_anew(ends: Mapping[str, Position], there: Mapping[str, Extent]) -> None:
    """What the journal and its queue tell by themselves, though the last archived event is not there."""
    for name, at in ends.items():
        extent = there[name]
        # With no event of it archived, there is no time to compare with, and nothing to mix up.
        made_later = at.at_ns and extent.created_at_ns > max(at.began_ns + _AS_MADE_NS, at.at_ns)
        if at.gone_ns or made_later:
            raise InvalidConfig(_ANEW.format(name))
        if extent.last_seq < at.seq:
            raise InvalidConfig(
                f"queue {name!r} has events up to {extent.last_seq}, and {at.seq} were archived: it was made "
                "anew since, or the store was put back from a copy, or is another; run penstock pipeline "
                "archive first, if it is the store that was archived"
            )


#: A queue's row and the entry that tells of it have times that are taken one after the other.
_AS_MADE_NS = 10**9
_ANEW = "queue {!r} was made anew since it was archived; run penstock pipeline archive first"


def _check_same(reader: BulkReader, ends: Mapping[str, Position]) -> None:
    """Where the event is in the journal that was archived last, it is that one."""
    if not ends:
        return
    request = BulkRequest(
        table="events",
        names=tuple(ends),
        seqs={name: SeqRange(at.seq, at.seq + 1) for name, at in ends.items()},
        columns=("queue", "message_id", "extra"),
        on_truncated="skip",
        on_damage="skip",
    )
    for part in reader.plan(request).partitions:
        for batch in reader.read(part):
            for row in batch.to_pylist():
                # What a repair has put in its place since tells nothing.
                if row["message_id"] != ends[row["queue"]].id and not is_hole(row):
                    raise InvalidConfig(_ANEW.format(row["queue"]))
