"""The bytes of a message body: a fixed header, a variable header, then the payload, written once.

The fixed header has everything that a report needs as numbers at fixed offsets, so that a bulk scan
slices it without decoding. `docs/formats.md` has the layout and how to change it.
"""

from __future__ import annotations

import struct

import msgspec

from penstock.codec.compression import compressed, decompressed, decompressed_size
from penstock.codec.sealed import refuse_sealed
from penstock.errors import InvalidMessage, StorageCorrupt
from penstock.message import (
    MAX_HEADERS_BYTES,
    MAX_PAYLOAD_BYTES,
    MAX_PRIORITY,
    MAX_THROTTLE_KEYS,
    MAX_WEIGHT,
    OWNED_HEADER_PREFIX,
    NewMessage,
    checked_name,
    plain,
)
from penstock.settings import MAX_DURATION_S

BODY_VERSION = 1
#: The same, but its payload is a Zstandard frame.
COMPRESSED_VERSION = 2

#: version, flags, priority, weight, enqueued_at_ns, order_ns, expires_at_ns (0 none), length of the
#: variable header.
FIXED = struct.Struct(">BBBHQQQI")
FIXED_BYTES = FIXED.size
#: The same, as far as a delivery has it: without flags, order and expiry.
DELIVERED = struct.Struct(">BxBHQ16xI")
#: Flag: it became visible at `order_ns`, not when it was enqueued.
PLACED = 1

#: fairness key, headers, throttle keys, dedup id
Variable = tuple[str, dict[str, str], tuple[str, ...], str | None]

encode_variable = msgspec.msgpack.Encoder(enc_hook=plain).encode
decode_variable = msgspec.msgpack.Decoder(Variable).decode


class Body(msgspec.Struct, frozen=True, gc=False):
    """A decoded body."""

    priority: int
    weight: int
    enqueued_at_ns: int
    order_ns: int
    expires_at_ns: int
    fairness_key: str
    headers: dict[str, str]
    throttle_keys: tuple[str, ...]
    dedup_id: str | None
    payload: bytes
    placed: bool = False

    @property
    def visible_at_ns(self) -> int:
        """When it first became visible in its queue; `order_ns` is its place in line."""
        return self.order_ns if self.placed else self.enqueued_at_ns


_ORDER_AT = 13
#: Of a body, with its order; `after_order` gives what is behind, for one that never expires.
BEFORE_EXPIRY_BYTES = _ORDER_AT + 8


def before_order(priority: int, weight: int, enqueued_at_ns: int) -> bytes:
    """A body up to its order. In a batch only order and payload differ: the rest is packed once."""
    return FIXED.pack(BODY_VERSION, 0, priority, weight, enqueued_at_ns, 0, 0, 0)[:_ORDER_AT]


def after_order(variable: bytes) -> bytes:
    """A body that never expires, from behind its order to the payload."""
    return bytes(8) + len(variable).to_bytes(4, "big") + variable


def encode_body(body: Body, compress_over_bytes: int | None = None) -> bytes:
    """The body's bytes; a payload of more than so many is compressed, if that makes it smaller."""
    variable = encode_variable((body.fairness_key, body.headers, body.throttle_keys, body.dedup_id))
    raw = (
        FIXED.pack(
            BODY_VERSION,
            PLACED if body.placed else 0,
            body.priority,
            body.weight,
            body.enqueued_at_ns,
            body.order_ns,
            body.expires_at_ns,
            len(variable),
        )
        + variable
        + body.payload
    )
    size = len(body.payload)
    return raw if compress_over_bytes is None or size <= compress_over_bytes else compact_body(raw, size)


def compact_body(raw: bytes, payload_bytes: int) -> bytes:
    """The same body with its payload, so many bytes at its end, compressed, if that makes it smaller."""
    packed = compressed(raw[-payload_bytes:])
    return raw if packed is None else bytes((COMPRESSED_VERSION,)) + raw[1:-payload_bytes] + packed


def decode_body(raw: bytes) -> Body:
    """Raises `StorageCorrupt` for anything that `encode_body` did not write."""
    refuse_sealed(raw, "message body")
    try:
        version, flags, priority, weight, enqueued, order, expires, length = FIXED.unpack_from(raw)
        possible = priority <= MAX_PRIORITY and 1 <= weight <= MAX_WEIGHT
        known = version in (BODY_VERSION, COMPRESSED_VERSION)
        if not known or len(raw) < FIXED_BYTES + length or not possible:
            raise StorageCorrupt(f"message body of version {version}, {len(raw)} bytes, does not decode")
        end = FIXED_BYTES + length
    except struct.error as error:
        raise StorageCorrupt(f"message body does not decode: {error}") from error
    fairness_key, headers, throttle_keys, dedup_id = decode_variable_of(raw)
    payload = raw[end:] if version == BODY_VERSION else unpacked_payload(raw[end:])
    return Body(
        priority,
        weight,
        enqueued,
        order,
        expires,
        fairness_key,
        headers,
        throttle_keys,
        dedup_id,
        payload,
        bool(flags & PLACED),
    )


def decode_variable_of(raw: bytes) -> Variable:
    """The variable part of a body whose fixed part is sound."""
    end = FIXED_BYTES + int.from_bytes(raw[29:33], "big")
    try:
        variable: Variable = decode_variable(raw[FIXED_BYTES:end])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StorageCorrupt(f"message body does not decode: {error}") from error
    return variable


def unpacked_payload(packed: bytes) -> bytes:
    """The payload of a body whose version says that it is compressed."""
    return decompressed(packed, MAX_PAYLOAD_BYTES)


def unpacked_size(packed: bytes) -> int:
    """How many bytes that would be."""
    return decompressed_size(packed, MAX_PAYLOAD_BYTES)


def check_message(message: NewMessage) -> None:
    """Refuse what is outside the documented limits, naming the limit."""
    check_payload(message.payload)
    check_headers(message.headers)
    if message.fairness_key != "":
        checked_name(message.fairness_key, "fairness_key")
    _check_int(message.weight, "weight", 1, MAX_WEIGHT)
    _check_int(message.priority, "priority", 0, MAX_PRIORITY)
    if not isinstance(message.throttle_keys, list | tuple) or len(message.throttle_keys) > MAX_THROTTLE_KEYS:
        raise InvalidMessage(f"throttle_keys must be a list of at most {MAX_THROTTLE_KEYS} names")
    for key in message.throttle_keys:
        checked_name(key, "throttle key")
    check_duration(message.delay_s, "delay_s")
    if message.ttl_s is not None:
        check_duration(message.ttl_s, "ttl_s")
        if message.ttl_s == 0:
            raise InvalidMessage("ttl_s is 0: the message would expire at once; leave it out for no limit")
    if message.dedup_id is not None:
        checked_name(message.dedup_id, "dedup_id")


def check_duration(value: float, name: str) -> None:
    """A number of seconds from 0 to ten years."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MAX_DURATION_S:
        raise InvalidMessage(f"{name} is {value!r:.40}; accepted: 0 to {MAX_DURATION_S:.0f} seconds")


def check_payload(payload: bytes) -> None:
    if not isinstance(payload, bytes):
        raise InvalidMessage(f"payload must be bytes, not {type(payload).__name__}; encode it first")
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise InvalidMessage(f"payload has {len(payload)} bytes; the limit is {MAX_PAYLOAD_BYTES} (64 MiB)")


def _check_int(value: int, name: str, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InvalidMessage(f"{name} is {value!r:.40}; accepted: whole numbers from {low} to {high}")


def check_headers(headers: dict[str, str]) -> None:
    """Names and values as documented, 64 KiB together."""
    if not isinstance(headers, dict):
        raise InvalidMessage(f"headers must be a dict of str to str, not {type(headers).__name__}")
    size = 0
    for key, value in headers.items():
        size += len(checked_name(key, "header name"))
        try:
            size += len(value.encode())
        except AttributeError:
            raise InvalidMessage(f"header {key!r:.60} must be a str, not {type(value).__name__}") from None
        except UnicodeEncodeError:
            raise InvalidMessage(f"header {key!r:.60} has a lone surrogate: not UTF-8") from None
        if key.startswith(OWNED_HEADER_PREFIX):
            raise InvalidMessage(f"header {key!r:.60}: names from {OWNED_HEADER_PREFIX!r} are Penstock's own")
    if size > MAX_HEADERS_BYTES:
        raise InvalidMessage(f"headers have {size} bytes together; the limit is {MAX_HEADERS_BYTES}")
