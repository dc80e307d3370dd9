"""Filters in Spark: always right, and kept to by the store where that is asked for."""

from __future__ import annotations

import pytest
from pyspark.sql import DataFrame, SparkSession

from penstock import Penstock
from tests.spark.stores import load, place

FILTERS = (
    ("events", "queue = 'orders' AND kind IN ('leased', 'acked')", True),
    ("events", "queue LIKE 'o%' AND seq > 20 AND seq <= 90 AND kind <> 'leased'", True),
    ("events", "queue = 'nope'", True),
    ("events", "at >= '2020-01-01' AND at_ns < 9000000000000000000", True),
    ("events", "at > '2200-01-01'", True),
    ("events", "kind = 'no such kind'", True),
    ("events", "seq IN (5, 7) AND queue = 'mails'", False),
    ("events", "consumer = 'worker 1' AND kind = 'leased'", False),
    ("events", "kind = 'leased' OR seq = 5", False),
    ("messages", "state = 'dead' AND queue != 'mails'", True),
    ("messages", "state NOT IN ('done', 'dead') AND enqueued_at < '2200-01-01'", True),
    ("messages", "state = 'leased' AND consumer IS NOT NULL", False),
    ("messages", "headers['type'] = 'job' AND state = 'ready'", False),
    ("queues", "name >= 'n'", True),
    ("queues", "ready > 0", False),
    ("entries", "world = 'world' AND kind = 'made' AND seq > 1", True),
)


def plan(df: DataFrame) -> str:
    return str(df._jdf.queryExecution().executedPlan().toString())


@pytest.mark.parametrize(("table", "condition", "kept_to"), FILTERS)
def test_a_filter_means_the_same_wherever_it_is_applied(
    spark: SparkSession, store: Penstock, table: str, condition: str, kept_to: bool
) -> None:
    everything = load(spark, place(store), table)
    whole = sorted(map(repr, everything.filter(condition).collect()))
    pushed = load(spark, place(store), table, pushFilters="true").filter(condition)

    assert sorted(map(repr, pushed.collect())) == whole
    assert ("Filter" not in plan(pushed).replace("RuntimeFilters", "")) == kept_to
    assert "Filter" in plan(everything.filter(condition)).replace("RuntimeFilters", "")


def test_a_dataframe_that_is_used_in_several_ways_gives_each_its_own_rows(
    spark: SparkSession, store: Penstock
) -> None:
    """Spark 4.3 notes with a DataFrame what the last filters have left over: nothing may rest on them."""
    events = load(spark, place(store), "events", queue="orders")
    total = events.count()
    acked, leased = events.filter("kind = 'acked'"), events.filter("kind = 'leased'")

    both = acked.join(leased, "message_id").count()

    assert 0 < acked.count() < leased.count() < total
    assert both == acked.count()
    assert acked.union(leased).count() == acked.count() + leased.count()
    assert events.count() == total


def test_options_and_filters_meet(spark: SparkSession, store: Penstock) -> None:
    some = load(
        spark, place(store), "events", queue="orders,mails", kind="acked,leased,dead", pushFilters="true"
    ).filter("kind <> 'leased' AND queue <> 'mails'")

    found = {(row["queue"], row["kind"]) for row in some.select("queue", "kind").distinct().collect()}
    assert found == {("orders", "acked"), ("orders", "dead")}


def test_without_the_setting_that_spark_wants_filters_are_not_pushed_and_all_else_works(
    spark: SparkSession, store: Penstock
) -> None:
    setting = "spark.sql.python.filterPushdown.enabled"
    spark.conf.set(setting, "false")
    try:
        assert load(spark, place(store), "queues").filter("name = 'orders'").count() == 1
    finally:
        spark.conf.set(setting, "true")
