"""Values of the embedded backend's rows; bodies and frames are in `penstock.codec`."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Literal, TypeVar

import msgspec

from penstock.codec.sealed import refuse_sealed
from penstock.errors import StorageCorrupt

T = TypeVar("T")

ROW_VERSION = 1
MARK = bytes((ROW_VERSION,))

#: version, has a state row, weight, attempts, expires_at_ns (0: none)
READY_ROW = struct.Struct(">BBHIQ")

#: version, attempts, seq of the event that set it, since_ns, until_ns, order_ns, expires_at_ns, weight,
#: bytes of lane, consumer, reason
STATE_ROW = struct.Struct(">BIQQQQQHHHI")
STATE_ROW_BYTES = STATE_ROW.size

#: The same as leasing writes it: since_ns and until_ns, order_ns, expires_at_ns and weight are bytes already.
LEASED_ROW = struct.Struct(">BIQ16s8s8s2sHHI")
NO_TIME = bytes(8)

#: version, until_ns; then the id
DEDUP_ROW = struct.Struct(">BQ16s")


class StateRow(msgspec.Struct, gc=False):
    """Where a message stands, for every state but a fresh READY one.

    `until_ns` is what its due row says: the lease's end, the time of visibility, the removal.
    `lane` and `order_ns` rebuild its ready key, so that no transition needs the body.
    """

    attempts: int
    seq: int
    since_ns: int
    until_ns: int
    order_ns: int
    expires_at_ns: int
    weight: int
    lane: bytes
    consumer: str = ""
    reason: str = ""


def encode_state(row: StateRow) -> bytes:
    consumer, reason = row.consumer.encode(), row.reason.encode()
    return (
        STATE_ROW.pack(
            ROW_VERSION,
            row.attempts,
            row.seq,
            row.since_ns,
            row.until_ns,
            row.order_ns,
            row.expires_at_ns,
            row.weight,
            len(row.lane),
            len(consumer),
            len(reason),
        )
        + row.lane
        + consumer
        + reason
    )


def since_until(since_ns: int, until_ns: int) -> bytes:
    """The part of a state row behind its head; order, expiry and weight follow it."""
    return since_ns.to_bytes(8, "big") + until_ns.to_bytes(8, "big")


def decode_state(raw: bytes) -> StateRow:
    refuse_sealed(raw, "state row")
    try:
        version, attempts, seq, since, until, order, expires, weight, *lengths = STATE_ROW.unpack_from(raw)
        if version != ROW_VERSION or len(raw) != STATE_ROW_BYTES + sum(lengths):
            raise StorageCorrupt(f"state row of version {version}, {len(raw)} bytes, does not decode")
        lane_end = STATE_ROW_BYTES + lengths[0]
        consumer_end = lane_end + lengths[1]
        return StateRow(
            attempts,
            seq,
            since,
            until,
            order,
            expires,
            weight,
            raw[STATE_ROW_BYTES:lane_end],
            raw[lane_end:consumer_end].decode(),
            raw[consumer_end:].decode(),
        )
    except (struct.error, UnicodeDecodeError) as error:
        raise StorageCorrupt(f"state row does not decode: {error}") from error


def state_lane(raw: bytes) -> bytes:
    """The lane of a state row, without decoding the rest."""
    return raw[STATE_ROW_BYTES : STATE_ROW_BYTES + int.from_bytes(raw[47:49], "big")]


def line_since(raw: bytes) -> int:
    """Since when a DELAYED message waits for its queue's delay; 0 for one that has a time of its own."""
    return 0 if any(raw[21:29]) else int.from_bytes(raw[13:21], "big")


def encode_ready(weight: int, attempts: int, expires_at_ns: int, *, has_row: bool) -> bytes:
    return READY_ROW.pack(ROW_VERSION, has_row, weight, attempts, expires_at_ns)


def decode_ready(raw: bytes) -> tuple[bool, int, int, int]:
    """(has a state row, weight, attempts, expires_at_ns)"""
    try:
        version, has_row, weight, attempts, expires = READY_ROW.unpack(raw)
    except struct.error as error:
        raise StorageCorrupt(f"ready row does not decode: {error}") from error
    if version != ROW_VERSION:
        raise StorageCorrupt(f"ready row has version {version}; this Penstock reads {ROW_VERSION}")
    return bool(has_row), weight, attempts, expires


def line_value(since_ns: int) -> bytes:
    """Of what waits for its queue's delay."""
    return MARK + since_ns.to_bytes(8, "big")


def waiting_since(raw: bytes) -> int:
    return int.from_bytes(raw[1:9], "big")


def decode_dedup(raw: bytes) -> tuple[int, bytes]:
    """(until_ns, id of the first message)"""
    try:
        version, until_ns, first = DEDUP_ROW.unpack(raw)
    except struct.error as error:
        raise StorageCorrupt(f"dedup row does not decode: {error}") from error
    if version != ROW_VERSION:
        raise StorageCorrupt(f"dedup row has version {version}; this Penstock reads {ROW_VERSION}")
    return until_ns, first


class Counters(msgspec.Struct, array_like=True, gc=False):
    """A queue's numbers, in the same atomic write as the change that they count.

    Both `counts` and `base_counts` are delayed, ready, leased, done, dead. `base_*` is what the journal
    starts from: nothing, or what stood when retention last removed events.
    """

    next_seq: int = 1
    base_seq: int = 0
    last_order_ns: int = 0
    counts: list[int] = msgspec.field(default_factory=lambda: [0] * 5)
    base_counts: list[int] = msgspec.field(default_factory=lambda: [0] * 5)
    enqueued_total: int = 0
    acked_total: int = 0
    failed_total: int = 0
    journal_bytes: int = 0
    held: int = 0


_encode = msgspec.msgpack.Encoder().encode
_decode_counters = msgspec.msgpack.Decoder(Counters).decode


def encode_counters(counters: Counters) -> bytes:
    return MARK + _encode(counters)


def decode_counters(raw: bytes) -> Counters:
    counters = unpacked(raw, _decode_counters, "counters")
    numbers = (*counters.counts, *counters.base_counts, counters.held, counters.journal_bytes)
    if len(counters.counts) != 5 or len(counters.base_counts) != 5 or min(numbers) < 0:
        raise StorageCorrupt("counters row does not decode: a count is missing, or below 0")
    return counters


class CursorRow(msgspec.Struct, array_like=True):
    """A named position in a journal."""

    position: int
    required: bool


class Job(msgspec.Struct, array_like=True):
    """A bulk operation under way: recorded, so that it is taken up again after a crash.

    It takes what was there when it was called: state rows up to `seq`, fresh ready rows up to
    `order_ns`, given ids enqueued up to `at_ns`, at most `limit` messages in all.
    """

    what: Literal["purge", "drop", "redrive", "move"]
    qid: int
    states: list[int] = []
    seq: int = 0
    order_ns: int = 0
    at_ns: int = 0
    limit: int = 0
    target: str = ""
    ids: list[bytes] = []
    #: The call from another process that asked for it, packed.
    call: bytes = b""


def packed(value: object) -> bytes:
    return MARK + _encode(value)


_decode_cursor = msgspec.msgpack.Decoder(CursorRow).decode
_decode_job = msgspec.msgpack.Decoder(Job).decode


def decode_cursor(raw: bytes) -> CursorRow:
    return unpacked(raw, _decode_cursor, "cursor")


def decode_job(raw: bytes) -> Job:
    return unpacked(raw, _decode_job, "job")


def unpacked(raw: bytes, decode: Callable[[bytes], T], what: str) -> T:
    """Decode a packed row, or say which kind of row is damaged."""
    try:
        return decode(unmarked(raw, what))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StorageCorrupt(f"{what} row does not decode: {error}") from error


def unmarked(raw: bytes, what: str) -> bytes:
    """What a row holds behind its version byte."""
    refuse_sealed(raw, f"{what} row")
    if raw[:1] != MARK:
        raise StorageCorrupt(f"{what} row has version {raw[:1].hex()}; this Penstock reads 01")
    return raw[1:]
