"""Messages that go from one queue to another: each that left has arrived, and each that arrived had left."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as fn

from penstock.spark.jobs.auditing.findings import finding, found, what

_BY = ["source", "target", "message_id", "at_ns"]
_LOST = finding(
    "lost", what("event %s sent it to queue %s, where it never arrived", "left_seq", "target"), "left_seq"
)
_TWICE = finding(
    "duplicate",
    what("event %s had it come from queue %s, which it never left", "arrived_seq", "source"),
    "arrived_seq",
)


def transfers(events: DataFrame, extent: DataFrame) -> DataFrame:
    """Findings. Both sides are one write, so they have the same time.

    A side whose history does not reach back so far, or not yet on to it, or is not there, is not missed.
    """
    moving = events.where("extra <> ''")
    left = moving.where("kind IN ('dead', 'moved', 'redriven')").selectExpr(
        "queue AS source", "extra AS target", "message_id", "at_ns", "seq AS left_seq"
    )
    arrived = moving.where("kind = 'enqueued'").selectExpr(
        "extra AS source", "queue AS target", "message_id", "at_ns", "seq AS arrived_seq"
    )
    both = left.join(arrived, _BY, "full").where("left_seq IS NULL OR arrived_seq IS NULL")
    alone = both.selectExpr(
        "message_id",
        "at_ns",
        "if(arrived_seq IS NULL, source, target) AS queue",
        "if(arrived_seq IS NULL, target, source) AS other",
        f"if(arrived_seq IS NULL, {_LOST}, {_TWICE}) AS finding",
    )
    known = fn.broadcast(extent.selectExpr("queue AS other", "first_at_ns", "reached_ns"))
    # One write may be many events of the same time, and a history may end, or begin, between two of them.
    missed = alone.join(known, "other").where("first_at_ns < at_ns AND at_ns < reached_ns")
    return found(missed, "message_id")
