"""Tables of a real store as Arrow, for jobs to be tested on: as they are, or with a fault planted in them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from penstock import Penstock
from penstock.backends.bulk import BulkRequest
from penstock.backends.registry import open_reader
from penstock.tables import TableName, arrow_schema

Row = dict[str, Any]
Tables = dict[str, pa.Table]

TABLES: tuple[TableName, ...] = ("events", "queues", "messages", "bodies", "entries")


def tables_of(ps: Penstock) -> Tables:
    """All of one moment; of the worlds, the system's own."""
    with open_reader(ps.take_snapshot()) as reader:
        read: Tables = {}
        for table in TABLES:
            names = ("_penstock",) if table == "entries" else None
            plan = reader.plan(BulkRequest(table=table, names=names))
            batches = [batch for part in plan.partitions for batch in reader.read(part)]
            read[table] = pa.Table.from_batches(batches, arrow_schema(table))
        reader.release()
    return read


def renamed(tables: Tables, rename: Callable[[str], str]) -> Tables:
    """With other names for the queues, so that many stores can be looked at as one."""
    out = {}
    for table, content in tables.items():
        for name in ("queue", "name", "extra"):
            if name in content.column_names:
                at = content.column_names.index(name)
                texts = [rename(text) if text else text for text in content.column(name).to_pylist()]
                content = content.set_column(at, content.schema.field(at), pa.array(texts, pa.string()))
        if table == "entries":
            at = content.column_names.index("labels")
            labels = [[rename(label) for label in one or ()] for one in content.column("labels").to_pylist()]
            content = content.set_column(
                at, content.schema.field(at), pa.array(labels, content.schema.field(at).type)
            )
        out[table] = content
    return out


def together(parts: Iterable[Tables]) -> Tables:
    every = list(parts)
    return {table: pa.concat_tables([part[table] for part in every]) for table in every[0]}


def changed(table: pa.Table, change: Callable[[list[Row]], Sequence[Row]]) -> pa.Table:
    """The table after something happened to its rows."""
    return pa.Table.from_pylist(list(change(table.to_pylist())), schema=table.schema)


def frames(spark: SparkSession, tables: Tables) -> dict[str, DataFrame]:
    """Nanoseconds are exact in their own columns: the timestamps are of no interest here."""
    return {name: spark.createDataFrame(_plain(content)) for name, content in tables.items()}


def _plain(content: pa.Table) -> pa.Table:
    """In one piece: Spark takes an empty one, as a queue without messages has, for the end."""
    plain = content.drop_columns([f.name for f in content.schema if pa.types.is_timestamp(f.type)])
    return plain.combine_chunks()
