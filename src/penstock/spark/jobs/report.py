"""The report: what happened in queues over a time, measured by Spark and put together on the driver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as fn

from penstock.clock import NS_PER_S
from penstock.event import Kind
from penstock.spark.jobs.lives import extents
from penstock.spark.jobs.reporting import measures
from penstock.spark.jobs.reporting.buckets import Buckets, buckets
from penstock.spark.jobs.reporting.facts import Facts, Moment, QueueRow, ShareRow
from penstock.spark.jobs.reporting.moves import moves
from penstock.spark.jobs.reporting.shares import shares
from penstock.spark.jobs.reporting.standing import NOTHING, Standing, standing, without
from penstock.spark.jobs.reporting.timeline import timeline
from penstock.spark.jobs.watch import Progress

#: Queues that a report has a row of, and those that it has a line of.
MOST_QUEUES = 100
DRAWN_QUEUES = 8
MOST_SHARES = 30
_STEPS = 6


class Tables(NamedTuple):
    """What a report is made from. `queues` and `messages` are of the moment after the last event."""

    events: DataFrame
    queues: DataFrame | None = None
    messages: DataFrame | None = None
    bodies: DataFrame | None = None


class Asked(NamedTuple):
    """What a report is to say. Without `since_ns` and `until_ns`: all that there is.

    `seen_at_ns` is when the tables were read, if they are a live store's: what waits, waits until then.
    """

    source: str
    now_ns: int
    seen_at_ns: int | None = None
    since_ns: int | None = None
    until_ns: int | None = None


def report(tables: Tables, asked: Asked, progress: Progress = lambda *_: None) -> Facts:
    """Measure what the events tell.

    With `queues`, the counts of what waits are those of the store; without, those that the events add up to.
    `bodies` tell fairness keys: of a message whose body is gone, nothing is known by key.
    """
    extent = extents(tables.events, tables.queues)
    known = moves(tables.events, extent, tables.bodies).persist()
    try:
        return _Making(tables, extent, known, asked, progress).facts()
    finally:
        known.unpersist()


class _Making:
    """A report in the making: the moves are read once, then measured in one way after another."""

    def __init__(
        self, tables: Tables, extent: DataFrame, known: DataFrame, asked: Asked, progress: Progress
    ) -> None:
        self._tables = tables
        self._extent = extent
        self._known = known
        self._asked = asked
        self._progress = progress
        self._done = 0

    def _next(self, what: str) -> None:
        self._progress(what, self._done, _STEPS)
        self._done += 1

    def facts(self) -> Facts:
        asked, known, tables = self._asked, self._known, self._tables
        self._next("events")
        overall = self._overall()
        if not overall.events:
            return Facts(source=asked.source, made_at_ns=asked.now_ns)
        last_ns = self._end_ns(overall.last_ns)
        end_ns = last_ns + 1 if asked.until_ns is None else min(last_ns + 1, asked.until_ns)
        time = buckets(overall.first_ns, end_ns - 1, asked.since_ns)
        self._next("queues")
        rows = measures.by_queue(known, time, MOST_QUEUES)
        apart = measures.dead_letter_queues(known)
        names = [row.queue for row in rows]
        final = standing(known, tables.queues, tables.messages, names, apart)
        worked_on = without(known, apart)
        drawn = [name for name in names if name not in apart][:DRAWN_QUEUES]
        self._next("timeline")
        line = self._timeline(worked_on, time, final, apart, None)
        self._next("timeline by queue")
        lines = self._timeline(worked_on, time, final, apart, drawn) if len(drawn) > 1 else ()
        self._next("failures")
        failures = measures.by_reason(known, time, measures.FAILURES)
        deaths = measures.by_reason(known, time, (str(Kind.DEAD),))
        attempts = measures.by_attempt(worked_on, time)
        self._next("fairness keys")
        all_ = measures.together(worked_on, time)
        return Facts(
            source=asked.source,
            made_at_ns=asked.now_ns,
            since_ns=time.start_ns,
            until_ns=end_ns,
            bucket_s=time.width_s,
            events=overall.events,
            queue_count=overall.queues,
            whole=not self._extent.where("NOT whole").take(1),
            dead_letter_queues=tuple(apart),
            deliveries=all_.deliveries,
            deliveries_with_key=all_.with_key,
            key_count=all_["keys"],
            wait_s=measures.spans(all_.wait_ns),
            work_s=measures.spans(all_.work_ns),
            queues=tuple(_queue_row(row, final.get(row.queue, NOTHING), last_ns) for row in rows),
            timeline=line,
            timeline_by_queue=lines,
            attempts=attempts,
            failures=failures,
            deaths=deaths,
            shares=_shares(worked_on, time) if all_["keys"] > 1 else (),
            slowest=measures.by_key(worked_on, time) if all_.with_key else (),
        )

    def _overall(self) -> Row:
        """What happened in the time that was asked for; `last_ns` is of all that is known."""
        asked = self._asked
        at_ns, inside = fn.col("at_ns"), fn.lit(True)
        if asked.since_ns is not None:
            inside &= at_ns >= asked.since_ns
        if asked.until_ns is not None:
            inside &= at_ns < asked.until_ns
        counted = self._known.agg(
            fn.count_if(inside).alias("events"),
            fn.min(fn.when(inside, at_ns)).alias("first_ns"),
            fn.max("at_ns").alias("last_ns"),
            fn.count_distinct(fn.when(inside, fn.col("queue"))).alias("queues"),
        )
        return counted.collect()[0]

    def _end_ns(self, last_ns: int) -> int:
        """Of a live store with work in it, now: what waits there grows old without an event."""
        seen_at_ns, queues = self._asked.seen_at_ns, self._tables.queues
        if seen_at_ns is None or queues is None:
            return last_ns
        work = fn.sum(fn.col("delayed") + fn.col("ready") + fn.col("leased"))
        (row,) = queues.agg(work.alias("work")).collect()
        return max(last_ns, seen_at_ns) if row.work else last_ns

    def _timeline(
        self,
        worked_on: DataFrame,
        time: Buckets,
        final: Mapping[str | None, Standing],
        apart: Sequence[str],
        queues: Sequence[str] | None,
    ) -> tuple[Moment, ...]:
        messages = self._tables.messages
        rows = measures.by_time(worked_on, time, queues)
        waiting = None if messages is None else without(messages, apart)
        oldest = measures.oldest(worked_on, time, waiting, queues)
        return tuple(timeline(rows, oldest, time, final, queues))


def _queue_row(row: Row, end: Standing, last_ns: int) -> QueueRow:
    oldest_ns = 0 if end.oldest_ns is None else max(0, last_ns - end.oldest_ns)
    return QueueRow(
        queue=row.queue,
        enqueued=row.enqueued,
        delivered=row.delivered,
        acked=row.acked,
        failed=row.failed,
        dead=row.dead,
        wait_s=measures.spans(row.wait_ns),
        work_s=measures.spans(row.work_ns),
        waiting=end.waiting,
        leased=end.leased,
        oldest_s=oldest_ns / NS_PER_S,
    )


def _shares(known: DataFrame, time: Buckets) -> tuple[ShareRow, ...]:
    rows = shares(known, time).orderBy(fn.desc("due"), "queue", "fairness_key").limit(MOST_SHARES).collect()
    return tuple(
        ShareRow(
            row.queue,
            row.priority,
            row.fairness_key,
            row.weight,
            row.delivered,
            row.due,
            row.share,
            row.due_share,
            row.short * time.width_s,
        )
        for row in rows
    )
