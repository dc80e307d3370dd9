"""The tables that bulk readers and Spark see: their columns, types and meaning, one fixed schema each.

Types are those that Arrow and Spark share without conversion: `arrow_schema` is exactly what Spark's own
`to_arrow_schema` makes of the same columns, with the time zone UTC. A time comes twice: as a timestamp in
microseconds, for people and SQL, and as the exact number of nanoseconds.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

from penstock.errors import BackendNotInstalled, InvalidMessage

if TYPE_CHECKING:
    import pyarrow

TableName = Literal["messages", "events", "queues", "dead", "entries", "bodies"]

#: string, binary, int (32 bits), long (64 bits), timestamp (UTC, microseconds), map (of string to string),
#: strings and doubles (lists without nulls).
Type = Literal["string", "binary", "int", "long", "timestamp", "map", "strings", "doubles"]


class Column(NamedTuple):
    """One column; without `nullable`, every row has a value."""

    name: str
    type: Type
    meaning: str
    nullable: bool = False


def _time(
    name: str, meaning: str, *, nullable: bool = False, exact: str | None = None
) -> tuple[Column, Column]:
    return (
        Column(name, "timestamp", meaning, nullable),
        Column(exact or f"{name}_ns", "long", "the same, in nanoseconds since 1970", nullable),
    )


_BODY = (
    Column("payload", "binary", "as it was enqueued, neither compressed nor encrypted"),
    Column("size_bytes", "long", "bytes of the payload"),
    Column("headers", "map", "names and values"),
    Column("fairness_key", "string", "empty: the common key"),
    Column("weight", "int", "of its fairness key, 1 to 1000"),
    Column("throttle_keys", "strings", "limits that it draws on"),
    Column("priority", "int", "0 to 9"),
    Column("dedup_id", "string", "null: none", nullable=True),
    *_time("enqueued_at", "when it was enqueued"),
)

_MESSAGE = (
    Column("queue", "string", "name of the queue"),
    Column("id", "string", "of the message, a UUID"),
    Column("state", "string", "delayed, ready, leased, done or dead"),
    *_BODY,
    *_time("visible_at", "when it became, or becomes, visible"),
    *_time("expires_at", "end of its time to live; null: none", nullable=True),
    Column("attempts", "int", "deliveries so far"),
    Column("consumer", "string", "who holds it; null unless leased", nullable=True),
    *_time("leased_at", "null unless leased", nullable=True),
    *_time("lease_expires_at", "null unless leased", nullable=True),
    Column("reason", "string", "why it failed last; null: it did not, or no reason was given", nullable=True),
    Column(
        "seq", "long", "of the event that brought it where it stands; null: never delivered", nullable=True
    ),
    *_time("since_at", "when it got where it stands", nullable=True, exact="since_ns"),
    *_time("until_at", "when time alone takes it on; null: never", nullable=True, exact="until_ns"),
    Column("order_ns", "long", "its place in line; null: it has none", nullable=True),
)

_EVENT = (
    Column("queue", "string", "name of the queue"),
    Column("seq", "long", "number of the event in its queue, from 1 without gaps"),
    *_time("at", "when it happened"),
    Column("kind", "string", "what happened"),
    Column("message_id", "string", "to which message, a UUID"),
    Column("attempt", "int", "deliveries of the message so far"),
    Column("due_at", "timestamp", "the time that it set; null: none", nullable=True),
    Column("due_ns", "long", "the same, in nanoseconds since 1970; 0: none"),
    Column("consumer", "string", "empty: none"),
    Column("reason", "string", "empty: none"),
    Column("extra", "string", "the other queue of a dead-lettering, move or redrive; else empty"),
)

_STORED_BODY = (
    Column("queue", "string", "name of the queue"),
    Column("seq", "long", "the event that it was asked for by; null where all were", nullable=True),
    Column("id", "string", "of the message, a UUID"),
    *_BODY,
    *_time("visible_at", "when it became, or becomes, visible for the first time"),
    *_time("expires_at", "end of its time to live; null: none", nullable=True),
    Column("order_ns", "long", "its first place in line"),
)

_QUEUE = (
    Column("name", "string", "name of the queue"),
    Column("settings", "string", "all of them, as JSON"),
    Column("delayed", "long", "messages in that state"),
    Column("ready", "long", "messages in that state"),
    Column("leased", "long", "messages in that state"),
    Column("done", "long", "messages in that state"),
    Column("dead", "long", "messages in that state"),
    Column("enqueued_total", "long", "since the queue was made"),
    Column("acked_total", "long", "since the queue was made"),
    Column("failed_total", "long", "since the queue was made"),
    Column("first_seq", "long", "of the events that retention has left"),
    Column("last_seq", "long", "one less than first_seq: there are none"),
    Column("base_delayed", "long", "messages in that state before first_seq"),
    Column("base_ready", "long", "messages in that state before first_seq"),
    Column("base_leased", "long", "messages in that state before first_seq"),
    Column("base_done", "long", "messages in that state before first_seq"),
    Column("base_dead", "long", "messages in that state before first_seq"),
    Column("journal_bytes", "long", "of its events"),
    Column("held_bodies", "long", "bodies that are kept for required cursors alone"),
    Column("required_seq", "long", "read by every required cursor; null: there are none", nullable=True),
)

_ENTRY = (
    Column("world", "string", "name of the world"),
    Column("id", "string", "of the entry, a UUID"),
    Column("seq", "long", "number of the entry in its world, from 1 without gaps"),
    *_time("at", "when it was appended"),
    Column("kind", "string", "the user's"),
    Column("body", "binary", "the user's"),
    Column("labels", "strings", "the user's"),
    Column("flags", "strings", "the user's"),
    Column("vector", "doubles", "the user's; null: none", nullable=True),
)

TABLES: dict[TableName, tuple[Column, ...]] = {
    "messages": _MESSAGE,
    "events": _EVENT,
    "queues": _QUEUE,
    "dead": _MESSAGE,
    "entries": _ENTRY,
    "bodies": _STORED_BODY,
}

assert tuple(TABLES) == get_args(TableName)


def columns_of(table: str, wanted: Sequence[str] | None = None) -> tuple[Column, ...]:
    """The columns of a table, or those wanted of them in their order; others are refused by name."""
    known = TABLES.get(table)  # type: ignore[call-overload]  # any str may be asked for
    if known is None:
        raise InvalidMessage(f"table {table!r:.60} is not known; accepted: {', '.join(TABLES)}")
    if wanted is None:
        return tuple(known)
    by_name = {column.name: column for column in known}
    for at, name in enumerate(wanted):
        if name not in by_name:
            raise InvalidMessage(f"table {table} has no column {name!r:.60}; it has: {', '.join(by_name)}")
        if name in wanted[:at]:
            raise InvalidMessage(f"column {name!r} is asked for twice; name each once")
    if not wanted:
        raise InvalidMessage("no columns are asked for; leave them out for all")
    return tuple(by_name[name] for name in wanted)


def arrow_schema(table: str, wanted: Sequence[str] | None = None) -> pyarrow.Schema:
    """The schema that batches of the table have, to the letter."""
    columns = columns_of(table, wanted)
    pa = _pyarrow()
    made: pyarrow.Schema = pa.schema(
        [pa.field(c.name, arrow_type(c.type), nullable=c.nullable) for c in columns]
    )
    return made


@functools.cache
def arrow_type(name: Type) -> pyarrow.DataType:
    """A column's type in Arrow."""
    pa = _pyarrow()
    text = pa.string()
    types: dict[Type, pyarrow.DataType] = {
        "string": text,
        "binary": pa.binary(),
        "int": pa.int32(),
        "long": pa.int64(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "map": pa.map_(pa.field("key", text, nullable=False), pa.field("value", text, nullable=False)),
        "strings": pa.list_(pa.field("element", text, nullable=False)),
        "doubles": pa.list_(pa.field("element", pa.float64(), nullable=False)),
    }
    return types[name]


def _pyarrow() -> ModuleType:
    try:
        return import_module("pyarrow")
    except ImportError as error:
        raise BackendNotInstalled("pyarrow", "spark") from error
