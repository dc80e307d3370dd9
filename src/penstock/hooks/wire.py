"""Messages on their way into the sandbox, and its answers on their way back."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from penstock.codec.body import Body
from penstock.hooks import child
from penstock.message import NewMessage, format_id

#: A larger payload stays where it is: scripts see its size alone.
MOST_PAYLOAD_BYTES = 64 * 1024
#: No valid message is larger, packed: its headers may be many, and each has a length.
MOST_PACKED_BYTES = 512 * 1024

#: size, payload's length, key's, weight, priority, delay, ttl (-1 none), dedup id's length, id's, number of
#: throttle keys, of headers; then payload, key, dedup id, id, throttle keys and headers.
_HEAD = struct.Struct("<IIHHBddHHHI")
_WITHHELD = 0xFFFFFFFF
_NAME = struct.Struct("<H")
_VALUE = struct.Struct("<I")
#: kind, attempts, enqueued at, delay asked for (-1 none), whether no attempt is left; reason, consumer.
_FAILURE = struct.Struct("<BIqdB")

HOOKS = ("on_enqueue", "on_failure")
KINDS = ("nack", "reject", "lease_expired")


class Answer(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What a script made of a message. What it left as it was is None."""

    code: int
    text: str = ""
    fairness_key: str | None = None
    weight: int | None = None
    priority: int | None = None
    delay_s: float | None = None
    throttle_keys: tuple[str, ...] | None = None
    headers: dict[str, str] | None = None


class Failure(NamedTuple):
    """A delivery that failed: how, what was said about it, and the message as it is stored."""

    kind: str
    reason: str
    #: What the consumer asked for, if it did.
    delay_s: float | None
    consumer: str
    attempts: int
    #: No attempt is left: it cannot be tried again, whatever a script says.
    last: bool
    raw_id: bytes
    body: Body


decode_answers = msgspec.msgpack.Decoder(list[Answer | None]).decode


def pack_new(m: NewMessage) -> bytes:
    """Raises one of several errors for what is not a valid message, but not for all that is not."""
    return _packed(
        m.payload,
        m.fairness_key,
        m.weight,
        m.priority,
        m.delay_s,
        -1.0 if m.ttl_s is None else m.ttl_s,
        m.dedup_id,
        "" if m.id is None else str(m.id),
        m.throttle_keys,
        m.headers,
    )


def pack_failure(failure: Failure) -> bytes:
    body = failure.body
    reason, consumer = failure.reason.encode(), failure.consumer.encode()
    head = _FAILURE.pack(
        KINDS.index(failure.kind) + 1,
        failure.attempts,
        body.enqueued_at_ns,
        -1.0 if failure.delay_s is None else failure.delay_s,
        failure.last,
    )
    parts = (head, _VALUE.pack(len(reason)), reason, _NAME.pack(len(consumer)), consumer)
    return b"".join(parts) + _packed(
        body.payload,
        body.fairness_key,
        body.weight,
        body.priority,
        0.0,
        -1.0,
        body.dedup_id,
        format_id(failure.raw_id),
        body.throttle_keys,
        body.headers,
    )


def _packed(
    payload: bytes,
    fairness_key: str,
    weight: int,
    priority: int,
    delay_s: float,
    ttl_s: float,
    dedup_id: str | None,
    message_id: str,
    throttle_keys: Sequence[str],
    headers: Mapping[str, str],
) -> bytes:
    size, key = len(payload), fairness_key.encode()
    shown = size if size <= MOST_PAYLOAD_BYTES else _WITHHELD
    dedup = b"" if dedup_id is None else dedup_id.encode()
    head = _HEAD.pack(
        size,
        shown,
        len(key),
        weight,
        priority,
        delay_s,
        ttl_s,
        len(dedup),
        len(message_id),
        len(throttle_keys),
        len(headers),
    )
    parts = [head, payload if shown == size else b"", key, dedup, message_id.encode()]
    for name in throttle_keys:
        raw = name.encode()
        parts += (_NAME.pack(len(raw)), raw)
    for name, value in headers.items():
        raw, content = name.encode(), value.encode()
        parts += (_NAME.pack(len(raw)), raw, _VALUE.pack(len(content)), content)
    packed = b"".join(parts)
    if len(packed) > MOST_PACKED_BYTES:
        raise ValueError(f"{len(packed)} bytes are more than any message has")
    return packed


def load_request(number: int, hook: str, queue: str, source: str) -> bytes:
    names = hook.encode(), queue.encode()
    head = child.LOAD_HEAD.pack(number, len(names[0]), len(names[1]))
    return b"".join((child.LOAD, head, *names, source.encode()))


def run_request(number: int, now_s: float, packed: Sequence[bytes]) -> bytes:
    parts = [child.RUN, child.RUN_HEAD.pack(number, now_s, len(packed))]
    for one in packed:
        parts += (child.LENGTH.pack(len(one)), one)
    return b"".join(parts)
