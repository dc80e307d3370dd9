"""The audit: at any scale what `check` proves in one process, from the tables alone."""

from __future__ import annotations

from functools import reduce

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql import functions as fn

from penstock.spark.jobs.auditing.contents import CHECKED, checked, contents
from penstock.spark.jobs.auditing.counting import counting
from penstock.spark.jobs.auditing.histories import histories
from penstock.spark.jobs.auditing.numbering import numbering
from penstock.spark.jobs.auditing.transfers import transfers
from penstock.spark.jobs.lives import extents

#: Columns that an audit asks of each table, so that a reader need not bring the others.
EVENT_COLUMNS = (
    "queue", "seq", "at_ns", "kind", "message_id", "attempt", "due_ns", "consumer", "reason", "extra",
)  # fmt: skip
MESSAGE_COLUMNS = ("queue", "id", "state", "attempts", "seq", "lease_expires_at_ns")
CONTENT_COLUMNS = ("payload", "headers")

ENTRY_COLUMNS = ("world", "kind", "labels", "body")
BODY_COLUMNS = ("queue", "id", "seq", *CONTENT_COLUMNS)

_ABOUT_QUEUES = ("queue_created", "queue_updated")


def audit(
    events: DataFrame,
    queues: DataFrame | None = None,
    messages: DataFrame | None = None,
    bodies: DataFrame | None = None,
    administration: DataFrame | None = None,
    extent: DataFrame | None = None,
) -> DataFrame:
    """Findings: `kind` (of `findings.KINDS`), `queue`, `message_id`, `seq` and `what`. None: all is well.

    The tables are of one moment, and of the same queues. What is left out is not compared: with `events`
    alone, their numbers, every message's steps, and what went from queue to queue. `bodies` are archived
    ones, with the events that they were found by. `administration` are the entries of the world `_penstock`:
    without them, a queue whose `max_attempts` was lowered shows messages that were delivered too often.
    `extent` is what `lives.extents` has found out of the events and queues already, if it was asked.

    Where history does not reach back to the beginning (retention, or a hole that a repair recorded), what
    came before is taken as given. `events` are read several times: persist them if that is dear.
    """
    if extent is None:
        extent = extents(events, queues)
    found = [numbering(events, extent), transfers(events, extent)]
    found.append(histories(events, extent, attempt_limits(queues, administration), messages))
    if queues is not None:
        found.append(counting(events, queues, extent, messages))
    if messages is not None and bodies is not None:
        stored = messages if CHECKED in messages.columns else checked(messages)
        found.append(contents(events, extent, stored, checked(bodies)))
    return reduce(DataFrame.union, found)


class Finding(msgspec.Struct, frozen=True):
    """One fault: its kind, and the queue, message and event that it concerns, where it concerns one."""

    kind: str
    queue: str
    message_id: str | None
    seq: int | None
    what: str


class Audited(msgspec.Struct, kw_only=True):
    """What an audit has looked at and found: how many findings of each kind, and the first of them all.

    `partly`: queues whose history does not reach back to their beginning.
    """

    queues: int
    partly: int
    events: int
    messages: int
    counts: dict[str, int]
    findings: list[Finding]

    @property
    def ok(self) -> bool:
        return not self.counts


def summary(
    findings: DataFrame, extent: DataFrame, messages: DataFrame | None = None, limit: int = 100
) -> Audited:
    """The first `limit` findings by queue and event, and how many there are: they are read twice."""
    looked = extent.collect()
    counts = {row.kind: row["count"] for row in findings.groupBy("kind").count().orderBy("kind").collect()}
    first = findings.orderBy("queue", "seq", "message_id", "kind").limit(limit).collect() if counts else []
    return Audited(
        queues=len(looked),
        partly=sum(row.whole is False for row in looked),
        events=sum(row.events for row in looked),
        messages=0 if messages is None else messages.count(),
        counts=counts,
        findings=[Finding(row.kind, row.queue, row.message_id, row.seq, row.what) for row in first],
    )


def attempt_limits(queues: DataFrame | None, administration: DataFrame | None) -> DataFrame | None:
    """The highest `max_attempts` that each queue ever had: a lower one counts from the next failure on."""

    def stated(queue: str, settings: str, rows: DataFrame) -> DataFrame:
        limit = fn.get_json_object(fn.col(settings).cast("string"), "$.max_attempts").cast("int")
        return rows.select(fn.expr(queue).alias("queue"), limit.alias("max_attempts"))

    limits = []
    if queues is not None:
        limits.append(stated("name", "settings", queues))
    if administration is not None:
        about = administration.where(fn.col("kind").isin(*_ABOUT_QUEUES) & (fn.size("labels") > 0))
        limits.append(stated("labels[0]", "body", about))
    if not limits:
        return None
    return reduce(DataFrame.union, limits).groupBy("queue").agg(fn.max("max_attempts").alias("max_attempts"))
