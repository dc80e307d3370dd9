"""What scripts store, read: records of messages' states, counters, and frames of journals.

Times on the server are microseconds: Lua's numbers hold them exactly. Users' are nanoseconds.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from penstock.codec.body import Body, decode_body
from penstock.errors import StorageCorrupt
from penstock.event import KINDS_BY_CODE, Event
from penstock.message import MAX_PRIORITY, Message, State
from penstock.settings import QueueSettings

COUNTERS_VERSION = 1
FRAME_VERSION = 1

STATES = {1: State.DELAYED, 2: State.READY, 3: State.LEASED, 4: State.DONE, 5: State.DEAD}
CODES = {state: code for code, state in STATES.items()}
GONE = 6
BURIED = 1
#: On its way to another queue of a cluster: this, the transfer's id, and the record that it had.
_AWAY, _AWAY_BYTES = 7, 17
#: What a message that waits for its queue's delay has as `until`, above when it came in; see `_core.lua`.
IN_LINE_US = 2**52

#: state, flags, attempts, since, until, expires, seq, visible, enqueued, place (order, tie, weight), level,
#: length of the key; then key, consumer and reason.
_FIXED = struct.Struct(">BBIQQQQQQ16sBH")
_SIZE = _FIXED.size
#: What leads to the entry of a stream, where bodies are in one: at the end of a record.
ENTRY_BYTES = 8


class StateRecord(msgspec.Struct, frozen=True, gc=False):
    """Where a message stands."""

    code: int
    flags: int
    attempts: int
    since_us: int
    until_us: int
    expires_us: int
    seq: int
    visible_us: int
    enqueued_us: int
    place: bytes
    level: int
    key: bytes
    consumer: str
    reason: str
    #: The transfer that it is part of, if it is on its way to another queue.
    transfer: bytes = b""

    @property
    def lane(self) -> bytes:
        return lane(self.level, self.key)

    @property
    def is_in_line(self) -> bool:
        """Whether it waits for the queue's delay, and not until a time of its own."""
        return self.code == CODES[State.DELAYED] and self.until_us >= IN_LINE_US


def lane(level: int, key: bytes) -> bytes:
    """What shares turns: priority and fairness key."""
    return bytes((level,)) + len(key).to_bytes(2, "big") + key


def level_of(priority: int) -> int:
    return MAX_PRIORITY - priority


#: Text of a stored reason.
ReadReason = Callable[[bytes], str]


def decode_state(raw: bytes, read_reason: ReadReason = bytes.decode) -> StateRecord:
    if raw[:1] == bytes((_AWAY,)):
        record = _decode_state(raw[_AWAY_BYTES:], read_reason)
        return msgspec.structs.replace(record, transfer=raw[1:_AWAY_BYTES])
    return _decode_state(raw, read_reason)


def _decode_state(raw: bytes, read_reason: ReadReason) -> StateRecord:
    try:
        numbers = _FIXED.unpack_from(raw)
        key_bytes = numbers[-1]
        at = _SIZE + key_bytes
        key = raw[_SIZE:at]
        consumer_end = at + 2 + int.from_bytes(raw[at : at + 2], "big")
        reason_end = consumer_end + 4 + int.from_bytes(raw[consumer_end : consumer_end + 4], "big")
        if len(raw) - reason_end not in (0, ENTRY_BYTES) or not 1 <= numbers[0] <= GONE:
            raise StorageCorrupt(f"state record of {len(raw)} bytes does not decode")
        consumer, reason = raw[at + 2 : consumer_end], raw[consumer_end + 4 : reason_end]
        fields: list[Any] = [*numbers[:-1], key, consumer.decode(), read_reason(reason)]
        return StateRecord(*fields)
    except (struct.error, UnicodeDecodeError) as error:
        raise StorageCorrupt(f"state record does not decode: {error}") from error


def to_message(settings: QueueSettings, raw_id: bytes, record: StateRecord, raw_body: bytes) -> Message:
    body = decode_body(raw_body)
    leased = record.code == CODES[State.LEASED]
    return Message(
        raw_id=raw_id,
        queue=settings.name,
        state=STATES[record.code],
        payload=body.payload,
        headers=body.headers,
        fairness_key=body.fairness_key,
        weight=body.weight,
        throttle_keys=body.throttle_keys,
        priority=body.priority,
        dedup_id=body.dedup_id,
        enqueued_at_ns=record.enqueued_us * 1000,
        visible_at_ns=1000 * (in_line_due_us(record, settings) if record.is_in_line else record.visible_us),
        expires_at_ns=record.expires_us * 1000 or None,
        attempts=record.attempts,
        consumer=record.consumer if leased else None,
        leased_at_ns=record.since_us * 1000 if leased else None,
        lease_expires_at_ns=record.until_us * 1000 if leased else None,
        reason=record.reason or None,
    )


def in_line_due_us(record: StateRecord, settings: QueueSettings) -> int:
    return record.until_us - IN_LINE_US + delay_us(settings)


def delay_us(settings: QueueSettings) -> int:
    return round(settings.delay_s * 1_000_000)


def stored_body(record: StateRecord, raw: bytes) -> Body:
    """A body with the times that its record has: in the stored one there are none."""
    return msgspec.structs.replace(
        decode_body(raw),
        enqueued_at_ns=record.enqueued_us * 1000,
        expires_at_ns=record.expires_us * 1000,
    )


class Counters(msgspec.Struct, array_like=True):
    """A queue's numbers, and what of its settings scripts need; `_core.lua` names the same places."""

    version: int
    settings: int
    seq: int = 0
    order_us: int = 0
    delayed: int = 0
    leased: int = 0
    done: int = 0
    dead: int = 0
    held: int = 0
    enqueued_total: int = 0
    acked_total: int = 0
    failed_total: int = 0
    journal_bytes: int = 0
    base_seq: int = 0
    base_delayed: int = 0
    base_ready: int = 0
    base_leased: int = 0
    base_done: int = 0
    base_dead: int = 0
    required: int = 0
    number: int = 0
    created_us: int = 0
    second: int = 0
    max_leased: int = 0
    per_key: int = 0
    fifo: int = 0
    retention_us: int = 0
    dead_retention_us: int = 0
    window_us: int = 0
    r0: int = 0
    r1: int = 0
    r2: int = 0
    r3: int = 0
    r4: int = 0
    r5: int = 0
    r6: int = 0
    r7: int = 0
    r8: int = 0
    r9: int = 0
    #: Of each level: its virtual time, deliveries that it was passed over, and lanes that have messages.
    turns: tuple[float, ...] = ()
    #: Of those that `ready` counts, some may be on their way to another queue, and stand in no line.
    ready_leaving: int = 0
    delay_us: int = 0

    @property
    def ready(self) -> int:
        return sum(self.by_level) + self.ready_leaving

    @property
    def by_level(self) -> tuple[int, ...]:
        return (
            *(self.r0, self.r1, self.r2, self.r3, self.r4),
            *(self.r5, self.r6, self.r7, self.r8, self.r9),
        )


def fresh_counters(number: int, changed: int, created_us: int, settings: QueueSettings) -> Counters:
    """Of a new queue; of one whose settings are changed, only what these say counts."""
    return Counters(
        COUNTERS_VERSION,
        changed,
        number=number,
        created_us=created_us,
        max_leased=settings.max_leased or 0,
        per_key=1 if settings.fifo else settings.max_leased_per_key or 0,
        fifo=int(settings.fifo),
        retention_us=round(settings.retention_s * 1_000_000),
        dead_retention_us=round((settings.dead_retention_s or 0) * 1_000_000),
        window_us=round(settings.dedup_window_s * 1_000_000),
        delay_us=delay_us(settings),
    )


_LEVELS = 10
_PLAIN = Counters.__struct_fields__.index("turns")
#: Delayed, ready, leased, done and dead ones that are on their way: there once the queue had one.
_LEAVING = 5


def decode_counters(raw: bytes) -> Counters:
    try:
        numbers = msgspec.msgpack.decode(raw, type=list[int | float])
        sizes = (_PLAIN + 3 * _LEVELS, _PLAIN + 3 * _LEVELS + _LEAVING)
        if len(numbers) not in (*sizes, sizes[1] + 1) or numbers[0] != COUNTERS_VERSION:
            raise StorageCorrupt(f"counters of version {numbers[:1]}, {len(numbers)} numbers, do not decode")
    except msgspec.DecodeError as error:
        raise StorageCorrupt(f"counters do not decode: {error}") from error
    found = msgspec.convert([*numbers[:_PLAIN], numbers[_PLAIN : sizes[0]]], Counters)
    if len(numbers) > sizes[0]:
        # On their way to another queue, they are counted where they come from.
        delayed, found.ready_leaving, leased, _, dead = map(int, numbers[sizes[0] : sizes[1]])
        found.delayed, found.leased, found.dead = (
            found.delayed + delayed, found.leased + leased, found.dead + dead
        )  # fmt: skip
    if len(numbers) > sizes[1]:
        found.delay_us = int(numbers[sizes[1]])
    return found


def encode_counters(counters: Counters) -> bytes:
    plain = msgspec.structs.astuple(counters)[:_PLAIN]
    further = [*[0] * _LEAVING, counters.delay_us] if counters.delay_us else []
    return msgspec.msgpack.encode([*plain, *(counters.turns or [0] * (3 * _LEVELS)), *further])


# -- frames of a journal ------------------------------------------------------------------------

#: version, events, first seq, time, then the counts after it: delayed, ready, leased, done, dead.
HEAD = struct.Struct(">BIQQ5Q")
#: kind, columns, rows, time, attempt, due, bytes of consumer, reason and extra.
RUN = struct.Struct(">BBIQIQIII")
DIGITS = 8
ATTEMPTS, DUE, TEXTS = 1, 2, (4, 8, 16)


class FrameHead(msgspec.Struct, frozen=True, gc=False):
    """What a frame says before its events."""

    count: int
    first_seq: int
    at_us: int
    counts: tuple[int, ...]

    @property
    def last_seq(self) -> int:
        return self.first_seq + self.count - 1


def decode_head(raw: bytes) -> FrameHead:
    try:
        version, count, first_seq, at_us, *counts = HEAD.unpack_from(raw)
    except struct.error as error:
        raise StorageCorrupt(f"journal frame of {len(raw)} bytes has no head") from error
    if version != FRAME_VERSION:
        raise StorageCorrupt(f"journal frame has version {version}; this Penstock reads {FRAME_VERSION}")
    return FrameHead(count, first_seq, at_us, tuple(counts))


def verify(raw: bytes) -> None:
    """Raise `StorageCorrupt` unless the checksum fits."""
    digest = hashlib.sha1(raw[:-DIGITS], usedforsecurity=False).hexdigest()
    if digest[:DIGITS].encode() != raw[-DIGITS:]:
        raise StorageCorrupt(f"journal frame of {len(raw)} bytes fails its checksum")


#: Text of an event's reason, by the id of its message.
ReadEventReason = Callable[[bytes, bytes], str]


def _as_it_is(raw_id: bytes, reason: bytes) -> str:
    return reason.decode()


def decode_events(raw: bytes, after: int = 0, read_reason: ReadEventReason = _as_it_is) -> Iterator[Event]:
    """Events of a frame after a seq, in order."""
    verify(raw)
    head = decode_head(raw)
    seq, at, end = head.first_seq, HEAD.size, len(raw) - DIGITS
    try:
        while at < end:
            rows, size, events = _decode_run(raw, at, seq, after, read_reason)
            yield from events
            seq, at = seq + rows, at + size
    except (struct.error, UnicodeDecodeError, KeyError) as error:
        raise StorageCorrupt(f"journal frame at seq {head.first_seq} does not decode: {error}") from error
    if seq != head.first_seq + head.count or at != end:
        raise StorageCorrupt(f"journal frame at seq {head.first_seq} has {seq - head.first_seq} events")


def _decode_run(
    raw: bytes, start: int, seq: int, after: int, read_reason: ReadEventReason
) -> tuple[int, int, list[Event]]:
    """(events, bytes, those after a seq) of the run that begins there."""
    code, columns, rows, at_us, attempt, due_us, *lengths = RUN.unpack_from(raw, start)
    at = start + RUN.size
    ids = [raw[i : i + 16] for i in range(at, at + 16 * rows, 16)]
    at += 16 * rows
    attempts: tuple[int, ...] = (attempt,) * rows
    if columns & ATTEMPTS:
        attempts = struct.unpack_from(f">{rows}I", raw, at)
        at += 4 * rows
    dues: tuple[int, ...] = (due_us,) * rows
    if columns & DUE:
        dues = struct.unpack_from(f">{rows}Q", raw, at)
        at += 8 * rows
    texts = []
    for length, flag in zip(lengths, TEXTS, strict=True):
        blob = raw[at : at + length]
        texts.append(split_texts(blob, rows) if columns & flag else [blob] * rows)
        at += length
    consumers, reasons, extras = texts
    kind, at_ns = KINDS_BY_CODE[code], at_us * 1000
    events = [
        Event(
            seq + row, at_ns, kind, ids[row], attempts[row], dues[row] * 1000,
            consumers[row].decode(), read_reason(ids[row], reasons[row]), extras[row].decode(),
        )
        for row in range(max(0, after + 1 - seq), rows)
    ]  # fmt: skip
    return rows, at - start, events


def split_texts(blob: bytes, rows: int) -> list[bytes]:
    sizes = struct.unpack_from(f">{rows}I", blob)
    out, at = [], 4 * rows
    for size in sizes:
        out.append(blob[at : at + size])
        at += size
    return out
