"""Messages of another store, put into a queue as they stood there: state, attempts, times, place."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from typing import NamedTuple

from penstock.backends.bulk import RESTORED, StoredMessage
from penstock.backends.burial import ORIGIN
from penstock.backends.redis.capabilities import HAVING
from penstock.backends.redis.connecting import Arg
from penstock.backends.redis.engine import Engine, Known
from penstock.backends.redis.records import BURIED, CODES, IN_LINE_US, lane, level_of
from penstock.backends.tables.restoring import came_in_ns, checked
from penstock.codec.body import Body, encode_body
from penstock.errors import PenstockError, Unsupported, as_answer
from penstock.message import DEFAULT_PRIORITY, EnqueueResult, State, format_id

#: What one script call takes.
MOST_MESSAGES, MOST_BYTES = 500, 4 << 20

DEDUP, FURTHER, LAST = 1, 2, 4
#: flags, due, due of the second event, end of the dedup window, hashed dedup id
_ROW = struct.Struct(">BQQQ16s")
#: state, flags, attempts, since, until, expires, seq, visible, enqueued, order, tie, weight
_RECORD = struct.Struct(">BBIQQQQQQQ6sH")


class _Item(NamedTuple):
    place: int
    raw_id: bytes
    m: StoredMessage
    body: bytes


class Restoring:
    """Restores into one store."""

    def __init__(self, engine: Engine, name: str) -> None:
        self._engine = engine
        self._name = name

    def restore(self, queue: str, messages: Sequence[StoredMessage]) -> list[EnqueueResult]:
        return self._engine.with_queue(queue, lambda q: self._restore(q, messages))

    def _restore(self, q: Known, messages: Sequence[StoredMessage]) -> list[EnqueueResult]:
        results: list[EnqueueResult] = [EnqueueResult(None)] * len(messages)
        items: list[_Item] = []
        for place, m in enumerate(messages):
            raw_id = self._checked(q, m)
            if isinstance(raw_id, bytes):
                items.append(_Item(place, raw_id, m, encode_body(_body(m), q.compress_over_bytes)))
            else:
                results[place] = EnqueueResult(None, raw_id)
        start = size = 0
        for at, item in enumerate(items):
            if at > start and (size + len(item.body) > MOST_BYTES or at - start == MOST_MESSAGES):
                self._send(q, items[start:at], results)
                start, size = at, 0
            size += len(item.body)
        if start < len(items):
            self._send(q, items[start:], results)
        return results

    def _checked(self, q: Known, m: StoredMessage) -> bytes | PenstockError:
        raw_id = checked(q.name, m, fifo=q.settings.fifo)
        if isinstance(raw_id, bytes) and m.throttle_keys:
            return as_answer(Unsupported("throttle_keys", "throttling", self._name, HAVING["throttling"]))
        return raw_id

    def _send(self, q: Known, items: Sequence[_Item], results: list[EnqueueResult]) -> None:
        def sealed() -> list[Arg]:
            sent: list[Arg] = [RESTORED, b"".join([self._row(q, item.m) for item in items])]
            for item in items:
                reason = self._engine.sealed_reason(q, item.raw_id, item.m.reason)
                body = self._engine.sealed_body(q, item.raw_id, item.body)
                sent += (item.raw_id, _record(q, item.m, reason), body, reason, item.m.state)
            return sent

        answers = self._engine.run_sealed("restore", [q], sealed)[2]
        for item, answer in zip(items, answers, strict=True):
            results[item.place] = EnqueueResult(format_id(item.raw_id), None, answer != ord("1"))

    def _row(self, q: Known, m: StoredMessage) -> bytes:
        flags, hashed = 0, bytes(16)
        window_us = round(q.settings.dedup_window_s * 1_000_000)
        if m.dedup_id is not None and window_us:
            flags |= DEDUP
            secret = self._engine.seals.dedup_secret
            hashed = hashlib.blake2b(m.dedup_id.encode(), digest_size=16, key=secret).digest()
        delayed = m.state == State.DELAYED
        if not (m.state in (State.READY, State.DELAYED) and not m.attempts and not m.reason):
            flags |= FURTHER
        if not m.order_ns and not delayed:
            flags |= LAST
        visible_us = m.visible_at_ns // 1000
        further_us = visible_us if delayed else m.until_ns // 1000
        return _ROW.pack(flags, visible_us, further_us, m.enqueued_at_ns // 1000 + window_us, hashed)


def _record(q: Known, m: StoredMessage, reason: bytes) -> bytes:
    """Without a seq, which the script knows."""
    code = CODES[State(m.state)]
    waiting = m.state in (State.READY, State.DELAYED)
    until_us = _us(m.visible_at_ns if m.state == State.DELAYED else m.until_ns)
    order_ns = m.order_ns or m.visible_at_ns
    if m.state == State.DELAYED and q.settings.delay_s and not m.attempts:
        # It waited for its queue's delay, and does for this one's.
        until_us, order_ns = IN_LINE_US + came_in_ns(m) // 1000, m.order_ns or came_in_ns(m)
    level = level_of(DEFAULT_PRIORITY if q.settings.fifo else m.priority)
    fixed = _RECORD.pack(
        code,
        BURIED if waiting and ORIGIN in m.headers else 0,
        m.attempts,
        0,
        # A time of less than a microsecond is none: it counts as the first.
        until_us,
        _us(m.expires_at_ns or 0),
        0,
        m.visible_at_ns // 1000,
        m.enqueued_at_ns // 1000,
        order_ns // 1000,
        # Of those that stood in line by nanoseconds, each still does.
        (order_ns % 1000).to_bytes(6, "big"),
        m.weight,
    )
    return fixed + lane(level, m.fairness_key.encode()) + b"\0\0" + len(reason).to_bytes(4, "big") + reason


def _us(at_ns: int) -> int:
    return max(1, at_ns // 1000) if at_ns else 0


def _body(m: StoredMessage) -> Body:
    return Body(m.priority, m.weight, 0, 0, 0, m.fairness_key, m.headers, (), m.dedup_id, m.payload)
