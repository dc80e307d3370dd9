"""Filters that are pushed down: no row too few, and Spark is told of every one that is not kept to."""

from __future__ import annotations

import operator
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from penstock.spark.filters import Pushed, unenforced
from penstock.tables import TableName

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

NAMES = ("a", "ab", "b", "ü")
TEXTS = st.sampled_from((*NAMES, "leased", "acked", "ready", "dead", "", "c"))
KINDS = ("leased", "acked", "enqueued")
STATES = ("ready", "dead", "leased")
NUMBERS = st.integers(-1, 8)
#: In the middle of microseconds and on their edges.
TIMES_NS = (0, 1, 999, 1000, 1001, 2000, 2500, 3000)


MEANING: dict[type[Filter], Callable[[Any, Any], bool]] = {
    IsNotNull: lambda value, _: True,
    IsNull: lambda value, _: False,
    EqualTo: operator.eq,
    EqualNullSafe: operator.eq,
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
    In: lambda value, wanted: value in wanted,
    StringStartsWith: str.startswith,
    StringEndsWith: str.endswith,
    StringContains: operator.contains,
}


def holds(filter: Filter, row: dict[str, Any]) -> bool:
    """What Spark would say, of rows without nulls."""
    if isinstance(filter, Not):
        return not holds(filter.child, row)
    column = filter.attribute[0]  # type: ignore[attr-defined]
    return MEANING[type(filter)](row[column], getattr(filter, "value", None))


def comparisons(column: str, values: st.SearchStrategy[Any]) -> st.SearchStrategy[Filter]:
    kinds = (EqualTo, EqualNullSafe, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual)
    one = st.builds(lambda kind, value: kind((column,), value), st.sampled_from(kinds), values)
    several = st.builds(lambda found: In((column,), found), st.lists(values, max_size=3))
    return one | several | st.just(IsNotNull((column,))) | st.just(IsNull((column,)))


def negatable(filters: st.SearchStrategy[Filter]) -> st.SearchStrategy[Filter]:
    return filters | filters.map(Not)


def texts(column: str) -> st.SearchStrategy[Filter]:
    kinds = (StringStartsWith, StringEndsWith, StringContains)
    parts = st.builds(lambda kind, value: kind((column,), value), st.sampled_from(kinds), TEXTS)
    return negatable(comparisons(column, TEXTS) | parts)


def times(column: str) -> st.SearchStrategy[Filter]:
    moments = st.integers(-1, 4).map(lambda us: EPOCH + timedelta(microseconds=us))
    exact = st.integers(-1, 3001)
    return negatable(comparisons(column, moments) | comparisons(f"{column}_ns", exact))


def kept(pushed: Pushed, row: dict[str, Any], name: str, at_ns: int) -> bool:
    """Whether a store that keeps to what was pushed would give the row."""
    return (
        not pushed.nothing_left
        and pushed.keeps(name)
        and (pushed.states is None or row["state"] in pushed.states)
        and (pushed.kinds is None or row["kind"] in pushed.kinds)
        and pushed.seqs.low <= row["seq"] < pushed.seqs.end
        and pushed.times_ns.low <= at_ns < pushed.times_ns.end
    )


def rows(name_column: str, time_column: str) -> list[tuple[dict[str, Any], str, int]]:
    found = []
    for number, at_ns in enumerate(TIMES_NS):
        for kind in KINDS:
            name, state = NAMES[number % len(NAMES)], STATES[number % len(STATES)]
            at = EPOCH + timedelta(microseconds=at_ns // 1000)
            row = {name_column: name, "kind": kind, "state": state, "seq": number}
            found.append((row | {time_column: at, f"{time_column}_ns": at_ns}, name, at_ns))
    return found


def check(table: TableName, name_column: str, time_column: str, filters: list[Filter]) -> None:
    pushed = Pushed(table)
    left = unenforced(pushed, filters)

    assert all(any(one is filter for filter in filters) for one in left)
    for row, name, at_ns in rows(name_column, time_column):
        wanted = all(holds(filter, row) for filter in filters)
        given = kept(pushed, row, name, at_ns) and all(holds(filter, row) for filter in left)
        assert given == wanted, (row, filters, left, pushed)


EVENT_FILTERS = texts("queue") | texts("kind") | negatable(comparisons("seq", NUMBERS)) | times("at")
ENTRY_FILTERS = texts("world") | texts("kind") | negatable(comparisons("seq", NUMBERS)) | times("at")
MESSAGE_FILTERS = (
    texts("queue") | texts("state") | negatable(comparisons("seq", NUMBERS)) | times("enqueued_at")
)


@given(st.lists(EVENT_FILTERS, max_size=4))
def test_of_events_exactly_the_wanted_rows_come(filters: list[Filter]) -> None:
    check("events", "queue", "at", filters)


@given(st.lists(ENTRY_FILTERS, max_size=4))
def test_of_entries_exactly_the_wanted_rows_come(filters: list[Filter]) -> None:
    check("entries", "world", "at", filters)


@given(st.lists(MESSAGE_FILTERS, max_size=4))
def test_of_messages_exactly_the_wanted_rows_come(filters: list[Filter]) -> None:
    check("messages", "queue", "enqueued_at", filters)


AT = EPOCH + timedelta(microseconds=5)


@pytest.mark.parametrize(
    ("table", "filter"),
    [
        ("events", EqualTo(("queue",), "a")),
        ("events", Not(In(("kind",), ("leased", "acked")))),
        ("events", GreaterThan(("seq",), 5)),
        ("events", LessThanOrEqual(("at",), AT)),
        ("events", LessThan(("at_ns",), 5)),
        ("messages", Not(EqualTo(("state",), "done"))),
        ("messages", GreaterThanOrEqual(("enqueued_at",), AT)),
        ("messages", IsNotNull(("queue",))),
        ("queues", StringStartsWith(("name",), "a")),
        ("entries", In(("kind",), ("mine",))),
        ("bodies", EqualTo(("queue",), "a")),
    ],
)
def test_what_the_store_can_keep_to_spark_does_not_look_at_again(table: TableName, filter: Filter) -> None:
    assert unenforced(Pushed(table), [filter]) == []


@pytest.mark.parametrize(
    ("table", "filter"),
    [
        ("events", EqualTo(("message_id",), "x")),
        ("events", In(("seq",), (1, 5))),
        ("events", Not(EqualTo(("seq",), 5))),
        ("events", EqualTo(("queue",), 5)),
        ("events", EqualNullSafe(("queue",), None)),
        ("events", IsNull(("queue",))),
        ("messages", IsNotNull(("consumer",))),
        ("messages", EqualTo(("seq",), 5)),
        ("messages", EqualTo(("headers", "type"), "x")),
        ("entries", GreaterThan(("kind",), "mine")),
        ("queues", GreaterThan(("ready",), 5)),
    ],
)
def test_of_what_it_cannot_spark_is_told(table: TableName, filter: Filter) -> None:
    assert unenforced(Pushed(table), [filter]) == [filter]


def test_a_list_of_numbers_still_limits_what_is_read() -> None:
    pushed = Pushed("events")
    unenforced(pushed, [In(("seq",), (7, 3, 5))])

    assert (pushed.seqs.low, pushed.seqs.end) == (3, 8)
