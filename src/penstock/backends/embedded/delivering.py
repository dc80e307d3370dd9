"""Messages as consumers get them."""

from __future__ import annotations

from penstock.backends.embedded.contents import Content
from penstock.backends.embedded.lanes import Lane
from penstock.backends.embedded.queue_state import QueueState
from penstock.codec.body import (
    BODY_VERSION,
    COMPRESSED_VERSION,
    DELIVERED,
    FIXED_BYTES,
    Variable,
    decode_body,
    decode_variable,
    unpacked_payload,
)
from penstock.message import Delivery

#: One that was just leased: id, number of the event, attempt, expiry (0: none), what is in it, its lane.
Granted = tuple[bytes, int, int, int, Content, Lane]

_NO_VARIABLE: Variable = ("", {}, (), None)
#: Variable headers as they were decoded: there are hardly more than there are fairness keys.
_KNOWN: dict[bytes, Variable] = {}
KNOWN_KEPT = 8192


def deliveries(
    q: QueueState, granted: list[Granted], now_ns: int, until_ns: int, consumer: str
) -> list[Delivery]:
    """What consumers get. Neighbours often share their variable header: it is decoded once."""
    # The queue's number is part of a receipt: a queue made anew under the same name honours no old one.
    queue_part, name, unpack = q.prefix, q.name, DELIVERED.unpack_from
    variable_raw: bytes | None = None
    known = _KNOWN
    fairness_key, given, throttle_keys, dedup_id = _NO_VARIABLE
    value, value_weight = b"", 0
    headers: dict[str, str]
    out: list[Delivery] = []
    for raw_id, seq, attempt, expires_at_ns, content, lane in granted:
        if isinstance(content, tuple):
            _, row_value, payload, enqueued_ns = content
            if row_value is not value:  # What is enqueued alike has one object for it.
                value, value_weight = row_value, int.from_bytes(row_value[2:4], "big")
            weight, priority, fairness_key = value_weight, lane.priority, lane.name or lane.fairness_key
            throttle_keys, dedup_id, variable_raw = (), None, None
            headers = {}
        else:
            version, priority, weight, enqueued_ns, length = unpack(content)
            end = FIXED_BYTES + length
            payload = content[end:]
            if version == COMPRESSED_VERSION:
                payload = unpacked_payload(payload)
            elif version != BODY_VERSION:
                decode_body(content)  # Raises, and says what is wrong.
            raw = content[FIXED_BYTES:end]
            if raw != variable_raw:
                variable_raw = raw
                fairness_key, given, throttle_keys, dedup_id = known.get(raw) or _decoded(raw)
            headers = given.copy() if given else {}
        out.append(
            Delivery(
                raw_id,
                queue_part + seq.to_bytes(8, "big"),
                name,
                payload,
                headers,
                attempt,
                fairness_key,
                weight,
                throttle_keys,
                priority,
                dedup_id,
                enqueued_ns,
                expires_at_ns or None,
                consumer,
                now_ns,
                until_ns,
            )
        )
    return out


def _decoded(raw: bytes) -> Variable:
    variable: Variable = decode_variable(raw)
    if not variable[1]:  # With headers, hardly two are the same.
        if len(_KNOWN) > KNOWN_KEPT:
            _KNOWN.clear()
        _KNOWN[raw] = variable
    return variable
