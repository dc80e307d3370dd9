"""Filters that Spark hands down: what of them the store can keep to, and which Spark must apply itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from penstock.message import MAX_COUNT
from penstock.spark.options import KINDS, STATES
from penstock.tables import TABLES, TableName

_NS_PER_US = 1000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

#: By table: the column that holds the name of the queue or world.
NAME_COLUMNS: dict[TableName, str] = {
    "messages": "queue",
    "events": "queue",
    "queues": "name",
    "dead": "queue",
    "entries": "world",
    "bodies": "queue",
}
#: By table: the time that a request can limit.
TIME_COLUMNS: dict[TableName, str] = {
    "messages": "enqueued_at",
    "dead": "enqueued_at",
    "bodies": "enqueued_at",
    "events": "at",
    "entries": "at",
}

Test = Callable[[str], bool]


@dataclass
class Bounds:
    """Whole numbers from `low` up to, not including, `end`."""

    low: int = 0
    end: int = MAX_COUNT

    def meet(self, low: int | None, end: int | None) -> None:
        self.low = max(self.low, low if low is not None else self.low)
        self.end = min(self.end, end if end is not None else self.end)

    @property
    def empty(self) -> bool:
        return self.low >= self.end


@dataclass
class Pushed:
    """Everything that the filters so far leave over. Travels with the reader that was given them."""

    table: TableName
    name_tests: list[Filter] = field(default_factory=list)
    states: tuple[str, ...] | None = None
    kinds: tuple[str, ...] | None = None
    seqs: Bounds = field(default_factory=Bounds)
    times_ns: Bounds = field(default_factory=Bounds)

    @property
    def nothing_left(self) -> bool:
        return self.states == () or self.kinds == () or self.seqs.empty or self.times_ns.empty

    def keeps(self, name: str) -> bool:
        return all(test is not None and test(name) for test in map(_test, self.name_tests))

    def take(self, filter: Filter) -> bool:
        """Whether the filter will be kept to, to the letter: then Spark need not look again."""
        column = _column(filter)
        if isinstance(filter, IsNotNull):
            return column in _NEVER_NULL[self.table]
        if column == NAME_COLUMNS[self.table]:
            self.name_tests += [filter] if (known := _test(filter) is not None) else []
            return known
        if column == "state" and self.table == "messages":
            return self._take_states(filter)
        if column == "kind" and self.table == "events":
            return self._take_kinds(filter, KINDS)
        if column == "kind" and self.table == "entries":
            return self._take_kinds(filter, _values(filter))
        if column == "seq" and self.table in ("events", "entries"):
            return _narrow(self.seqs, filter, _number)
        return self._take_time(column, filter)

    def _take_states(self, filter: Filter) -> bool:
        if (test := _test(filter)) is None:
            return False
        self.states = tuple(
            state for state in (STATES if self.states is None else self.states) if test(state)
        )
        return True

    def _take_kinds(self, filter: Filter, domain: tuple[str, ...] | None) -> bool:
        """Kinds of entries are the user's own: of those, only what a filter names can be asked for."""
        if domain is None or (test := _test(filter)) is None:
            return False
        self.kinds = tuple(kind for kind in (domain if self.kinds is None else self.kinds) if test(kind))
        return True

    def _take_time(self, column: str | None, filter: Filter) -> bool:
        time = TIME_COLUMNS.get(self.table)
        if time is None:
            return False
        if column == f"{time}_ns":
            return _narrow(self.times_ns, filter, _number)
        return column == time and _narrow(self.times_ns, filter, _microsecond)


_NEVER_NULL = {table: {c.name for c in columns if not c.nullable} for table, columns in TABLES.items()}


def _column(filter: Filter) -> str | None:
    """The column that a filter is of; None for a part of one."""
    while isinstance(filter, Not):
        filter = filter.child
    path: tuple[str, ...] = getattr(filter, "attribute", ())
    return path[0] if len(path) == 1 else None


def _values(filter: Filter) -> tuple[str, ...] | None:
    """What a filter of texts names, if it names all that it lets through."""
    if isinstance(filter, EqualTo | EqualNullSafe) and isinstance(filter.value, str):
        return (filter.value,)
    if isinstance(filter, In) and all(isinstance(value, str) for value in filter.value):
        return tuple(filter.value)
    return None


#: Spark compares texts by their UTF-8 bytes, Python by code points, which is the same order.
_COMPARISONS: dict[type[Filter], Callable[[str, str], bool]] = {
    GreaterThan: lambda text, value: text > value,
    GreaterThanOrEqual: lambda text, value: text >= value,
    LessThan: lambda text, value: text < value,
    LessThanOrEqual: lambda text, value: text <= value,
    StringStartsWith: lambda text, value: text.startswith(value),
    StringEndsWith: lambda text, value: text.endswith(value),
    StringContains: lambda text, value: value in text,
}


def _test(filter: Filter) -> Test | None:
    """A filter of a column of texts without nulls, as a test; None for one that is not understood."""
    if isinstance(filter, Not):
        child = _test(filter.child)
        return None if child is None else lambda text: not child(text)
    if (values := _values(filter)) is not None:
        return values.__contains__
    compare = _COMPARISONS.get(type(filter))
    value = getattr(filter, "value", None)
    if compare is None or not isinstance(value, str):
        return None
    return lambda text: compare(text, value)


def _number(value: object) -> tuple[int, int] | None:
    """The number, and the next."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value, value + 1
    return None


def _microsecond(value: object) -> tuple[int, int] | None:
    """First nanosecond of the microsecond that a timestamp is, and of the next."""
    if not isinstance(value, datetime) or value.tzinfo is None:
        return None
    first = (value - _EPOCH) // timedelta(microseconds=1) * _NS_PER_US
    return first, first + _NS_PER_US


def _narrow(bounds: Bounds, filter: Filter, span: Callable[[object], tuple[int, int] | None]) -> bool:
    """Whether the bounds say all that the filter does: of a list of values they hold first and last."""
    if isinstance(filter, In):
        spans = [found for value in filter.value if (found := span(value)) is not None]
        if len(spans) == len(filter.value) and spans:
            bounds.meet(min(low for low, _ in spans), max(end for _, end in spans))
        return False
    found = span(getattr(filter, "value", None))
    if found is None:
        return False
    low, end = found
    match filter:
        case EqualTo() | EqualNullSafe():
            bounds.meet(low, end)
        case GreaterThan():
            bounds.meet(end, None)
        case GreaterThanOrEqual():
            bounds.meet(low, None)
        case LessThan():
            bounds.meet(None, low)
        case LessThanOrEqual():
            bounds.meet(None, end)
        case _:
            return False
    return True


def unenforced(pushed: Pushed, filters: Iterable[Filter]) -> list[Filter]:
    """Takes what can be taken of the filters, and gives back the others, the very objects that came."""
    return [filter for filter in filters if not pushed.take(filter)]
