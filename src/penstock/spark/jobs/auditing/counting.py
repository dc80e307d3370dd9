"""The counters of queues against what they count: messages by state, and events by kind."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame
from pyspark.sql import functions as fn

from penstock.message import STORED_STATES
from penstock.spark.jobs.auditing.findings import cases, finding, found, what
from penstock.spark.jobs.fold import fold
from penstock.spark.jobs.states import WAITING

_STATES = {str(state): str(state) for state in STORED_STATES}
#: What a fold can tell: it does not know which delays have passed.
_FOLDED = {"waiting": "delayed + ready", "leased": "leased", "done": "done", "dead": "dead"}
_TOTALS = {"enqueued_total": "enqueued_total", "acked_total": "acked_total", "failed_total": "failed_total"}

_OF_MESSAGES = {**{name: f"state = '{name}'" for name in _STATES}, "waiting": f"state IN {WAITING}"}
_OF_EVENTS = {
    "enqueued_total": "kind = 'enqueued'",
    "acked_total": "kind = 'acked'",
    # Failures whatever came before them. A message may also expire when it comes back.
    "failed_total": "kind IN ('nacked', 'released', 'dead', 'dropped')",
    "expired": "kind = 'expired'",
    "repaired": "kind = 'repaired'",
}


def counting(
    events: DataFrame, queues: DataFrame, extent: DataFrame, messages: DataFrame | None = None
) -> DataFrame:
    """Findings: states against the messages or, without those, against the fold of a whole history; totals
    against the events of a whole history. A queue that was ever repaired has totals of its own.
    """
    whole = queues.join(extent.where("whole").selectExpr("queue AS name"), "name")
    if messages is not None:
        states = _differing(_beside(queues, messages, _OF_MESSAGES), _STATES)
    else:
        states = _differing(_beside(whole, fold(events), _OF_MESSAGES), _FOLDED)
    totals = _beside(whole, events, _OF_EVENTS).where("there_repaired = 0")
    return states.union(_differing(totals, _TOTALS, {"failed_total": "there_expired"}))


def _beside(queues: DataFrame, rows: DataFrame, tests: Mapping[str, str]) -> DataFrame:
    """Queues with what there is of them, which may be nothing."""
    counts = [fn.expr(f"count_if({test}) AS there_{name}") for name, test in tests.items()]
    counted = rows.groupBy(fn.col("queue").alias("name")).agg(*counts)
    return queues.join(counted, "name", "left").fillna(0, [f"there_{name}" for name in tests])


def _differing(
    rows: DataFrame, compared: Mapping[str, str], uncertain: Mapping[str, str] | None = None
) -> DataFrame:
    """Counters that differ from what is there, or from every number up to what is `uncertain` more."""
    wrong = []
    for name, counter in compared.items():
        there, more = f"there_{name}", (uncertain or {}).get(name, "0")
        text = what(f"{name}: the counter says %s; there are %s", counter, there)
        test = f"{counter} NOT BETWEEN {there} AND {there} + {more}"
        wrong.append(cases((test, finding("counter", text, "null"))))
    return found(rows.selectExpr("name AS queue", f"explode(array({', '.join(wrong)})) AS finding"))
