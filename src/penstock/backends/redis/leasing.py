"""Leasing with long-poll: hand out what is ready, or wait until there is something."""

from __future__ import annotations

import logging
import struct
from collections import Counter
from collections.abc import Sequence
from typing import Any

from penstock.backends.redis.engine import Engine, Known, QueueChanged
from penstock.backends.redis.looking import Looking
from penstock.backends.redis.settling import Settling
from penstock.backends.redis.waiting import Bells
from penstock.clock import to_ns
from penstock.codec.body import (
    BODY_VERSION,
    COMPRESSED_VERSION,
    FIXED,
    FIXED_BYTES,
    Variable,
    decode_body,
    decode_variable_of,
    unpacked_payload,
)
from penstock.codec.sealed import SEALED_VERSION
from penstock.errors import PenstockError, StorageCorrupt
from penstock.message import Delivery, format_id

log = logging.getLogger("penstock")

ENDED = 2
#: Messages that one call hands out at most.
MOST = 1000
#: What is decoded of messages without headers is mostly the same: so many are remembered.
KNOWN_KEPT = 4096
#: Fairness keys whose deliveries are counted, of a queue.
KEYS_COUNTED = 100_000


#: Where the length of the variable part stands in a body.
_LENGTH_AT = FIXED_BYTES - 4
_SEALED = bytes((SEALED_VERSION,))

#: Messages before these, their attempts, when they expire (0 never), became visible and were enqueued.
_ALIKE = struct.Struct(">IIQQQ")
#: attempts, expires_ns, visible_ns, enqueued_ns
_About = tuple[int, int | None, int, int]

#: version, priority, weight, and the variable part of a body
_Shape = tuple[int, int, int, Variable]
_NO_SHAPE: _Shape = (0, 0, 0, ("", {}, (), None))


class Leasing:
    """Leases from the queues of one store."""

    def __init__(self, engine: Engine, looking: Looking, settling: Settling, bells: Bells) -> None:
        self._engine = engine
        self._looking = looking
        self._settling = settling
        self._bells = bells
        #: Deliveries by queue and fairness key, since the store was opened.
        self.served: dict[str, Counter[str]] = {}
        self._shapes: dict[bytes, _Shape] = {}

    def lease(
        self, queue: str, max_messages: int, lease_s: float | None, wait_s: float, consumer: str
    ) -> list[Delivery]:
        clock = self._engine.clock
        deadline_ns = clock.now_ns() + to_ns(wait_s)
        deliveries, _ = self._lease(queue, max_messages, lease_s, consumer)
        if deliveries or not wait_s:
            return deliveries
        with self._bells.waiting(self._engine.queue(queue).keys[0]) as bell:
            while True:
                rings = bell.rings
                deliveries, due_in_us = self._lease(queue, max_messages, lease_s, consumer)
                now_ns = clock.now_ns()
                if deliveries or now_ns >= deadline_ns:
                    return deliveries
                bell.wait(clock, rings, min(deadline_ns, now_ns + max(due_in_us, 0) * 1000))

    def _lease(
        self, queue: str, wanted: int, lease_s: float | None, consumer: str
    ) -> tuple[list[Delivery], int]:
        """What is handed out at once; if nothing, in how many microseconds something falls due."""

        def act(q: Known) -> tuple[list[Delivery], int]:
            lease_us = to_ns(q.settings.lease_s if lease_s is None else lease_s) // 1000
            out: list[Delivery] = []
            due_in_us: int | None = None
            while len(out) < wanted and due_in_us is None:
                try:
                    due_in_us = self._slice(q, wanted - len(out), lease_us, consumer, out)
                except (PenstockError, QueueChanged):
                    if not out:
                        raise
                    break  # What is leased is handed out; who asks again meets the trouble again.
            return out, due_in_us or 0

        return self._engine.with_queue(queue, act)

    def _slice(self, q: Known, wanted: int, lease_us: int, consumer: str, out: list[Delivery]) -> int | None:
        """One call: `out` has what it handed out. None if there may be more, else when some is due."""
        most = min(MOST, wanted)
        reply = self._engine.run("lease", [q], most, lease_us, consumer.encode())
        if reply[0] == ENDED:
            ended = [
                (raw_id, self._engine.record_to_settle(q, raw_id, raw))
                for raw_id, raw in zip(reply[2], reply[3], strict=True)
            ]
            self._settling.release(q, ended)
            return None
        if len(reply) == 3:
            return int(reply[2]) - int(reply[1])
        some = self._deliveries(q, reply, lease_us, consumer)
        out += some
        return None if len(some) == most else 0

    def _deliveries(self, q: Known, reply: Sequence[Any], lease_us: int, consumer: str) -> list[Delivery]:
        _, now_us, seq, joined, alike, bodies = reply
        ids = [joined[at : at + 16] for at in range(0, len(joined), 16)]
        if not self._engine.seals.takes_plain or any(body and body[0] == SEALED_VERSION for body in bodies):
            bodies = [
                body and self._engine.opened_body(q, raw_id, body)
                for raw_id, body in zip(ids, bodies, strict=False)
            ]
        if len(bodies) < len(ids):  # The rest of large ones, some at a time.
            rest = self._looking.find(q, ids[len(bodies) :])
            bodies += [None if found is None else found[1] for found in rest]
        out: list[Delivery] = []
        start, first, name = q.token_start, int(seq), q.name
        now_ns, until_ns = now_us * 1000, (now_us + lease_us) * 1000
        head, end, shape = b"", 0, _NO_SHAPE
        about = _about_each(alike, len(ids))
        for i, (raw_id, body, (tries, expires_ns, _, enqueued_ns)) in enumerate(
            zip(ids, bodies, about, strict=True), first
        ):
            # All before the payload is mostly the same: neither times nor places are in it.
            if not end or body is None or not body.startswith(head):
                if body is None or body[:1] == _SEALED:
                    # Missing, or it does not open: its lease runs out, and `check` finds it.
                    log.error(
                        "queue %r, message %s has no body that can be read; run check",
                        name,
                        format_id(raw_id),
                    )
                    continue
                end = FIXED_BYTES + int.from_bytes(body[_LENGTH_AT:FIXED_BYTES], "big")
                head = body[:end]
                shape = self._shapes.get(head) or self._decoded(body, head)
            version, priority, weight, (fairness_key, headers, throttle_keys, dedup_id) = shape
            payload = body[end:] if version == BODY_VERSION else _unpacked(body, body[end:], version)
            out.append(
                Delivery(
                    raw_id,
                    start + i.to_bytes(8, "big"),
                    name,
                    payload,
                    headers.copy(),
                    tries,
                    fairness_key,
                    weight,
                    throttle_keys,
                    priority,
                    dedup_id,
                    enqueued_ns,
                    expires_ns,
                    consumer,
                    now_ns,
                    until_ns,
                )
            )
        self._settling.meters[name].waits.observe_since(now_ns, [visible_ns for _, _, visible_ns, _ in about])
        counted = self.served.setdefault(name, Counter())
        counted.update([delivery.fairness_key for delivery in out])
        if len(counted) > KEYS_COUNTED:
            counted.clear()
        return out

    def _decoded(self, body: bytes, head: bytes) -> _Shape:
        try:
            version, _, priority, weight, *_ = FIXED.unpack_from(body)
        except struct.error as error:
            raise StorageCorrupt(f"message body does not decode: {error}") from error
        shape = version, priority, weight, decode_variable_of(body)
        if not shape[3][1]:  # With headers, hardly two are the same.
            if len(self._shapes) > KNOWN_KEPT:
                self._shapes.clear()
            self._shapes[head] = shape
        return shape


def _about_each(alike: bytes, count: int) -> list[_About]:
    """The same of all up to the next that differ."""
    out: list[_About] = []
    for before, tries, expires_us, visible_us, enqueued_us in _ALIKE.iter_unpack(alike):
        if before > len(out):
            out += out[-1:] * (before - len(out))
        out.append((tries, expires_us * 1000 or None, visible_us * 1000, enqueued_us * 1000))
    return out + out[-1:] * (count - len(out))


def _unpacked(body: bytes, payload: bytes, version: int) -> bytes:
    if version == COMPRESSED_VERSION:
        return unpacked_payload(payload)
    decode_body(body)  # Raises, and says what is wrong.
    raise StorageCorrupt(f"message body of version {version}")
