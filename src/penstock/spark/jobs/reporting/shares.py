"""Fairness: what keys were delivered while one of them went short, against what their weights made due."""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as fn

from penstock.event import Kind
from penstock.spark.jobs.reporting.buckets import Buckets

_LINE = ["queue", "priority"]
_KEY = [*_LINE, "fairness_key"]
_PIECE = [*_LINE, "piece"]


def shares(moves: DataFrame, buckets: Buckets) -> DataFrame:
    """One row for each key that had rivals: `delivered`, `due`, and both as parts of their line's.

    A key went short in a piece of time if some of its messages waited from the beginning to the end of it: it
    asked for so many more than it was given. Any other key of its queue and priority was given all it asked
    for. Only pieces count in which a key went short, for in others nobody had to share, and something was
    delivered. `short` is how many of them a key was short in: 0 of one that never asked for more than it got.
    """
    keyed = moves.where(fn.col("fairness_key").isNotNull())
    weights = keyed.groupBy(*_KEY).agg(fn.avg("weight").alias("weight"))
    asked = (
        _delivered(keyed, buckets)
        .join(_passed_over(keyed, buckets), [*_KEY, "piece"], "full")
        .fillna(0, ["delivered", "passed_over"])
        .join(weights, _KEY)
    )
    total = fn.sum("delivered").over(Window.partitionBy(*_LINE))
    return (
        _shared_out(asked)
        .groupBy(*_KEY)
        .agg(
            fn.max("weight").alias("weight"),
            fn.sum("delivered").alias("delivered"),
            fn.sum("due").alias("due"),
            fn.count_if(fn.col("passed_over") > 0).alias("short"),
        )
        .withColumn("total", total)
        .withColumns(
            {"share": fn.col("delivered") / fn.col("total"), "due_share": fn.col("due") / fn.col("total")}
        )
    )


def _delivered(keyed: DataFrame, buckets: Buckets) -> DataFrame:
    """By key and piece."""
    return (
        keyed.where(fn.col("kind") == str(Kind.LEASED))
        .groupBy(*_KEY, buckets.piece_of(fn.col("at_ns")).alias("piece"))
        .agg(fn.count(fn.lit(1)).alias("delivered"))
    )


def _passed_over(keyed: DataFrame, buckets: Buckets) -> DataFrame:
    """How many messages of a key waited all through a piece; a part of one, at the report's end, is none."""
    whole = buckets.count if buckets.end_ns <= buckets.until_ns else buckets.count - 1
    return (
        keyed.withColumn("edges", buckets.edges_in(fn.col("visible_ns"), fn.col("left_ns")))
        .where(fn.col("visible_ns").isNotNull() & (fn.col("edges.first") < fn.col("edges.last")))
        # Thousands wait between the same two edges: one row stands for them all.
        .groupBy(*_KEY, "edges.first", "edges.last")
        .agg(fn.count(fn.lit(1)).alias("waits"))
        .select(*_KEY, "waits", fn.explode(fn.expr("sequence(first, last - 1)")).alias("piece"))
        .where(fn.col("piece") < whole)
        .groupBy(*_KEY, "piece")
        .agg(fn.sum("waits").alias("passed_over"))
    )


def _shared_out(asked: DataFrame) -> DataFrame:
    """`due`: what a piece's deliveries are by weight, of which no key gets more than it asked for.

    What a key leaves over is shared by the others, by weight again. So there is a `level`, the deliveries for
    each unit of weight of those that are not given all they asked for. Those who ask for least, for their
    weight, are served first: with them the level rises until it comes to the first that asks for more than
    it, and counting that one out like those before would make it fall. So it is where it is highest.
    """
    piece = Window.partitionBy(*_PIECE)
    modest = piece.orderBy(fn.col("asked") / fn.col("weight"), "fairness_key")
    before = modest.rowsBetween(Window.unboundedPreceding, -1)
    left = fn.col("total") - fn.coalesce(fn.sum("asked").over(before), fn.lit(0))
    weights = fn.sum("weight").over(piece) - fn.coalesce(fn.sum("weight").over(before), fn.lit(0))
    return (
        asked.withColumns(
            {
                "total": fn.sum("delivered").over(piece),
                "keys": fn.count(fn.lit(1)).over(piece),
                "short": fn.max("passed_over").over(piece),
                "asked": fn.col("delivered") + fn.col("passed_over"),
            }
        )
        .where("keys > 1 AND short > 0 AND total > 0")
        .withColumn("level", left / weights)
        .withColumn(
            "due", fn.least(fn.col("asked"), fn.col("weight") * fn.max("level").over(piece)).cast("double")
        )
    )
