"""Past messages by what happened to them and what they are: the rows that a replay enqueues again."""

from __future__ import annotations

from functools import reduce

import msgspec
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as fn

from penstock.event import Kind
from penstock.message import OWNED_HEADER_PREFIX
from penstock.spark.jobs.states import NOBODY_ID

#: The header that says which message this one repeats.
REPLAY_OF = "replay-of"

#: What is asked of each table; of bodies the generation, too.
EVENT_COLUMNS = ("queue", "at_ns", "kind", "message_id")
_KEY = ["queue", "id"]
_CONTENTS = ("payload", "headers", "fairness_key", "weight", "throttle_keys", "priority")
BODY_COLUMNS = ("queue", "id", "seq", "enqueued_at_ns", *_CONTENTS)


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """What is replayed: messages with an event of one of `kinds` in time, and all of the rest that is said.

    `since_ns` counts, `until_ns` does not. `headers` are names and values, `fairness_keys` and `ids` any of.
    """

    kinds: tuple[str, ...] = (str(Kind.ENQUEUED),)
    since_ns: int | None = None
    until_ns: int | None = None
    headers: dict[str, str] = {}
    fairness_keys: tuple[str, ...] | None = None
    ids: tuple[str, ...] | None = None

    def of_events(self) -> Column:
        tests = [fn.col("kind").isin(*self.kinds), fn.col("message_id") != NOBODY_ID]
        if self.since_ns is not None:
            tests.append(fn.col("at_ns") >= self.since_ns)
        if self.until_ns is not None:
            tests.append(fn.col("at_ns") < self.until_ns)
        if self.ids is not None:
            tests.append(fn.col("message_id").isin(*self.ids))
        return _all(tests)

    def of_bodies(self) -> Column:
        tests = [fn.lit(True)]
        tests += [fn.col("headers")[name].eqNullSafe(fn.lit(value)) for name, value in self.headers.items()]
        if self.fairness_keys is not None:
            tests.append(fn.col("fairness_key").isin(*self.fairness_keys))
        return _all(tests)


def _all(tests: list[Column]) -> Column:
    return reduce(lambda one, other: one & other, tests)


def chosen(events: DataFrame, bodies: DataFrame, choice: Choice) -> DataFrame:
    """A row a message, without its contents: `brought` tells its last body, and is null if there is none.

    `bodies` may be several of a message, of which `generation` and `seq` tell the last. An id is one message
    in whatever histories of the queue it is: after a gap the queue goes on in another.
    """
    wanted = events.where(choice.of_events()).select("queue", fn.col("message_id").alias("id")).distinct()
    last = fn.max_by(fn.struct("headers", "fairness_key", "enqueued_at_ns"), _brought())
    newest = bodies.groupBy(*_KEY).agg(last.alias("last"), fn.max(_brought()).alias("brought"))
    # A filter by what is not known chooses nothing.
    found = wanted.join(newest.select(*_KEY, "brought", "last.*"), _KEY, "left")
    return found.where(choice.of_bodies() | fn.col("brought").isNull()).select(
        *_KEY, "brought", "enqueued_at_ns"
    )


def _brought() -> Column:
    return fn.struct("generation", "seq")


def repeated(keys: DataFrame, bodies: DataFrame, name: str) -> DataFrame:
    """What was chosen as new messages of a replay: ids that follow from its name, in the order of the first.

    Contents join what was chosen last of all, and are read once: they may be large.
    """
    contents = bodies.select(*_KEY, _brought().alias("brought"), *_CONTENTS)
    rows = contents.join(keys, [*_KEY, "brought"])
    owned = OWNED_HEADER_PREFIX
    kept = fn.map_filter("headers", lambda key, _: ~key.startswith(owned) & (key != REPLAY_OF))
    return rows.orderBy("enqueued_at_ns", "queue", "id").select(
        _id(name).alias("id"),
        "payload",
        fn.map_concat(kept, fn.create_map(fn.lit(REPLAY_OF), fn.col("id"))).alias("headers"),
        "fairness_key",
        "weight",
        "throttle_keys",
        "priority",
    )


def _id(name: str) -> Column:
    """A UUID of the kind that is free for all (version 8)."""
    text = fn.concat_ws("\x1f", fn.lit(name), "queue", "id")
    digits = fn.sha2(text, 256)
    parts = [
        fn.substring(digits, 1, 8),
        fn.substring(digits, 9, 4),
        fn.concat(fn.lit("8"), fn.substring(digits, 13, 3)),
        fn.concat(fn.lit("a"), fn.substring(digits, 16, 3)),
        fn.substring(digits, 19, 12),
    ]
    return fn.concat_ws("-", *parts)
