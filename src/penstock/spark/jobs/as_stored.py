"""Messages as a store has them, made from events and bodies: what `rebuild` writes and `verify` compares.

A DataFrame of them has the columns `STORED`, whether it comes from a store or from an archive.
"""

from __future__ import annotations

from collections.abc import Collection

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as fn

from penstock.event import Kind
from penstock.message import State
from penstock.spark.jobs.fold import fold
from penstock.spark.jobs.states import GONE

#: What was written once.
BODY = (
    "payload", "headers", "fairness_key", "weight", "throttle_keys", "priority", "dedup_id", "enqueued_at_ns",
)  # fmt: skip
#: `state` is never leased: `leased` says that it was. Times are 0 where there is none.
STORED = (
    "queue", "id", "state", "leased", *BODY, "visible_at_ns", "expires_at_ns", "until_ns", "order_ns",
    "attempts", "reason",
)  # fmt: skip

_READY, _DELAYED, _LEASED = str(State.READY), str(State.DELAYED), str(State.LEASED)
_KEPT = (str(State.DONE), str(State.DEAD))
#: Events after which a message stands where its body says.
_BY_BODY = tuple(map(str, (Kind.ENQUEUED, Kind.UPDATED, Kind.REPAIRED)))
_KEY = ["queue", "id"]


def of_stored(messages: DataFrame) -> DataFrame:
    """Of the table `messages`."""
    state = fn.col("state")
    return messages.select(
        *_KEY,
        _not_leased(state).alias("state"),
        (state == _LEASED).alias("leased"),
        *BODY,
        "visible_at_ns",
        _number("expires_at_ns"),
        fn.when(state.isin(*_KEPT), fn.coalesce("until_ns", fn.lit(0)))
        .otherwise(fn.lit(0))
        .alias("until_ns"),
        _number("order_ns"),
        "attempts",
        fn.coalesce("reason", fn.lit("")).alias("reason"),
    )


def of_history(
    events: DataFrame, bodies: DataFrame, base: DataFrame, spans: DataFrame, fifo: Collection[str] = ()
) -> DataFrame:
    """Of an archive's tables, one generation a queue.

    `spans` has `queue`, `base_seq`, up to where the base knows, which is how messages stood, and `end_seq`,
    up to where events count. Besides `STORED` there are `body_seq`, the event that brought the body, and
    `read_seq`, the last one when it was read; both are null where there is no body.
    """
    counts = (fn.col("seq") > fn.col("base_seq")) & (fn.col("seq") <= fn.col("end_seq"))
    later = events.join(fn.broadcast(spans), "queue").where(counts)
    joined = (
        _told(fold(later))
        .join(_as_standing(base), _KEY, "full")
        .withColumns({"now": fn.coalesce("told.state", "was.state"), "body_seq": _body_seq()})
        .where(fn.col("now") != GONE)
    )
    stored = _placed(joined, fifo).join(_contents(bodies, base), [*_KEY, "body_seq"], "left")
    found = fn.col("body.payload").isNotNull()
    return stored.select(
        *_KEY,
        _not_leased(fn.col("now")).alias("state"),
        (fn.col("now") == _LEASED).alias("leased"),
        *(fn.col(f"body.{name}").alias(name) for name in BODY),
        _visible().alias("visible_at_ns"),
        _expires().alias("expires_at_ns"),
        fn.when(fn.col("now").isin(*_KEPT), fn.coalesce("told.due_ns", "was.until_ns"))
        .otherwise(fn.lit(0))
        .alias("until_ns"),
        _order().alias("order_ns"),
        fn.coalesce("told.attempts", "was.attempts").alias("attempts"),
        _reason().alias("reason"),
        fn.when(found, fn.col("body_seq")).alias("body_seq"),
        fn.when(found, fn.col("body.read_seq")).alias("read_seq"),
    )


def _number(name: str) -> Column:
    return fn.coalesce(fn.col(name), fn.lit(0)).cast("long").alias(name)


def _not_leased(state: Column) -> Column:
    return fn.when(state == _LEASED, fn.lit(_READY)).otherwise(state)


def _told(folded: DataFrame) -> DataFrame:
    """What events say of each message, as one column."""
    columns = [name for name in folded.columns if name not in ("queue", "message_id")]
    return folded.select("queue", fn.col("message_id").alias("id"), fn.struct(*columns).alias("told"))


def _as_standing(base: DataFrame) -> DataFrame:
    was = fn.struct(
        "state",
        "attempts",
        _number("until_ns"),
        _number("expires_at_ns"),
        _number("order_ns"),
        "visible_at_ns",
        fn.coalesce("reason", fn.lit("")).alias("reason"),
    )
    return base.select(*_KEY, was.alias("was"))


def _body_seq() -> Column:
    """The event that brought the body; 0: it was there when the archive was begun."""
    return fn.coalesce("told.body_seq", fn.when(fn.col("was").isNotNull(), fn.lit(0)))


def _contents(bodies: DataFrame, base: DataFrame) -> DataFrame:
    columns = (*BODY, "visible_at_ns", "order_ns", "read_seq", _number("expires_at_ns"))
    brought = bodies.select(*_KEY, fn.col("seq").alias("body_seq"), fn.struct(*columns).alias("body"))
    there = base.select(*_KEY, fn.lit(0).cast("long").alias("body_seq"), fn.struct(*columns).alias("body"))
    return brought.union(there)


def _placed(rows: DataFrame, fifo: Collection[str]) -> DataFrame:
    """`back_ns` of those that came back to the end of the line, `behind` so many others of the same time."""
    came_back = ~fn.col("told.placed.kind").isin(*_BY_BODY) & ~fn.col("queue").isin(*fifo)
    back_ns = fn.greatest("told.placed.due_ns", "told.placed.at_ns")
    # Others are each a part of their own, and cost nothing.
    alone = fn.when(fn.col("back_ns").isNull(), fn.col("id"))
    at_once = Window.partitionBy("queue", "back_ns", alone).orderBy("told.placed.seq")
    rows = rows.withColumn("back_ns", fn.when(came_back, back_ns))
    return rows.withColumn("behind", fn.row_number().over(at_once) - 1)


def _order() -> Column:
    """Its place in line, as near as events tell: the store moves those of one time on by nanoseconds."""
    by_body = fn.col("told.placed").isNotNull() | fn.col("was").isNull()
    other = fn.when(by_body, fn.col("body.order_ns")).otherwise(fn.col("was.order_ns"))
    return fn.coalesce(fn.col("back_ns") + fn.col("behind"), other)


def _visible() -> Column:
    placed = fn.col("told.placed.kind")
    return (
        fn.when((fn.col("now") == _DELAYED) & fn.col("told.state").isNotNull(), fn.col("told.due_ns"))
        .when(placed.isin(*_BY_BODY), fn.col("body.visible_at_ns"))
        .when(placed.isNotNull(), fn.greatest("told.placed.due_ns", "told.placed.at_ns"))
        .otherwise(fn.coalesce("was.visible_at_ns", "body.visible_at_ns"))
    )


def _expires() -> Column:
    revived = fn.col("told.revived_seq") > fn.coalesce("told.body_seq", fn.lit(0))
    own = fn.when(fn.col("told.body_seq").isNull(), fn.col("was.expires_at_ns")).otherwise(
        fn.col("body.expires_at_ns")
    )
    return fn.when(revived, fn.lit(0)).otherwise(fn.coalesce(own, fn.lit(0)))


def _reason() -> Column:
    """As its state row has it. One that is ready for the first time has no such row."""
    fresh = (
        (fn.col("told.kind") == str(Kind.UPDATED))
        & (fn.col("now") == _READY)
        & (fn.col("told.attempts") == 0)
    )
    told = fn.when(fn.col("told.told.kind") == str(Kind.ENQUEUED), fn.lit("")).otherwise(
        fn.col("told.told.reason")
    )
    return fn.when(fresh, fn.lit("")).otherwise(fn.coalesce(told, fn.col("was.reason"), fn.lit("")))
