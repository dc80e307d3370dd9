"""The fold: from a queue's events to where each of its messages stands, at the end or at any moment."""

from __future__ import annotations

from collections.abc import Iterable

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as fn

from penstock.backends.bulk import RESTORED
from penstock.event import Kind
from penstock.message import State
from penstock.spark.jobs.states import BRINGING, NOBODY_ID, after

#: What the last event of a message says of it, by the names that the fold gives it.
_LAST = {
    "kind": "kind",
    "state": "state",
    "attempts": "attempt",
    "seq": "seq",
    "at_ns": "at_ns",
    "due_ns": "due_ns",
    "consumer": "consumer",
    "extra": "extra",
}


def fold(events: DataFrame, at_ns: int | None = None) -> DataFrame:
    """Where the events leave each message: one row for each `queue` and `message_id`.

    `at_ns` is the moment, and counts: without it, after the last event. A delay that has passed at the moment
    has made its message ready; without a moment it is `delayed`, and ready from `due_ns` on.

    | column | meaning |
    | --- | --- |
    | state | as the table of transitions has it; `gone`: not in the queue any more |
    | kind, attempts, seq, at_ns, due_ns, consumer, extra | of the last event |
    | first_seq, enqueued_at_ns | of the first event, and of the last that enqueued it; null: before history |
    | leased_seq | of the last lease: the token of its receipt |
    | body_seq | of the event that brought its body, or replaced it; null: before history |
    | reason | the last that was given, or null |
    | told | `kind` and `reason` of the last event that set the stored reason: a lease takes it away |
    | placed | `kind`, `seq`, `at_ns`, `due_ns` of the last event that gave it its place in line |
    | revived_seq | of the last redrive: its ttl ended there |
    """
    known = events.where(fn.col("message_id") != NOBODY_ID)
    if at_ns is not None:
        known = known.where(fn.col("at_ns") <= at_ns)
    seq, kind = fn.col("seq"), fn.col("kind")
    folded = (
        known.withColumn("state", after())
        .groupBy("queue", "message_id")
        .agg(
            fn.max_by(fn.struct(*(fn.col(name).alias(as_) for as_, name in _LAST.items())), seq).alias(
                "last"
            ),
            fn.min("seq").alias("first_seq"),
            fn.max_by("at_ns", fn.when(kind == str(Kind.ENQUEUED), seq)).alias("enqueued_at_ns"),
            fn.max(fn.when(kind == str(Kind.LEASED), seq)).alias("leased_seq"),
            fn.max(fn.when(_among(BRINGING), seq)).alias("body_seq"),
            fn.max_by("reason", fn.when(fn.col("reason") != "", seq)).alias("reason"),
            fn.max_by(fn.struct("kind", "reason"), fn.when(_tells(), seq)).alias("told"),
            fn.max_by(fn.struct("kind", "seq", "at_ns", "due_ns"), fn.when(_among(_PLACING), seq)).alias(
                "placed"
            ),
            fn.max(fn.when(kind == str(Kind.REDRIVEN), seq)).alias("revived_seq"),
        )
        .select("queue", "message_id", "last.*", *_OWN)
    )
    if at_ns is None:
        return folded
    passed = (fn.col("state") == str(State.DELAYED)) & (fn.col("due_ns") <= at_ns)
    return folded.withColumn("state", fn.when(passed, str(State.READY)).otherwise(fn.col("state")))


_OWN = (
    "first_seq", "enqueued_at_ns", "leased_seq", "body_seq", "reason", "told", "placed", "revived_seq",
)  # fmt: skip

_TELLING = (Kind.ENQUEUED, Kind.LEASED, Kind.ACKED, Kind.NACKED, Kind.RELEASED, Kind.DEAD)
_PLACING = (Kind.ENQUEUED, Kind.UPDATED, Kind.NACKED, Kind.RELEASED, Kind.REDRIVEN, Kind.REPAIRED)


def _among(kinds: Iterable[Kind]) -> Column:
    return fn.col("kind").isin(*map(str, kinds))


def _tells() -> Column:
    """What a repair says is why it was needed; what comes from another store brings its reason along."""
    restored = (fn.col("kind") == str(Kind.REPAIRED)) & (fn.col("consumer") == RESTORED)
    return _among(_TELLING) | restored
