"""Messages on their way into the sandbox, and its answers on their way back."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from penstock.codec.body import Body
from penstock.hooks import child
from penstock.message import NewMessage, format_id, plain

#: A larger payload stays where it is: scripts see its size alone.
MOST_PAYLOAD_BYTES = 64 * 1024
#: No valid message is larger, packed.
MOST_PACKED_BYTES = 512 * 1024

#: size, payload's length, weight, priority, delay, ttl (-1 none); then payload and texts.
_HEAD = struct.Struct("<IIHBdd")
_WITHHELD = 0xFFFFFFFF
_NAME = struct.Struct("<H")
_VALUE = struct.Struct("<I")
#: fairness key, headers, throttle keys, dedup id, id ("" none)
_encode_texts = msgspec.msgpack.Encoder(enc_hook=plain).encode
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
    ttl_s = -1.0 if m.ttl_s is None else m.ttl_s
    texts = _encode_texts((m.fairness_key, m.headers, m.throttle_keys, m.dedup_id, m.id or ""))
    return _packed(m.payload, m.weight, m.priority, m.delay_s, ttl_s, texts)


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
    said = b"".join((head, _VALUE.pack(len(reason)), reason, _NAME.pack(len(consumer)), consumer))
    message_id = format_id(failure.raw_id)
    texts = _encode_texts((body.fairness_key, body.headers, body.throttle_keys, body.dedup_id, message_id))
    return said + _packed(body.payload, body.weight, body.priority, 0.0, -1.0, texts)


def _packed(payload: bytes, weight: int, priority: int, delay_s: float, ttl_s: float, texts: bytes) -> bytes:
    size = len(payload)
    if size > MOST_PAYLOAD_BYTES:
        packed = _HEAD.pack(size, _WITHHELD, weight, priority, delay_s, ttl_s) + texts
    else:
        packed = b"".join((_HEAD.pack(size, size, weight, priority, delay_s, ttl_s), payload, texts))
    if len(packed) > MOST_PACKED_BYTES:
        raise ValueError(f"{len(packed)} bytes are more than any message has")
    return packed


def load_request(number: int, hook: str, queue: str, source: str) -> bytes:
    names = hook.encode(), queue.encode()
    head = child.LOAD_HEAD.pack(number, len(names[0]), len(names[1]))
    return b"".join((child.LOAD, head, *names, source.encode()))


def run_request(number: int, batch: int, now_s: float, packed: Sequence[bytes]) -> bytes:
    parts = [child.RUN, child.RUN_HEAD.pack(number, batch, now_s, len(packed))]
    for one in packed:
        parts += (child.LENGTH.pack(len(one)), one)
    return b"".join(parts)
