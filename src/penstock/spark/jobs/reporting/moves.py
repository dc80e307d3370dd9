"""What each event did to its queue: how long a message had waited or was worked on, what came and went."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as fn

from penstock.event import Kind
from penstock.message import TRANSITIONS
from penstock.spark.jobs.lives import IN_ORDER, known_events
from penstock.spark.jobs.states import GONE, WAITING, name_of

_KEY = ["queue", "message_id"]
_OF_BODY = {"fairness_key": "string", "weight": "int", "priority": "int"}

#: What was said of a failed delivery may be a traceback, whose last line says most.
REASON_CHARS = 160
_LAST_LINE = r"([^\n]*\S[^\n]*)\s*$"

#: Columns that a report asks of each table, so that a reader need not bring the others.
EVENT_COLUMNS = ("queue", "seq", "at_ns", "kind", "message_id", "attempt", "due_ns", "reason", "extra")
BODY_COLUMNS = ("queue", "id", "seq", "fairness_key", "weight", "priority")
MESSAGE_COLUMNS = ("queue", "id", "state", "visible_at_ns")


def moves(events: DataFrame, extent: DataFrame, bodies: DataFrame | None = None) -> DataFrame:
    """One row for each event but the extensions of leases, which move nothing.

    | column | meaning |
    | --- | --- |
    | queue, at_ns, kind, attempt, extra | of the event |
    | reason | of a failure: the last line, or what fits of it |
    | wait_ns | of a delivery: since the message was visible; null where that is not known |
    | work_ns | of what ended a lease: since the delivery |
    | visible_ns, left_ns | of an event after which it waits: from when on, until when; null: it still does |
    | waiting, leased | what it added to the messages in these states, or took away |
    | fairness_key, weight, priority | of the message; null where its body is not known |
    """
    line = fn.substring(fn.regexp_extract("reason", _LAST_LINE, 1), 1, REASON_CHARS)
    known = known_events(events, extent).where("kind <> 'extended'").withColumn("reason", line)
    if bodies is not None:
        known = known.join(_newest(bodies), _KEY, "left")
    else:
        known = known.selectExpr("*", *(f"{kind}(null) AS {name}" for name, kind in _OF_BODY.items()))
    steps = known.selectExpr(
        "*",
        f"lag(struct(state, kind, at_ns, due_ns)) {IN_ORDER} AS before",
        f"lead(at_ns) {IN_ORDER} AS next_at_ns",
    ).selectExpr("*", f"{_WAS} AS was")
    # A clock that was set back makes no negative spans.
    return steps.selectExpr(
        "queue",
        "at_ns",
        "kind",
        "attempt",
        "extra",
        "reason",
        f"CASE WHEN kind = 'leased' AND before.state IN {WAITING} "
        "THEN greatest(0, at_ns - greatest(before.at_ns, before.due_ns)) END AS wait_ns",
        "CASE WHEN before.kind = 'leased' THEN greatest(0, at_ns - before.at_ns) END AS work_ns",
        f"CASE WHEN state IN {WAITING} THEN greatest(at_ns, due_ns) END AS visible_ns",
        f"CASE WHEN state IN {WAITING} THEN next_at_ns END AS left_ns",
        f"int(state IN {WAITING}) - int(was IN {WAITING}) AS waiting",
        "int(state = 'leased') - int(was = 'leased') AS leased",
        *_OF_BODY,
    )


def _usual(kind: Kind) -> str:
    """The state that a message mostly is in before such an event."""
    return name_of(next(before for before, event in TRANSITIONS if event == kind))


#: Where a message stood before. Where history starts, the usual state for such an event.
_WAS = (
    f"coalesce(before.state, CASE WHEN whole THEN '{GONE}'"
    + "".join(f" WHEN kind = '{kind}' THEN '{_usual(kind)}'" for kind in Kind)
    + " END)"
)


def _newest(bodies: DataFrame) -> DataFrame:
    """One row a message: an archive has a row for each event that brought a body."""
    body = f"max_by(struct({', '.join(_OF_BODY)}), coalesce(seq, 0)) AS body"
    by_message = bodies.groupBy("queue", fn.col("id").alias("message_id"))
    return by_message.agg(fn.expr(body)).select(*_KEY, "body.*")
