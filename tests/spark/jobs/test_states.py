"""States in Spark are those of `penstock.message`, case by case."""

from __future__ import annotations

from itertools import product

from pyspark.sql import SparkSession

from penstock.event import HOLE, Event, Kind
from penstock.message import TRANSITIONS, State, state_after
from penstock.spark.jobs.states import GONE, IS_LEGAL, LEGAL_STEPS, UNKNOWN, after, name_of

_EXTRAS = ("", "another queue", HOLE, *map(str, State))


def _expected(kind: Kind, at_ns: int, due_ns: int, extra: str) -> str:
    try:
        return name_of(state_after(Event(1, at_ns, kind, b"", 0, due_ns, "", "", extra)))
    except ValueError:
        return "impossible"


def test_every_event_leads_where_the_one_function_says(spark: SparkSession) -> None:
    cases = list(product(map(str, Kind), (100,), (0, 1, 99, 100, 101), _EXTRAS))
    rows = spark.createDataFrame(cases, "kind string, at_ns long, due_ns long, extra string")
    found = {(r.kind, r.due_ns, r.extra): r.state for r in rows.withColumn("state", after()).collect()}
    assert found == {
        (kind, due_ns, extra): _expected(Kind(kind), at_ns, due_ns, extra)
        for kind, at_ns, due_ns, extra in cases
    }


def test_every_step_of_the_table_is_legal_and_no_other(spark: SparkSession) -> None:
    states = [GONE, UNKNOWN, *map(str, State)]
    cases = list(product(states, map(str, Kind), [GONE, *map(str, State)]))
    rows = spark.createDataFrame(cases, "was string, kind string, state string")
    legal = rows.where(IS_LEGAL).collect()
    expected = set()
    for (before, kind), afters in TRANSITIONS.items():
        for state in afters:
            expected |= {(name_of(before), str(kind), name_of(state)), (UNKNOWN, str(kind), name_of(state))}
            if before == State.READY:  # Its delay may have passed.
                expected.add((str(State.DELAYED), str(kind), name_of(state)))
    assert {tuple(row) for row in legal} == expected
    assert len(LEGAL_STEPS) == len(expected)
