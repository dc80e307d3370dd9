"""Messages of a bulk write as the bytes that the store will have of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.backends.bulk import Target
from penstock.backends.embedded import keys
from penstock.backends.embedded.rows import encode_ready
from penstock.backends.tables.incoming import NOT_TEXT, Shape, arrow, arrow_compute
from penstock.backends.tables.rows import PLAIN_FIELDS, check_row, message_of
from penstock.codec.body import (
    BEFORE_EXPIRY_BYTES,
    Body,
    after_order,
    check_headers,
    check_payload,
    compact_body,
    encode_body,
    encode_variable,
)
from penstock.errors import InvalidMessage
from penstock.message import DEFAULT_PRIORITY, NewMessage

#: Kinds of simple messages that are remembered of a queue.
SHAPES_KEPT = 65_536


class Entry:
    """What simple messages of one shape share: all of a body before the payload, and lane and ready value."""

    __slots__ = ("head", "place", "refusal")

    def __init__(self, head: bytes, place: tuple[bytes, bytes], refusal: str = "") -> None:
        self.head = head
        self.place = place
        self.refusal = refusal


class Encoder:
    """Messages of one queue as bytes."""

    def __init__(self, queue: str, target: Target, at_ns: int) -> None:
        self.queue = queue
        self.prefix = keys.u32(target.number)
        #: The place in line of all rows; those of a job's own ids go by these.
        self.order_ns = max(at_ns, target.order_ns)
        self._known: dict[Shape, Entry] = {}
        self.has_refused = False
        self._target = target
        self._at_ns = at_ns

    def check(self, m: NewMessage) -> None:
        check_row(self.queue, self._target, m)

    def entries(self, shapes: Sequence[Shape]) -> list[Entry]:
        if len(self._known) > SHAPES_KEPT:  # Where every message has a key of its own.
            self._known.clear()
        return [self._known.get(shape) or self._learn(shape) for shape in shapes]

    def _learn(self, shape: Shape) -> Entry:
        fairness_key, priority, weight = shape
        refusal = ""
        m = NewMessage(fairness_key=fairness_key, priority=priority, weight=weight)
        try:
            if fairness_key is NOT_TEXT:
                raise InvalidMessage("fairness_key has bytes that are not UTF-8")
            self.check(m)
        except InvalidMessage as error:
            refusal, m, weight = str(error), NewMessage(), 1
            self.has_refused = True
        head, lane = self.body(m, self.order_ns, 0, placed=False)
        entry = Entry(head, (lane, encode_ready(weight, 0, 0, has_row=False)), refusal)
        self._known[shape] = entry
        return entry

    def message(self, payload: bytes, values: Sequence[Any]) -> NewMessage:
        """One of any kind, checked."""
        m = message_of(payload, values)
        self.check(m)
        return m

    def body_with_headers(self, payload: bytes, values: Sequence[Any]) -> tuple[bytes, tuple[bytes, bytes]]:
        """Body, lane and ready value of a message that has headers and a key, and nothing else."""
        headers, fairness_key, weight, priority = values[:PLAIN_FIELDS]
        shape = (
            "" if fairness_key is None else fairness_key,
            DEFAULT_PRIORITY if priority is None else priority,
            1 if weight is None else weight,
        )
        entry = self._known.get(shape) or self.entries([shape])[0]
        if entry.refusal:
            raise InvalidMessage(entry.refusal)
        check_payload(payload)
        if not headers:
            body = entry.head + payload
        else:
            if headers is NOT_TEXT or NOT_TEXT in headers or NOT_TEXT in headers.values():
                raise InvalidMessage("headers has bytes that are not UTF-8")
            check_headers(headers)
            tail = after_order(encode_variable((shape[0], headers, (), None)))
            body = entry.head[:BEFORE_EXPIRY_BYTES] + tail + payload
        over = self._target.compress_over_bytes
        return body if over is None or len(payload) <= over else compact_body(body, len(payload)), entry.place

    def bodies(self, entries: list[Entry], at: Any, payload: Any) -> Sequence[Any]:
        """Of rows that have these entries, in parts: each its head, and its payload."""
        pa, compute = arrow(), arrow_compute()
        heads = pa.array([entry.head for entry in entries], pa.large_binary()).take(pa.array(at))
        over, sizes = self._target.compress_over_bytes, compute.binary_length(payload)
        if over is None or compute.max(sizes).as_py() <= over:
            return [heads, payload]
        bodies = [
            compact_body(head + raw, len(raw)) if len(raw) > over else head + raw
            for head, raw in zip(heads.to_pylist(), payload.to_pylist(), strict=True)
        ]
        return [pa.array(bodies, pa.large_binary())]

    def body(self, m: NewMessage, order_ns: int, expires_at_ns: int, *, placed: bool) -> tuple[bytes, bytes]:
        """The body, and its lane."""
        body = Body(
            m.priority,
            m.weight,
            self._at_ns,
            order_ns,
            expires_at_ns,
            m.fairness_key,
            m.headers,
            tuple(m.throttle_keys),
            m.dedup_id,
            m.payload,
            placed=placed,
        )
        fairness_key, throttle_keys = m.fairness_key.encode(), tuple(key.encode() for key in m.throttle_keys)
        if self._target.fifo:
            lane = keys.lane(DEFAULT_PRIORITY, fairness_key, ())
        else:
            lane = keys.lane(m.priority, fairness_key, throttle_keys)
        return encode_body(body, self._target.compress_over_bytes), lane
