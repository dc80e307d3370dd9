"""A queue's journal: reading events, and cursors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from penstock.backends.base import CursorInfo
from penstock.backends.redis.connecting import Arg, pairs
from penstock.backends.redis.engine import Engine, Known
from penstock.backends.redis.records import decode_events
from penstock.errors import HistoryTruncated, InvalidMessage
from penstock.event import Event
from penstock.message import checked_name

#: Frames that are read at a time.
PAGE = 100


class Journals:
    """The journals of one store's queues."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def events(self, queue: str, after: int, limit: int) -> list[Event]:
        return self._engine.with_queue(queue, lambda q: self._read(q, [min(after, 1 << 52), ""], limit)[2])

    def _read(self, q: Known, start: Sequence[Arg], limit: int) -> tuple[int, int, list[Event]]:
        """(base, where it started, events)"""
        out: list[Event] = []
        base, began = 0, -1
        while True:
            reply = self._engine.run("events", [q], *start, min(PAGE, max(limit - len(out), 1)))
            if reply[2] < 0:
                return -1, -1, []
            _, _, base, frames, after = reply
            began = after if began < 0 else began
            for raw in frames if limit else ():
                out += decode_events(
                    raw, after, lambda raw_id, why: self._engine.opened_reason(q, raw_id, why)
                )
                if len(out) >= limit:
                    return base, began, out[:limit]
            if not frames or not limit or not out:
                return base, began, out
            start = [out[-1].seq, ""]

    def open_cursor(self, queue: str, name: str, required: bool) -> CursorInfo:
        raw = checked_name(name, "cursor name")
        reply = self._cursor(queue, raw, "open", int(required))
        return CursorInfo(name, reply[2], bool(reply[3]))

    def read_cursor(self, queue: str, name: str, limit: int) -> list[Event]:
        raw = checked_name(name, "cursor name")
        base, began, events = self._engine.with_queue(queue, lambda q: self._read(q, ["c", raw], limit))
        if base < 0:
            raise _no_cursor(queue, name)
        if began < base:
            raise HistoryTruncated(f"cursor {name!r} of {queue!r}", began, base + 1)
        return events

    def commit_cursor(self, queue: str, name: str, seq: int) -> None:
        raw = checked_name(name, "cursor name")
        is_seq = isinstance(seq, int) and not isinstance(seq, bool) and -1 <= seq < 1 << 62
        _, _, position, _, low, high = self._cursor(queue, raw, "commit", seq if is_seq else -1)
        if position == -1:
            raise _no_cursor(queue, name)
        if position == -2:
            raise InvalidMessage(
                f"cursor {name!r} of {queue!r}: seq is {seq!r:.40}; accepted: {low} to {high}"
            )

    def drop_cursor(self, queue: str, name: str) -> None:
        self._cursor(queue, checked_name(name, "cursor name"), "drop", 0)

    def cursors(self, queue: str) -> list[CursorInfo]:
        return cursor_infos(self._cursor(queue, b"", "all", 0)[2])

    def _cursor(self, queue: str, raw: bytes, what: str, value: int) -> list[Any]:
        return self._engine.with_queue(queue, lambda q: self._engine.run("cursor", [q], raw, what, value))


def cursor_infos(raw: Any) -> list[CursorInfo]:
    """By name."""
    found = []
    for name, row in sorted(pairs(raw)):
        if name[:1] == b"\0":  # A snapshot that is being read.
            continue
        position, required = msgspec.msgpack.decode(row, type=tuple[int, int])
        found.append(CursorInfo(name.decode(), position, bool(required)))
    return found


def _no_cursor(queue: str, name: str) -> InvalidMessage:
    return InvalidMessage(f"queue {queue!r} has no cursor {name!r} (any more); open it again")
