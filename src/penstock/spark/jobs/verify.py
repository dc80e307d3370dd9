"""`penstock pipeline verify`: whether two places have the same queues, and the same messages to the byte.

Checksums of buckets are compared first. Only buckets that differ are then compared message by message.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as fn

from penstock.message import State
from penstock.settings import QueueSettings
from penstock.spark.jobs.sides import Side, Standing, standing

BUCKETS = 1024
#: Differences that are listed; all are counted.
MOST_LISTED = 1000

#: What is compared, by the name that a difference is told by. Never shown: what is in it.
COMPARED = (
    "state", "attempts", "reason", "payload", "headers", "fairness_key", "weight", "throttle_keys",
    "priority", "dedup_id", "enqueued_at_ns", "delayed_until_ns", "expires_at_ns", "kept_until_ns",
)  # fmt: skip

_MASK = (1 << 31) - 1


class Difference(msgspec.Struct, frozen=True):
    """A message that is on one side alone (`missing_left`, `missing_right`), or differs in `columns`.

    Without an id it is the queue itself, and the columns are settings.
    """

    queue: str
    id: str
    what: str
    columns: list[str] = []


class Verified(msgspec.Struct, kw_only=True):
    """What was compared. A lease counts as ready, for it cannot be carried over: `leased` says how many."""

    left: int = 0
    right: int = 0
    leased_left: int = 0
    leased_right: int = 0
    buckets: int = 0
    buckets_differing: int = 0
    missing_left: int = 0
    missing_right: int = 0
    differing: int = 0
    queues_differing: int = 0
    differences: list[Difference] = []

    @property
    def same(self) -> bool:
        return not self.buckets_differing and not self.queues_differing


def verify(
    spark: SparkSession,
    left: Side,
    right: Side,
    queues: tuple[str, ...] | None = None,
    names: dict[str, str] | None = None,
    buckets: int = BUCKETS,
) -> Verified:
    """`names`: queues that are called otherwise on the right, by their names on the left."""
    names = names or {}
    of_right = None if queues is None else tuple(names.get(name, name) for name in queues)
    with standing(spark, left, queues) as one, standing(spark, right, of_right) as other:
        at_ns = max((side.at_ns for side in (one, other) if side.at_ns is not None), default=None)
        # Of times that a side does not measure, nothing can be told.
        unit_ns = max((side.store.unit_ns for side in (left, right) if side.store), default=1)
        mine = _comparable(one, at_ns, buckets, {}, unit_ns).persist()
        renamed = {new: old for old, new in names.items()}
        theirs = _comparable(other, at_ns, buckets, renamed, unit_ns).persist()
        try:
            found = _compared(mine, theirs)
        finally:
            mine.unpersist()
            theirs.unpersist()
    queues_differing = _of_queues(one.queues, other.queues, names)
    found.queues_differing = len(queues_differing)
    found.differences = [*queues_differing, *found.differences][:MOST_LISTED]
    return found


def _of_queues(
    mine: dict[str, QueueSettings], theirs: dict[str, QueueSettings], names: dict[str, str]
) -> list[Difference]:
    """By their names on the left."""
    old = {new: name for name, new in names.items()}
    others = {old.get(name, name): one for name, one in theirs.items()}
    found = []
    for name in sorted({*mine, *others}):
        if name not in others or name not in mine:
            found.append(Difference(name, "", "missing_right" if name in mine else "missing_left"))
        elif columns := _settings_differing(mine[name], others[name], names, (set(mine), set(theirs))):
            found.append(Difference(name, "", "differing", columns))
    return found


def _settings_differing(
    mine: QueueSettings, theirs: QueueSettings, names: dict[str, str], there: tuple[set[str], set[str]]
) -> list[str]:
    """A dead-letter queue that is not among those of a side cannot be named there: that is no difference."""
    left, right = mine.dead_letter, theirs.dead_letter
    renamed = names.get(left, left) if left is not None else None
    dropped = (right is None and renamed not in there[1]) or (left is None and right not in there[0])
    return [
        setting
        for setting in QueueSettings.__struct_fields__[1:]
        if getattr(mine, setting) != getattr(theirs, setting)
        and not (setting == "dead_letter" and (dropped or renamed == right))
    ]


def _comparable(
    side: Standing, at_ns: int | None, buckets: int, renamed: dict[str, str], unit_ns: int
) -> DataFrame:
    """A row a message: its checksum, and one of each thing that is compared."""
    rows = side.messages
    for new, old in renamed.items():
        rows = rows.withColumn("queue", fn.when(fn.col("queue") == new, old).otherwise(fn.col("queue")))
    state, delayed = fn.col("state"), fn.col("state") == str(State.DELAYED)
    if at_ns is not None:
        # A delay passes without an event: by this moment it has, on both sides.
        delayed = delayed & (fn.col("visible_at_ns") > at_ns)
    state = fn.when(
        state.isin(str(State.DELAYED), str(State.READY)),
        fn.when(delayed, str(State.DELAYED)).otherwise(str(State.READY)),
    ).otherwise(state)
    values = {
        **{name: fn.col(name) for name in COMPARED[1:] if name in rows.columns},
        "state": state,
        "headers": fn.array_sort(fn.map_entries("headers")),
        "delayed_until_ns": fn.when(delayed, fn.col("visible_at_ns")).otherwise(fn.lit(0)),
        "kept_until_ns": fn.col("until_ns"),
    }
    if unit_ns > 1:
        values |= {
            name: values[name] - fn.pmod(values[name], fn.lit(unit_ns))
            for name in COMPARED
            if name.endswith("_ns")
        }
    sums = [fn.xxhash64(values[name]).alias(name) for name in COMPARED]
    bucket = fn.pmod(fn.xxhash64("queue", "id"), fn.lit(buckets)).cast("int").alias("bucket")
    rows = rows.select("queue", "id", "leased", bucket, fn.struct(*sums).alias("sums"))
    return rows.withColumn("sum", fn.xxhash64("queue", "id", "sums"))


def _compared(mine: DataFrame, theirs: DataFrame) -> Verified:
    joined = _by_bucket(mine, "l").join(_by_bucket(theirs, "r"), "bucket", "full").collect()
    found = Verified(buckets=len(joined))
    differing = []
    for row in joined:
        left, right = row.l or _NONE, row.r or _NONE
        found.left += left.rows
        found.right += right.rows
        found.leased_left += left.leased
        found.leased_right += right.leased
        if (left.rows, left.bits, left.total) != (right.rows, right.bits, right.total):
            differing.append(row.bucket)
    found.buckets_differing = len(differing)
    if differing:
        _list(found, _only(mine, differing), _only(theirs, differing))
    return found


class _Bucket(NamedTuple):
    """Enough to tell two sets of rows apart: how many, all their bits together, a sum of a part of each."""

    rows: int = 0
    leased: int = 0
    bits: int = 0
    total: int = 0


_NONE = _Bucket()


def _by_bucket(rows: DataFrame, name: str) -> DataFrame:
    counted = rows.groupBy("bucket").agg(
        fn.count(fn.lit(1)).alias("rows"),
        fn.count_if("leased").alias("leased"),
        fn.bit_xor("sum").alias("bits"),
        fn.sum(fn.col("sum").bitwiseAND(_MASK)).alias("total"),
    )
    return counted.select("bucket", fn.struct(*_Bucket._fields).alias(name))


def _only(rows: DataFrame, buckets: list[int]) -> DataFrame:
    return rows.where(fn.col("bucket").isin(*buckets))


def _list(found: Verified, mine: DataFrame, theirs: DataFrame) -> None:
    joined = mine.alias("l").join(theirs.alias("r"), ["queue", "id"], "full")
    differing = (
        joined.where(~fn.col("l.sum").eqNullSafe(fn.col("r.sum")))
        .select("queue", "id", _what().alias("what"), _columns().alias("columns"))
        .persist()
    )
    for what, count in differing.groupBy("what").count().collect():
        setattr(found, what, count)
    listed = differing.orderBy("queue", "id").limit(MOST_LISTED).collect()
    found.differences = [Difference(row.queue, row.id, row.what, list(row.columns)) for row in listed]
    differing.unpersist()


def _what() -> Column:
    return (
        fn.when(fn.col("l.sum").isNull(), "missing_left")
        .when(fn.col("r.sum").isNull(), "missing_right")
        .otherwise("differing")
    )


def _columns() -> Column:
    """What differs, by name."""
    both = fn.col("l.sum").isNotNull() & fn.col("r.sum").isNotNull()
    named = [fn.when(fn.col(f"l.sums.{name}") != fn.col(f"r.sums.{name}"), fn.lit(name)) for name in COMPARED]
    return fn.when(both, fn.array_compact(fn.array(*named))).otherwise(fn.array().cast("array<string>"))
