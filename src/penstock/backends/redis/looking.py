"""Looking without touching: get, peek and list."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence

from penstock.backends.redis.connecting import Arg
from penstock.backends.redis.engine import Engine, Known
from penstock.backends.redis.records import CODES, GONE, StateRecord, lane, to_message
from penstock.errors import InvalidMessage, StorageCorrupt
from penstock.message import Message, Page, State, format_id

log = logging.getLogger("penstock")

#: Messages that one call reads.
SLICE = 500
#: A filtered page looks at so many rows a message that was asked for, then ends short, with `next` set.
ROWS_PER_FILTERED_ITEM = 20
#: Ranks beyond it do not exist: Lua's numbers hold it exactly.
_FARTHEST = 1 << 52

Found = tuple[StateRecord, bytes]


class Looking:
    """Reads of one store."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def find(self, q: Known, raw_ids: Sequence[bytes], *, strict: bool = False) -> list[Found | None]:
        """Records and bodies as time has left them, GONE ones included; None for what is not there.

        `strict`: a reason that does not open is refused.
        """
        read = self._engine.record if strict else self._engine.record_to_settle
        out: list[Found | None] = []
        while True:
            some = raw_ids[len(out) : len(out) + SLICE]
            _, _, records, bodies, _ = self._engine.run("look", [q], 1, *some)
            for record, body in zip(records, bodies, strict=False):  # Of large bodies only the first come.
                raw_id = raw_ids[len(out)]
                if record is None or body is None:
                    out.append(None)
                else:
                    opened = self._engine.opened_body(q, raw_id, body)
                    out.append((read(q, raw_id, record), opened))
            if len(out) >= len(raw_ids):
                return out

    def records(self, q: Known, raw_ids: Sequence[bytes]) -> list[StateRecord | None]:
        """The same without bodies."""
        out: list[StateRecord | None] = []
        for at in range(0, len(raw_ids), SLICE):
            some = raw_ids[at : at + SLICE]
            _, _, records, _, _ = self._engine.run("look", [q], 0, *some)
            for raw_id, record in zip(some, records, strict=True):
                out.append(None if record is None else self._engine.record_to_settle(q, raw_id, record))
        return out

    def get_many(self, queue: str, raw_ids: Sequence[bytes]) -> list[Message | None]:
        def act(q: Known) -> list[Message | None]:
            return [
                None if found is None or found[0].code == GONE else to_message(q.settings, raw_id, *found)
                for raw_id, found in zip(raw_ids, self.find(q, raw_ids, strict=True), strict=True)
            ]

        return self._engine.with_queue(queue, act)

    def peek(self, queue: str, limit: int, offset: int) -> list[Message]:
        def act(q: Known) -> list[Message]:
            out: list[Message] = []
            looked = 0
            while looked < limit:
                most, start = min(SLICE, limit - looked), min(offset + looked, _FARTHEST)
                rows, ended = self._rows(q, CODES[State.READY], most, start)
                out += [message for _, message in rows if message is not None]
                looked += len(rows)
                if ended:
                    break
            return out

        return self._engine.with_queue(queue, act)

    def page(self, queue: str, state: State, fairness_key: str | None, after: str | None, limit: int) -> Page:
        return self._engine.with_queue(queue, lambda q: self._page(q, state, fairness_key, after, limit))

    def _page(self, q: Known, state: State, fairness_key: str | None, after: str | None, limit: int) -> Page:
        code = CODES[state]
        position = _position(q, code, after)
        items: list[Message] = []
        looked = 0
        while True:
            most = min(SLICE, limit - len(items))
            rows, ended = self._rows(q, code, most, *_bounds(code, position, fairness_key))
            looked += len(rows)
            items += [one for _, one in rows if one is not None and fairness_key in (None, one.fairness_key)]
            position = rows[-1][0] if rows else position
            if ended:
                return Page(items, None)
            if len(items) >= limit or looked >= limit * ROWS_PER_FILTERED_ITEM:
                return Page(items, (bytes((code,)) + (position or b"")).hex())

    def _rows(
        self, q: Known, code: int, most: int, *bounds: Arg
    ) -> tuple[list[tuple[bytes, Message | None]], bool]:
        """Positions and messages, and whether these are the last.

        One that does not decode would stop the listing for good: it is left out.
        """
        _, _, positions, records, bodies = self._engine.run("list", [q], code, most, *bounds)
        out: list[tuple[bytes, Message | None]] = []
        for position, record, body in zip(positions, records, bodies, strict=False):
            message = None
            try:
                if record is not None and body is not None:
                    raw_id = position[-16:]
                    found = self._engine.record(q, raw_id, record)
                    message = to_message(q.settings, raw_id, found, self._engine.opened_body(q, raw_id, body))
            except StorageCorrupt as error:
                log.error(
                    "queue %r, message %s cannot be listed: %s", q.name, format_id(position[-16:]), error
                )
            out.append((position, message))
        return out, len(out) == len(positions) < most


def _bounds(code: int, position: bytes | None, fairness_key: str | None) -> list[Arg]:
    """Where a page goes on: for ready ones ranges of the index, else score and id."""
    if code != CODES[State.READY]:
        score, _, raw_id = (position or b"").partition(b" ")
        return [score, raw_id]
    if fairness_key is None:
        return [0, b"-" if position is None else b"(" + position, b"+"]
    out: list[Arg] = [0]
    for level in range(10):
        start = lane(level, fairness_key.encode())
        if position is None or position < start:
            out += (b"[" + start, b"(" + start + b"\xff")
        elif position.startswith(start):
            out += (b"(" + position, b"(" + start + b"\xff")
    return out if len(out) > 1 else [0, b"(+", b"(+"]


def _position(q: Known, code: int, after: str | None) -> bytes | None:
    """What to go on after; refused unless it is of this listing."""
    if after is None:
        return None
    try:
        raw = bytes.fromhex(after)
    except (ValueError, TypeError):
        raw = b""
    least = 1 + 3 + 32 if code == CODES[State.READY] else 1 + 2 + 16
    sound = len(raw) >= least and raw[0] == code
    if sound and code != CODES[State.READY]:
        sound = raw[-17:-16] == b" " and _is_number(raw[1:-17])
    if not sound:
        raise InvalidMessage(f"after {after!r:.60} is not a position in this list of {q.name!r}")
    return raw[1:]


def _is_number(raw: bytes) -> bool:
    try:
        return not math.isnan(float(raw))
    except ValueError:
        return False
