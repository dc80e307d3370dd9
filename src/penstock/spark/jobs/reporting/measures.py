"""The numbers of a report, aggregated by Spark: from moves to few rows, however long the history."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as fn

from penstock.clock import NS_PER_S
from penstock.event import Kind
from penstock.spark.jobs.reporting.buckets import Buckets
from penstock.spark.jobs.reporting.facts import AttemptRow, KeyRow, ReasonRow, Spans
from penstock.spark.jobs.states import listed

#: Percentiles are off by at most one in so many ranks.
ACCURACY = 1000
FAILURES = tuple(map(str, (Kind.NACKED, Kind.RELEASED, Kind.DEAD, Kind.DROPPED)))
_COUNTED = {
    "enqueued": "kind = 'enqueued'",
    "delivered": "kind = 'leased'",
    "acked": "kind = 'acked'",
    "failed": f"kind IN {listed(FAILURES)}",
    "dead": "kind = 'dead'",
}
MOST_ROWS = 20
MOST_NAMES = 1000


def counts() -> list[Column]:
    return [fn.expr(f"count_if({test}) AS {name}") for name, test in _COUNTED.items()]


def durations() -> list[Column]:
    return [
        fn.expr(f"percentile_approx({name}, array(0.5, 0.95, 0.99), {ACCURACY}) AS {name}")
        for name in ("wait_ns", "work_ns")
    ]


def changes() -> list[Column]:
    return [fn.expr("sum(waiting) AS waiting"), fn.expr("sum(leased) AS leased")]


def spans(values_ns: Sequence[int] | None) -> Spans:
    return Spans() if values_ns is None else Spans(*(value / NS_PER_S for value in values_ns))


def within(moves: DataFrame, buckets: Buckets) -> DataFrame:
    return moves.where(buckets.covers(fn.col("at_ns")))


def by_queue(moves: DataFrame, buckets: Buckets, most: int) -> list[Row]:
    """The queues that most was delivered from, and after them those that most happened in."""
    return (
        within(moves, buckets)
        .groupBy("queue")
        .agg(*counts(), *durations(), fn.count(fn.lit(1)).alias("moves"))
        .orderBy(fn.desc("delivered"), fn.desc("moves"), "queue")
        .limit(most)
        .collect()
    )


def by_time(moves: DataFrame, buckets: Buckets, queues: Sequence[str] | None = None) -> list[Row]:
    """By piece of time, those before and after the report's included: changes of depth need them.

    For all queues together, or for each of some.
    """
    by = [] if queues is None else ["queue"]
    chosen = moves if queues is None else moves.where(fn.col("queue").isin(*queues))
    pieces = buckets.piece_of(fn.col("at_ns")).alias("piece")
    return chosen.groupBy(*by, pieces).agg(*counts(), *durations(), *changes()).collect()


def oldest(
    moves: DataFrame, buckets: Buckets, messages: DataFrame | None, queues: Sequence[str] | None = None
) -> list[Row]:
    """By edge: since when (`visible_ns`) the message had waited that had waited longest.

    What still waits is told by the messages, which also know what came before history did.
    """
    by = [] if queues is None else ["queue"]
    waits = moves.where(fn.col("visible_ns").isNotNull()).select("queue", "visible_ns", "left_ns")
    if messages is not None:
        open_ = messages.where(fn.col("state") == "ready").select(
            "queue", fn.col("visible_at_ns").alias("visible_ns"), fn.lit(None).cast("bigint").alias("left_ns")
        )
        waits = waits.where(fn.col("left_ns").isNotNull()).union(open_)
    if queues is not None:
        waits = waits.where(fn.col("queue").isin(*queues))
    return (
        waits.withColumn("edges", buckets.edges_in(fn.col("visible_ns"), fn.col("left_ns")))
        .where(fn.col("edges").isNotNull())
        .groupBy(*by, "edges")
        .agg(fn.min("visible_ns").alias("visible_ns"))
        .select(*by, "visible_ns", fn.explode(fn.sequence("edges.first", "edges.last")).alias("edge"))
        .groupBy(*by, "edge")
        .agg(fn.min("visible_ns").alias("visible_ns"))
        .collect()
    )


def dead_letter_queues(moves: DataFrame) -> list[str]:
    """Where dead letters went, and nobody works on them."""
    sent = moves.where((fn.col("kind") == str(Kind.DEAD)) & (fn.col("extra") != ""))
    worked_on = moves.where(fn.col("kind") == str(Kind.LEASED)).select("queue").distinct()
    targets = sent.select(fn.col("extra").alias("queue")).distinct().join(worked_on, "queue", "left_anti")
    return sorted(row.queue for row in targets.limit(MOST_NAMES).collect())


def by_attempt(moves: DataFrame, buckets: Buckets) -> tuple[AttemptRow, ...]:
    rows = (
        within(moves, buckets)
        .where(fn.col("attempt") > 0)
        .groupBy("attempt")
        .agg(*counts())
        .where("delivered + acked + failed > 0")
        .orderBy("attempt")
        .limit(MOST_ROWS)
        .collect()
    )
    return tuple(AttemptRow(row.attempt, row.delivered, row.acked, row.failed) for row in rows)


def by_reason(moves: DataFrame, buckets: Buckets, kinds: Sequence[str]) -> tuple[ReasonRow, ...]:
    """The most frequent, by queue."""
    rows = (
        within(moves.where(fn.col("kind").isin(*kinds)), buckets)
        .groupBy("queue", "kind", "reason")
        .agg(fn.count(fn.lit(1)).alias("times"), fn.max("at_ns").alias("last_at_ns"))
        .orderBy(fn.desc("times"), "queue", "kind", "reason")
        .limit(MOST_ROWS)
        .collect()
    )
    return tuple(ReasonRow(row.queue, row.kind, row.reason, row.times, row.last_at_ns) for row in rows)


def together(moves: DataFrame, buckets: Buckets) -> Row:
    """Of all queues: `deliveries`, those `with_key`, about how many `keys` there are, and durations."""
    leased = fn.col("kind") == str(Kind.LEASED)
    keyed = leased & fn.col("fairness_key").isNotNull()
    rows = within(moves, buckets).agg(
        fn.count_if(leased).alias("deliveries"),
        fn.count_if(keyed).alias("with_key"),
        fn.approx_count_distinct(fn.when(keyed, fn.struct("queue", "fairness_key"))).alias("keys"),
        *durations(),
    )
    return rows.collect()[0]


def by_key(moves: DataFrame, buckets: Buckets) -> tuple[KeyRow, ...]:
    """The keys whose messages took longest to work on, by the 95th percentile."""
    rows = (
        within(moves, buckets)
        .where(fn.col("fairness_key").isNotNull())
        .groupBy("queue", "fairness_key")
        .agg(*durations(), fn.count("work_ns").alias("finished"))
        .where("finished > 0")
        .orderBy(fn.desc(fn.col("work_ns")[1]), "queue", "fairness_key")
        .limit(MOST_ROWS)
        .collect()
    )
    return tuple(
        KeyRow(row.queue, row.fairness_key, row.finished, spans(row.wait_ns), spans(row.work_ns))
        for row in rows
    )
