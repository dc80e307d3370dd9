"""Where a message stands: its body, its one state, and what its keys are built from."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import msgspec

from penstock.backends.embedded import keys
from penstock.backends.embedded.engine import Engine
from penstock.backends.embedded.keys import StateCode
from penstock.backends.embedded.queue_state import QueueState
from penstock.backends.embedded.rows import StateRow, decode_ready, decode_state
from penstock.codec.body import Body, decode_body
from penstock.errors import StorageCorrupt, as_answer
from penstock.kv.base import Row
from penstock.message import Message, State

#: A fresh READY message has no state row: it is what a body without any is.
_CODES = tuple(StateCode)

STATES = {
    StateCode.DELAYED: State.DELAYED,
    StateCode.READY: State.READY,
    StateCode.LEASED: State.LEASED,
    StateCode.DONE: State.DONE,
    StateCode.DEAD: State.DEAD,
}
CODES = {state: code for code, state in STATES.items()}


class Found(msgspec.Struct, gc=False):
    """A message as stored. `fresh`: READY without a state row, `row` then made up from the body."""

    raw_id: bytes
    code: StateCode
    row: StateRow
    body: Body
    fresh: bool


#: id, body, and its state rows by code: what is stored of a message.
_Stored = tuple[bytes, bytes | None, list[tuple[StateCode, bytes]]]


def _stored(engine: Engine, q: QueueState, raw_ids: Sequence[bytes]) -> list[_Stored]:
    bodies = engine.kv.get_many([q.prefix + raw_id for raw_id in raw_ids], engine.messages)
    present = [raw_id for raw_id, body in zip(raw_ids, bodies, strict=True) if body is not None]
    rows = engine.kv.get_many(
        [keys.state(q.qid, code, raw_id) for raw_id in present for code in _CODES], engine.state
    )
    out: list[_Stored] = []
    at = 0
    for raw_id, body in zip(raw_ids, bodies, strict=True):
        held = []
        if body is not None:
            codes = zip(_CODES, rows[at : at + len(_CODES)], strict=True)
            held = [(code, raw) for code, raw in codes if raw]
            at += len(_CODES)
        out.append((raw_id, body, held))
    return out


def _decoded(q: QueueState, stored: _Stored) -> Found | None:
    raw_id, raw_body, held = stored
    if raw_body is None:
        return None
    body = decode_body(raw_body)
    if held:
        code, raw = held[0]
        return Found(raw_id, code, decode_state(raw), body, fresh=False)
    return Found(raw_id, StateCode.READY, fresh_row(q, body), body, fresh=True)


def find_many(engine: Engine, q: QueueState, raw_ids: Sequence[bytes]) -> list[Found | None]:
    """GONE ones included; None for what has no body."""
    return [_decoded(q, stored) for stored in _stored(engine, q, raw_ids)]


def find_each(engine: Engine, q: QueueState, raw_ids: Sequence[bytes]) -> list[Found | StorageCorrupt | None]:
    """The same, but what does not decode has its error for an answer; a store that cannot be read raises."""
    out: list[Found | StorageCorrupt | None] = []
    for stored in _stored(engine, q, raw_ids):
        try:
            out.append(_decoded(q, stored))
        except StorageCorrupt as error:
            out.append(as_answer(error))
    return out


def find_sound(
    engine: Engine, q: QueueState, raw_ids: Sequence[bytes]
) -> list[Found | StorageCorrupt | None]:
    """The same, but one that cannot be read has its error for an answer too, and fails no other."""
    with contextlib.suppress(StorageCorrupt):
        return [*find_many(engine, q, raw_ids)]
    out: list[Found | StorageCorrupt | None] = []
    for raw_id in raw_ids:
        try:
            out += find_many(engine, q, [raw_id])
        except StorageCorrupt as error:
            out.append(as_answer(error))
    return out


def find(engine: Engine, q: QueueState, raw_id: bytes) -> Found | None:
    """The message, or None if it is not in the queue (any more)."""
    found = find_many(engine, q, [raw_id])[0]
    return None if found is None or found.code == StateCode.GONE else found


def fresh_row(q: QueueState, body: Body) -> StateRow:
    lane = q.lane(body.priority, body.fairness_key, body.throttle_keys)
    return StateRow(0, 0, body.visible_at_ns, 0, body.order_ns, body.expires_at_ns, body.weight, lane)


#: For steps that need no body.
NO_BODY = Body(0, 1, 0, 0, 0, "", {}, (), None, b"")


def ready_found(engine: Engine, q: QueueState, row: Row) -> Found:
    """The message of a ready row, without its body."""
    lane, order_ns, raw_id = ready_parts(row)
    has_row, weight, attempts, expires_at_ns = decode_ready(row[1])
    if has_row:
        raw = engine.kv.get(keys.state(q.qid, StateCode.READY, raw_id), engine.state)
        if raw is not None:
            return Found(raw_id, StateCode.READY, decode_state(raw), NO_BODY, fresh=False)
    state = StateRow(attempts, 0, 0, 0, order_ns, expires_at_ns, weight, lane)
    return Found(raw_id, StateCode.READY, state, NO_BODY, fresh=True)


def ready_parts(row: Row) -> tuple[bytes, int, bytes]:
    """(lane, order, id) of a ready row's key."""
    key = row[0]
    return key[4:-24], int.from_bytes(key[-24:-16], "big"), key[-16:]


def _visible_at_ns(q: QueueState, found: Found) -> int:
    row, body = found.row, found.body
    if found.code == StateCode.DELAYED:
        return row.until_ns or row.since_ns + q.delay_ns
    if found.code == StateCode.READY:
        return row.since_ns
    return body.visible_at_ns if row.order_ns == body.order_ns else row.order_ns


def to_message(q: QueueState, found: Found) -> Message:
    row, body = found.row, found.body
    leased = found.code == StateCode.LEASED
    return Message(
        raw_id=found.raw_id,
        queue=q.name,
        state=STATES[found.code],
        payload=body.payload,
        headers=body.headers,
        fairness_key=body.fairness_key,
        weight=body.weight,
        throttle_keys=body.throttle_keys,
        priority=body.priority,
        dedup_id=body.dedup_id,
        enqueued_at_ns=body.enqueued_at_ns,
        visible_at_ns=_visible_at_ns(q, found),
        expires_at_ns=row.expires_at_ns or None,
        attempts=row.attempts,
        consumer=row.consumer if leased else None,
        leased_at_ns=row.since_ns if leased else None,
        lease_expires_at_ns=row.until_ns if leased else None,
        reason=row.reason or None,
    )
