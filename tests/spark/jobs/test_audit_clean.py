"""Sound stores have no findings, however their history went and however much of it is left."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from penstock.spark.jobs.audit import audit
from tests.spark.jobs.histories import random_histories
from tests.spark.jobs.stored import Tables, changed, frames


def _findings(spark: SparkSession, tables: Tables) -> list[object]:
    read = frames(spark, tables)
    events, queues, messages = read["events"], read["queues"], read["messages"]
    return [
        *audit(events, queues, messages, administration=read["entries"]).collect(),
        *audit(events, administration=read["entries"]).collect(),
    ]


def test_random_histories_have_no_findings(spark: SparkSession) -> None:
    """Some of them are truncated: queues of the simulation keep little."""
    tables = random_histories(range(8), 120)
    assert max(row["first_seq"] for row in tables["queues"].to_pylist()) > 1
    assert _findings(spark, tables) == []


def test_histories_that_are_cut_anywhere_have_no_findings(spark: SparkSession) -> None:
    """As retention cuts them: what is left starts in the middle of everything."""
    tables = random_histories(range(20, 24), 200)
    last = {row["name"]: row["last_seq"] for row in tables["queues"].to_pylist()}
    first = {row["name"]: row["first_seq"] for row in tables["queues"].to_pylist()}
    cut = {name: max(first[name], last[name] * (at % 4 + 1) // 5) for at, name in enumerate(sorted(last))}
    events = changed(tables["events"], lambda rows: [r for r in rows if r["seq"] >= cut[r["queue"]]])
    queues = changed(
        tables["queues"], lambda rows: [{**row, "first_seq": max(1, cut[row["name"]])} for row in rows]
    )
    assert _findings(spark, {**tables, "events": events, "queues": queues}) == []


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(1000, 1010))
def test_many_random_histories_have_no_findings(spark: SparkSession, seed: int) -> None:
    assert _findings(spark, random_histories(range(seed * 10, seed * 10 + 10), 300)) == []
