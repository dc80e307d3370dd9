"""Routes of history: a queue's events and cursors, and users' own journals."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, field

from penstock.backends.base import CursorInfo
from penstock.event import Entry
from penstock.journal import Cursor
from penstock.server.portions import portioned, size_of_entry
from penstock.server.rest import shapes
from penstock.server.rest.errors import not_found
from penstock.server.rest.queues import OfGroup
from penstock.server.rest.route import Call, Route
from penstock.server.rest.shapes import DONE, MOST, Answered, Asked, ById, Count, Done, Events, Few, Limit


class EventsAsked(OfGroup):
    """After which event, how many, of which kinds and times; `until_ns` is not included."""

    after: Count = 0
    limit: Limit = 1000
    kinds: Few = field(default_factory=list)
    since_ns: Count | None = None
    until_ns: Count | None = None


class NewCursor(Asked):
    """Whether what the cursor has not read is kept."""

    required: bool = False


class HowMany(Asked):
    """How many at most."""

    limit: Limit = 1000


class Position(Asked):
    """Everything up to this seq is read."""

    seq: Count


class Cursors(Answered):
    """Named positions in a queue's journal."""

    cursors: list[CursorInfo]


class NewEntry(Asked):
    """An entry of a journal of your own."""

    kind: str
    body: bytes = b""
    labels: list[str] = field(default_factory=list)
    flags: list[str] = field(default_factory=list)
    vector: list[float] | None = None
    id: str | None = None


class NewEntries(Asked):
    """All are appended, or none."""

    entries: Annotated[list[NewEntry], Meta(max_length=MOST)]


class Appended(Answered):
    """The entries' ids, in their order."""

    ids: list[str]


class EntriesAsked(Asked):
    """Any of the kinds, all of the labels, all of the flags; `until_ns` is not included."""

    after: Count = 0
    limit: Limit = 1000
    kinds: Few = field(default_factory=list)
    labels: Few = field(default_factory=list)
    flags: Few = field(default_factory=list)
    since_ns: Count | None = None
    until_ns: Count | None = None


class Entries(Answered):
    """Entries in the order in which they were appended, and the seq to go on after."""

    entries: list[Entry]
    last_seq: int


class Found(Answered):
    """In the order of the ids; null for what is not there."""

    entries: list[Entry | None]


class WorldStats(Answered):
    """Numbers of a journal."""

    entries: int
    vectors: int
    first_seq: int
    last_seq: int
    bytes: int


class WorldLimits(Asked):
    """How much of a journal is kept; null for no limit."""

    retention_s: float | None = None
    max_bytes: int | None = None


def list_events(call: Call, asked: EventsAsked) -> Events:
    """What happened in a queue, after an event."""
    queue = call.queue(asked.group)
    found = queue.events(asked.after, asked.limit, asked.kinds, asked.since_ns, asked.until_ns)
    return shapes.events(found, asked.after)


def list_cursors(call: Call) -> Cursors:
    """The cursors of a queue, with their positions."""
    return Cursors(list(call.queue().cursors()))


def open_cursor(call: Call, asked: NewCursor) -> CursorInfo:
    """Make a cursor, if there is none of that name; one that is required stays so."""
    cursor = call.queue().cursor(call.path["cursor"], asked.required)
    return CursorInfo(cursor.name, cursor.position, cursor.required)


def read_cursor(call: Call, asked: HowMany) -> Events:
    """The next events; the same ones until they are committed."""
    cursor = _cursor(call)
    found = cursor.read(asked.limit)
    return shapes.events(found, found[-1].seq if found else cursor.position)


def commit_cursor(call: Call, asked: Position) -> Done:
    """Everything up to a seq is read. An earlier one goes back, to read again."""
    _cursor(call).commit(asked.seq)
    return DONE


def drop_cursor(call: Call) -> Done:
    """Forget a cursor; it holds nothing back any more."""
    _cursor(call).drop()
    return DONE


def _cursor(call: Call) -> Cursor:
    """One that is there: the facade would make it."""
    queue, name = call.queue(), call.path["cursor"]
    if not any(one.name == name for one in queue.cursors()):
        raise not_found(f"queue {queue.name!r:.60} has no cursor {name!r:.60}; PUT makes one")
    return queue.cursor(name)


def append_entries(call: Call, asked: NewEntries) -> Appended:
    """Append entries in one atomic write, or none if one is not valid."""
    entries = [Entry(one.kind, one.body, one.labels, one.flags, one.vector, one.id) for one in asked.entries]
    return Appended(call.make("append_entries", call.path["world"], entries))


def scan_entries(call: Call, asked: EntriesAsked) -> Entries:
    """Entries of a journal in the order in which they were appended."""
    journal, last_seq = call.ps.journal(call.path["world"]), asked.after

    def take(count: int) -> list[Entry]:
        nonlocal last_seq
        some = journal.scan(
            asked.kinds, asked.labels, asked.flags, asked.since_ns, asked.until_ns, count, last_seq
        )
        last_seq = some[-1].seq if some else last_seq
        return some

    found = portioned(take, asked.limit, call.calls.answer_bytes, size_of_entry)
    return Entries(list(found), last_seq)


def get_entries(call: Call, asked: ById) -> Found:
    """Entries by id, whichever journal they are in."""
    return Found(call.ps.get_entries(asked.id))


def world_stats(call: Call) -> WorldStats:
    """Numbers of a journal; one comes into being with its first entry."""
    return WorldStats(**call.ps.journal(call.path["world"]).stats())


def configure_world(call: Call, asked: WorldLimits) -> Done:
    """How much of a journal is kept."""
    call.ps.journal(call.path["world"]).configure(asked.retention_s, asked.max_bytes)
    return DONE


ROUTES = (
    Route("GET", "/queues/{queue}/events", list_events, "events"),
    Route("GET", "/queues/{queue}/cursors", list_cursors, "cursors"),
    Route("PUT", "/queues/{queue}/cursors/{cursor}", open_cursor, "open_cursor"),
    Route("DELETE", "/queues/{queue}/cursors/{cursor}", drop_cursor, "drop_cursor"),
    Route("GET", "/queues/{queue}/cursors/{cursor}/events", read_cursor, "read_cursor"),
    Route("POST", "/queues/{queue}/cursors/{cursor}/commit", commit_cursor, "commit_cursor"),
    Route("GET", "/journals/{world}", world_stats, "world_stats"),
    Route("PUT", "/journals/{world}", configure_world, "configure_world"),
    Route("POST", "/journals/{world}/entries", append_entries, "append_entries"),
    Route("GET", "/journals/{world}/entries", scan_entries, "scan_entries"),
    Route("GET", "/entries", get_entries, "get_entries"),
)
