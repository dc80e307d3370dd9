"""Each message followed through its events, step by step, and compared with how it is stored."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as fn

from penstock.spark.jobs.auditing.findings import cases, finding, found, what
from penstock.spark.jobs.lives import known_events, with_before
from penstock.spark.jobs.states import GONE, IS_LEGAL, STORED, UNKNOWN, WAITING

#: Findings of one message that are told: further ones are mostly consequences.
TOLD_OF_A_MESSAGE = 5

_STEP = cases(
    # The same event twice is told by its number.
    ("before.seq = seq", "null"),
    (
        "kind = 'leased' AND was = 'leased'",
        finding(
            "double_lease",
            what(
                "event %s leases it to %s while %s holds it by event %s",
                "seq",
                "consumer",
                "before.consumer",
                "before.seq",
            ),
        ),
    ),
    (
        f"kind = 'enqueued' AND was IN {STORED}",
        finding("duplicate", what("event %s enqueues it again while it is %s", "seq", "was")),
    ),
    (
        f"NOT {IS_LEGAL}",
        finding("illegal", what("event %s takes it from %s by %s to %s", "seq", "was", "kind", "state")),
    ),
    (
        "kind = 'released' AND was = 'leased' AND at_ns < before.due_ns",
        finding(
            "early_release",
            what(
                "event %s releases it %s s before the end of the lease of %s",
                "seq",
                "round((before.due_ns - at_ns) / 1e9, 3)",
                "before.consumer",
            ),
        ),
    ),
)
_DELIVERY = cases(
    ("kind <> 'leased'", "null"),
    (
        "attempt > max_attempts",
        finding(
            "over_delivered",
            what("delivery %s, by event %s, of at most %s", "attempt", "seq", "max_attempts"),
        ),
    ),
    # Repairs of older versions did not record attempts.
    (
        "before.kind <> 'repaired' AND attempt <> before.attempt + 1",
        finding(
            "attempts",
            what("event %s is delivery %s, after %s before it", "seq", "attempt", "before.attempt"),
        ),
    ),
)

# -- against what is stored: of the columns last, leased_seq, stored, copies and says

_COPIES = cases(("copies > 1", finding("duplicate", what("listed %s times", "copies"), "last.seq")))
_PRESENCE = cases(
    (
        f"copies > 0 AND says = '{GONE}' AND last IS NULL",
        finding("left", what("no event brought it here; it is stored as %s", "stored.state"), "last.seq"),
    ),
    (
        f"copies > 0 AND says = '{GONE}'",
        finding(
            "left",
            what("event %s took it out of the queue; it is stored as %s", "last.seq", "stored.state"),
            "last.seq",
        ),
    ),
    (
        f"copies IS NULL AND says IN {STORED}",
        finding(
            "lost",
            what("event %s (%s) leaves it %s; it is not stored", "last.seq", "last.kind", "says"),
            "last.seq",
        ),
    ),
)
_DIFFERENCE = cases(
    (f"says NOT IN {STORED} OR stored IS NULL", "null"),
    (
        f"says <> stored.state AND NOT (says IN {WAITING} AND stored.state IN {WAITING})",
        finding(
            "differs",
            what("event %s leaves it %s; it is stored as %s", "last.seq", "says", "stored.state"),
            "last.seq",
        ),
    ),
    # Every event but those of old repairs has the attempts that are stored after it; 0 of 0 included.
    (
        "last.attempt <> stored.attempts AND NOT (last.kind = 'repaired' AND last.attempt = 0)",
        finding(
            "differs",
            what("the journal counts %s attempts; %s are stored", "last.attempt", "stored.attempts"),
            "last.seq",
        ),
    ),
    (
        "says = 'leased' AND (leased_seq <> stored.seq OR last.due_ns <> stored.lease_expires_at_ns)",
        finding(
            "differs",
            what(
                "the journal has the lease of event %s until %s ns; stored is that of %s until %s ns",
                "leased_seq",
                "last.due_ns",
                "stored.seq",
                "stored.lease_expires_at_ns",
            ),
            "last.seq",
        ),
    ),
)


def histories(
    events: DataFrame, extent: DataFrame, limits: DataFrame | None = None, messages: DataFrame | None = None
) -> DataFrame:
    """Findings in the events of each message; with `messages`, also against those.

    `limits` has the highest `max_attempts` that each `queue` ever had.
    """
    lives = _lives(_steps(known_events(events, extent), limits))
    if messages is not None:
        lives = _beside(lives, messages, extent)
    told = f"explode(slice(findings, 1, {TOLD_OF_A_MESSAGE})) AS finding"
    return found(lives.selectExpr("queue", "message_id", told), "message_id")


def _steps(known: DataFrame, limits: DataFrame | None) -> DataFrame:
    """Every event with what is wrong about it, if anything is."""
    steps = with_before(known)
    if limits is None:
        steps = steps.selectExpr("*", "int(null) AS max_attempts")
    else:
        steps = steps.join(fn.broadcast(limits), "queue", "left")
    return steps.selectExpr("*", f"{_STEP} AS step", f"{_DELIVERY} AS delivery")


def _lives(steps: DataFrame) -> DataFrame:
    """One row a message: where its events leave it, and what was wrong since it was last repaired."""
    lives = steps.groupBy("queue", "message_id").agg(
        fn.expr("max_by(struct(state, attempt, seq, kind, due_ns), seq) AS last"),
        fn.expr("max(CASE kind WHEN 'leased' THEN seq END) AS leased_seq"),
        fn.expr("coalesce(max(CASE kind WHEN 'repaired' THEN seq END), 0) AS mended_seq"),
        fn.expr("concat(collect_list(step), collect_list(delivery)) AS wrong"),
    )
    in_order = "array_sort(wrong, (one, other) -> int(sign(one.seq - other.seq)))"
    return lives.selectExpr(
        "queue",
        "message_id",
        "last",
        "leased_seq",
        f"filter({in_order}, one -> one.seq > mended_seq) AS findings",
    )


def _beside(lives: DataFrame, messages: DataFrame, extent: DataFrame) -> DataFrame:
    """The same, with what a comparison with the stored messages finds."""
    stored = messages.groupBy("queue", fn.col("id").alias("message_id")).agg(
        fn.expr("count(*) AS copies"),
        fn.expr("first(struct(state, attempts, seq, lease_expires_at_ns)) AS stored"),
    )
    unheard_of = f"CASE WHEN coalesce(whole, false) THEN '{GONE}' ELSE '{UNKNOWN}' END"
    joined = (
        lives.join(stored, ["queue", "message_id"], "full")
        .join(fn.broadcast(extent.select("queue", "whole")), "queue", "left")
        .selectExpr("*", f"coalesce(last.state, {unheard_of}) AS says")
    )
    compared = f"array_compact(array({_COPIES}, {_PRESENCE}, {_DIFFERENCE}))"
    together = f"CASE WHEN findings IS NULL THEN {compared} ELSE concat(findings, {compared}) END"
    return joined.selectExpr("queue", "message_id", f"{together} AS findings")
