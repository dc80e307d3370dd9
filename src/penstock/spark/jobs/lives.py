"""Events beside the one that came before, of the same message; and how far back history is known."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as fn

from penstock.event import HOLE
from penstock.spark.jobs.states import AFTER, GONE, NOBODY_ID, UNKNOWN

#: The events of a message, in order.
IN_ORDER = "OVER (PARTITION BY queue, message_id ORDER BY seq)"

#: An event that stands for one that the store has lost.
IS_HOLE = f"message_id = '{NOBODY_ID}' AND extra = '{HOLE}'"
#: Later than anything that happened.
_EVER_NS = 2**63 - 1
#: What an archive adds to its rows: up to which event, and when, their queue was read.
READ_COLUMNS = ("read_seq", "read_at_ns")


def extents(events: DataFrame, queues: DataFrame | None = None) -> DataFrame:
    """What is known of each queue's history: one row a queue, few enough for every worker.

    `min_seq` and `max_seq` are of the events that are here, `first_seq` and `last_seq` of those that should
    be. Up to `floor_seq` nothing is known; `whole` says that there was nothing before. What happened after
    `first_at_ns` and before `reached_ns` is here; `events` says how many are.

    A queue of a store is known up to now. One of an archive alone may have been left behind by others: by a
    run that was killed, or that was of some queues only. They are found out at once, for they are used again
    and again.
    """
    last = "struct(seq, at_ns)"
    if set(READ_COLUMNS) <= set(events.columns):
        # Read to its end, a queue is known up to when that was, however long before it was last in use.
        last = "struct(seq, if(seq = read_seq, greatest(at_ns, read_at_ns), at_ns) AS at_ns)"
    found = events.groupBy("queue").agg(
        fn.expr("min(seq) AS min_seq"),
        fn.expr("max(seq) AS max_seq"),
        fn.expr(f"max(CASE WHEN {IS_HOLE} THEN seq END) AS hole_seq"),
        fn.expr(
            f"coalesce(max_by(at_ns, CASE WHEN {IS_HOLE} THEN seq END), min_by(at_ns, seq)) AS first_at_ns"
        ),
        fn.expr(f"max({last}).at_ns AS reached_ns"),
        fn.expr("count(*) AS events"),
    )
    if queues is None:
        known = found.selectExpr("*", "min_seq AS first_seq", "max_seq AS last_seq", "false AS stored")
    else:
        stored = queues.selectExpr("name AS queue", "first_seq AS stored_first", "last_seq AS stored_last")
        known = found.join(stored, "queue", "full").selectExpr(
            "*",
            # An archive may have what retention has removed from the store since.
            "least(stored_first, min_seq) AS first_seq",
            "coalesce(stored_last, max_seq) AS last_seq",
            "stored_last IS NOT NULL AS stored",
        )
    few = known.selectExpr(
        "queue",
        "min_seq",
        "max_seq",
        "first_seq",
        "last_seq",
        "first_at_ns",
        f"if(stored, {_EVER_NS}, reached_ns) AS reached_ns",
        "coalesce(hole_seq, first_seq - 1) AS floor_seq",
        "first_seq = 1 AND hole_seq IS NULL AS whole",
        "coalesce(events, 0) AS events",
    )
    # In one piece: Spark takes an empty one among others for the end.
    return events.sparkSession.createDataFrame(few.toArrow().combine_chunks())


def known_events(events: DataFrame, extent: DataFrame) -> DataFrame:
    """Events of messages, from where history is known on; each with `whole` and `state`, where it leads."""
    floors = fn.broadcast(extent.select("queue", "floor_seq", "whole"))
    known = events.join(floors, "queue").where(f"seq > floor_seq AND message_id <> '{NOBODY_ID}'")
    return known.selectExpr("*", f"{AFTER} AS state")


def with_before(known: DataFrame) -> DataFrame:
    """`before`: what the event before it, of the same message, said; and `was`, where the message stood."""
    of_before = "struct(seq, at_ns, kind, state, attempt, due_ns, consumer)"
    unheard_of = f"CASE WHEN whole THEN '{GONE}' ELSE '{UNKNOWN}' END"
    return known.selectExpr("*", f"lag({of_before}) {IN_ORDER} AS before").selectExpr(
        "*", f"coalesce(before.state, {unheard_of}) AS was"
    )
