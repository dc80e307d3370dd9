"""What stands in queues after the last event: what waits and is leased, and since when the oldest waits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql import functions as fn

from penstock.message import State


class Standing(NamedTuple):
    """Of one queue, or of all; `oldest_ns` is None where nothing is ready."""

    waiting: int
    leased: int
    oldest_ns: int | None


NOTHING = Standing(0, 0, None)


def standing(
    moves: DataFrame,
    queues: DataFrame | None,
    messages: DataFrame | None,
    wanted: Sequence[str],
    apart: Sequence[str] = (),
) -> dict[str | None, Standing]:
    """Of each queue that is wanted, and under None of all together, but for those that stand apart.

    As the store counts it, if its tables are given; else what the moves add up to.
    """
    if queues is not None:
        depths = queues.select(
            fn.col("name").alias("queue"), (fn.col("delayed") + fn.col("ready")).alias("waiting"), "leased"
        )
    else:
        depths = moves.select("queue", "waiting", "leased")
    if messages is not None:
        ready = messages.where(fn.col("state") == str(State.READY))
        waits = ready.select("queue", fn.col("visible_at_ns").alias("oldest_ns"))
    else:
        still = fn.col("visible_ns").isNotNull() & fn.col("left_ns").isNull()
        waits = moves.where(still).select("queue", fn.col("visible_ns").alias("oldest_ns"))
    none = fn.lit(None).cast("bigint")
    rows = depths.withColumn("oldest_ns", none).unionByName(
        waits.withColumns({"waiting": fn.lit(0), "leased": fn.lit(0)})
    )
    return {**_added(rows.where(fn.col("queue").isin(*wanted)), "queue"), **_added(without(rows, apart))}


def _added(rows: DataFrame, *by: str) -> dict[str | None, Standing]:
    found = rows.groupBy(*by).agg(
        fn.sum("waiting").alias("waiting"),
        fn.sum("leased").alias("leased"),
        fn.min("oldest_ns").alias("oldest"),
    )
    return {
        row.queue if by else None: Standing(row.waiting or 0, row.leased or 0, row.oldest)
        for row in found.collect()
    }


def without(rows: DataFrame, queues: Sequence[str]) -> DataFrame:
    return rows.where(~fn.col("queue").isin(*queues)) if queues else rows
