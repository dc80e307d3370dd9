"""Fairness: what keys were delivered while several of them waited, against what their weights made due."""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as fn

from penstock.event import Kind
from penstock.spark.jobs.reporting.buckets import Buckets

_LINE = ["queue", "priority", "fairness_key"]


def shares(moves: DataFrame, buckets: Buckets) -> DataFrame:
    """One row for each key that ever had to share: `delivered`, `due`, and both as parts of their line's.

    Shares are promised to keys that have work waiting, and inside a priority. So only those pieces of time
    count in which a key waited at both edges, and another of its queue and priority did too; what all such
    keys were delivered in it is divided by their weights.
    """
    keyed = moves.where(fn.col("fairness_key").isNotNull())
    weights = keyed.groupBy(*_LINE).agg(fn.avg("weight").alias("weight"))
    delivered = (
        keyed.where(fn.col("kind") == str(Kind.LEASED))
        .groupBy(*_LINE, buckets.piece_of(fn.col("at_ns")).alias("piece"))
        .agg(fn.count(fn.lit(1)).alias("delivered"))
    )
    sharing = Window.partitionBy("queue", "priority", "piece")
    contested = (
        _backlogged(keyed, buckets)
        .join(weights, _LINE)
        .join(delivered, [*_LINE, "piece"], "left")
        .fillna(0, ["delivered"])
        .withColumns(
            {
                "rivals": fn.count(fn.lit(1)).over(sharing),
                "due": fn.sum("delivered").over(sharing) * fn.col("weight") / fn.sum("weight").over(sharing),
            }
        )
        .where("rivals > 1")
        .groupBy(*_LINE)
        .agg(
            fn.max("weight").alias("weight"),
            fn.sum("delivered").alias("delivered"),
            fn.sum("due").alias("due"),
        )
    )
    line = Window.partitionBy("queue", "priority")
    total = fn.sum("delivered").over(line)
    return (
        contested.withColumn("total", total)
        .where("total > 0")
        .withColumns(
            {"share": fn.col("delivered") / fn.col("total"), "due_share": fn.col("due") / fn.col("total")}
        )
    )


def _backlogged(keyed: DataFrame, buckets: Buckets) -> DataFrame:
    """The pieces of time at both edges of which a key had something waiting."""
    present = (
        keyed.withColumn("edges", buckets.edges_in(fn.col("visible_ns"), fn.col("left_ns")))
        .where(fn.col("visible_ns").isNotNull() & fn.col("edges").isNotNull())
        # Thousands wait between the same two edges: one row stands for them all.
        .select(*_LINE, "edges.first", "edges.last")
        .distinct()
        .select(*_LINE, fn.explode(fn.sequence("first", "last")).alias("piece"))
        .distinct()
    )
    following = fn.lead("piece").over(Window.partitionBy(*_LINE).orderBy("piece"))
    return present.withColumn("next", following).where(fn.col("next") == fn.col("piece") + 1).drop("next")
