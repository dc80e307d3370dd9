"""Users' journals (worlds) and cursors over a queue's events."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime

from penstock.backends.base import QueueBackend
from penstock.errors import InvalidMessage
from penstock.event import Entry, Event
from penstock.message import MAX_COUNT, check_count, checked_batch, checked_name

Moment = int | datetime | None


def moment_ns(value: Moment, name: str) -> int | None:
    """Nanoseconds of an int or of a timezone-aware datetime."""
    if value is None:
        return None
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise InvalidMessage(f"{name} is a datetime without a timezone; add one, such as UTC")
        since_1970 = max(0, round(value.timestamp() * 1_000_000) * 1000)
    else:
        since_1970 = value
    if isinstance(value, bool) or not isinstance(since_1970, int) or not 0 <= since_1970 <= MAX_COUNT:
        raise InvalidMessage(
            f"{name} is {value!r:.60}; accepted: nanoseconds, or an aware datetime, up to the year 2262"
        )
    return since_1970


def check_names(names: Collection[str], what: str) -> None:
    """A str would be searched for its letters: one name must be in a list too."""
    if isinstance(names, str | bytes) or not isinstance(names, Collection):
        raise InvalidMessage(f"{what} must be a list of names, not {type(names).__name__}")
    for name in names:
        if not isinstance(name, str):
            raise InvalidMessage(f"{what} must be names, not {type(name).__name__}")


class Journal:
    """One world: an append-only journal of the user's own entries."""

    def __init__(self, backend: QueueBackend, world: str) -> None:
        checked_name(world, "world name")
        self._backend = backend
        self.world = world

    def append(self, entries: Sequence[Entry]) -> list[str]:
        """Append all entries in one atomic write, or none if one is not valid; their ids."""
        return list(self._backend.append_entries(self.world, checked_batch(entries, "entries")))

    def scan(
        self,
        kinds: Collection[str] = (),
        labels: Collection[str] = (),
        flags: Collection[str] = (),
        since: Moment = None,
        until: Moment = None,
        limit: int | None = None,
        after: int = 0,
    ) -> list[Entry]:
        """Entries in append order: any of the kinds, all of the labels, all of the flags.

        `since` is inclusive, `until` exclusive; `after` is a seq to go on from.
        """
        for name, names in (("kinds", kinds), ("labels", labels), ("flags", flags)):
            check_names(names, name)
        if limit is not None:
            check_count(limit, "limit")
        check_count(after, "after")
        return list(
            self._backend.scan_entries(
                self.world,
                kinds=kinds,
                labels=labels,
                flags=flags,
                since_ns=moment_ns(since, "since"),
                until_ns=moment_ns(until, "until"),
                after=after,
                limit=limit,
            )
        )

    def stats(self) -> dict[str, int]:
        """entries, vectors, first_seq, last_seq, bytes: kept as counters, read at once."""
        return self._backend.world_stats(self.world)

    def configure(self, retention_s: float | None = None, max_bytes: int | None = None) -> None:
        """How much of this world the sweep keeps; None for no limit, which is how a world starts."""
        self._backend.configure_world(self.world, retention_s, max_bytes)


class Cursor:
    """A named durable position in a queue's journal.

    While a cursor is required, neither events nor bodies that it has not read are removed.
    """

    def __init__(self, backend: QueueBackend, queue: str, name: str, *, required: bool) -> None:
        if not isinstance(required, bool):
            raise InvalidMessage(f"required must be True or False, not {required!r:.40}")
        self._backend = backend
        self._queue = queue
        self.name = name
        self.required = backend.open_cursor(queue, name, required).required

    @property
    def position(self) -> int:
        """The seq of the last event that was committed as read."""
        for cursor in self._backend.cursors(self._queue):
            if cursor.name == self.name:
                return cursor.position
        raise InvalidMessage(f"cursor {self.name!r} of {self._queue!r} was dropped; open it again")

    def read(self, limit: int = 1000) -> list[Event]:
        """The next events; reading again gives the same ones until `commit`."""
        return list(self._backend.read_cursor(self._queue, self.name, limit))

    def commit(self, seq: int) -> None:
        """Everything up to `seq` is read. An earlier seq goes back, to read again."""
        self._backend.commit_cursor(self._queue, self.name, seq)

    def drop(self) -> None:
        """Forget the cursor; it holds nothing back any more."""
        self._backend.drop_cursor(self._queue, self.name)


class UserState:
    """Small values by key, durable beside the queues: `ps.state`."""

    def __init__(self, backend: QueueBackend) -> None:
        self._backend = backend

    def put(self, key: str, value: bytes) -> None:
        self._backend.put_state(key, value)

    def get(self, key: str) -> bytes | None:
        return self._backend.get_state(key)

    def delete(self, key: str) -> None:
        self._backend.delete_state(key)


def filtered(
    events: Sequence[Event], kinds: Collection[str], since_ns: int | None, until_ns: int | None
) -> list[Event]:
    """The events of these kinds (any, if none is named) and this time."""
    return [
        event
        for event in events
        if (not kinds or event.kind in kinds)
        and (since_ns is None or event.at_ns >= since_ns)
        and (until_ns is None or event.at_ns < until_ns)
    ]
