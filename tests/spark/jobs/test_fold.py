"""The fold in Spark is the fold in Python, at the end and at every moment."""

from __future__ import annotations

import pytest
from pyspark.sql import DataFrame, SparkSession

from penstock import Event, Kind, State
from penstock.message import state_after
from penstock.spark.jobs.fold import fold
from penstock.spark.jobs.states import NOBODY_ID, name_of
from tests.spark.jobs.histories import random_histories
from tests.spark.jobs.stored import Row, Tables, frames

_SEEDS = range(100, 106)


@pytest.fixture(scope="module")
def tables() -> Tables:
    return random_histories(_SEEDS, 200)


@pytest.fixture(scope="module")
def events(spark: SparkSession, tables: Tables) -> DataFrame:
    return frames(spark, {"events": tables["events"]})["events"]


def _folded(rows: list[Row], until_ns: int | None = None) -> dict[tuple[str, str], tuple[str, int, int]]:
    """In plain Python: (state, attempts, seq) of each message."""
    found: dict[tuple[str, str], tuple[str, int, int]] = {}
    for row in sorted(rows, key=lambda row: (row["queue"], row["seq"])):
        if row["message_id"] == NOBODY_ID or (until_ns is not None and row["at_ns"] > until_ns):
            continue
        event = Event(
            row["seq"],
            row["at_ns"],
            Kind(row["kind"]),
            b"",
            row["attempt"],
            row["due_ns"],
            "",
            "",
            row["extra"],
        )
        state = state_after(event)
        if until_ns is not None and state == State.DELAYED and event.due_ns <= until_ns:
            state = State.READY
        found[row["queue"], row["message_id"]] = (name_of(state), row["attempt"], row["seq"])
    return found


def _of(folded: DataFrame) -> dict[tuple[str, str], tuple[str, int, int]]:
    return {(r.queue, r.message_id): (r.state, r.attempts, r.seq) for r in folded.collect()}


def test_the_end_of_a_history(events: DataFrame, tables: Tables) -> None:
    rows = tables["events"].to_pylist()
    assert len(rows) > 100
    assert _of(fold(events)) == _folded(rows)


def test_any_moment_of_a_history(events: DataFrame, tables: Tables) -> None:
    rows = tables["events"].to_pylist()
    times = sorted({row["at_ns"] for row in rows})
    for at_ns in (times[0] - 1, times[len(times) // 3], times[2 * len(times) // 3] + 1):
        assert _of(fold(events, at_ns)) == _folded(rows, at_ns)


def test_what_the_fold_knows_of_a_message(events: DataFrame, tables: Tables) -> None:
    by_message: dict[tuple[str, str], list[Row]] = {}
    for row in sorted(tables["events"].to_pylist(), key=lambda row: row["seq"]):
        by_message.setdefault((row["queue"], row["message_id"]), []).append(row)
    for folded in fold(events).collect():
        history = by_message[folded.queue, folded.message_id]
        last_of = {row["kind"]: row for row in history}
        assert folded.first_seq == history[0]["seq"]
        assert (folded.at_ns, folded.due_ns) == (history[-1]["at_ns"], history[-1]["due_ns"])
        assert folded.leased_seq == last_of.get("leased", {}).get("seq")
        assert folded.enqueued_at_ns == last_of.get("enqueued", {}).get("at_ns")
        bringing = [row["seq"] for row in history if row["kind"] in ("enqueued", "updated", "repaired")]
        assert folded.body_seq == (bringing[-1] if bringing else None)
        reasons = [row["reason"] for row in history if row["reason"]]
        assert folded.reason == (reasons[-1] if reasons else None)
