"""How a message stands by what is stored of it, and which index rows follow from that."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from penstock.backends.embedded import keys
from penstock.backends.embedded.checking.view import View
from penstock.backends.embedded.keys import Due, StateCode
from penstock.backends.embedded.lookup import fresh_row
from penstock.backends.embedded.queue_state import QueueState
from penstock.backends.embedded.rows import MARK, StateRow, decode_state, encode_ready, line_value
from penstock.backends.embedded.transitions import DUE_OF_STATE, WAITING
from penstock.codec.body import Body, decode_body
from penstock.errors import StorageCorrupt
from penstock.kv.base import Row

CODES = tuple(StateCode)


class Standing(NamedTuple):
    """What is stored under one id: the body, and every state row."""

    raw_id: bytes
    body: bytes | None
    states: list[tuple[StateCode, bytes]]


class Placed(msgspec.Struct, gc=False):
    """A message in one state. `fresh`: READY without a state row, `row` then made up from the body."""

    raw_id: bytes
    code: StateCode
    row: StateRow
    fresh: bool


def standings(view: View, q: QueueState) -> Iterator[Standing]:
    """Everything stored under each id of a queue, in order of id: seven ranges read side by side."""
    states = _states(view, q)
    state = next(states, None)
    for key, body in view.rows("messages", q.prefix, keys.u32(q.qid + 1)):
        raw_id = key[4:]
        while state is not None and state[0] < raw_id:
            yield Standing(state[0], None, state[1])
            state = next(states, None)
        if state is not None and state[0] == raw_id:
            yield Standing(raw_id, body, state[1])
            state = next(states, None)
        else:
            yield Standing(raw_id, body, [])
    while state is not None:
        yield Standing(state[0], None, state[1])
        state = next(states, None)


def _states(view: View, q: QueueState) -> Iterator[tuple[bytes, list[tuple[StateCode, bytes]]]]:
    """State rows by id."""

    def of_code(code: StateCode) -> Iterator[tuple[bytes, StateCode, bytes]]:
        prefix = keys.state_prefix(q.qid, code)
        for key, value in view.rows("state", prefix, keys.after_prefix(prefix)):
            yield key[5:], code, value

    merged = heapq.merge(*(of_code(code) for code in CODES))
    for raw_id, group in itertools.groupby(merged, key=lambda row: row[0]):
        yield raw_id, [(code, value) for _, code, value in group]


def standing_of(view: View, q: QueueState, raw_id: bytes) -> Standing:
    """The same for one id."""
    rows = view.get_many("state", [keys.state(q.qid, code, raw_id) for code in CODES])
    held = [(code, raw) for code, raw in zip(CODES, rows, strict=True) if raw is not None]
    return Standing(raw_id, view.get("messages", q.prefix + raw_id), held)


def body_of(raw: bytes | None) -> Body | None:
    """None if it is missing or does not decode."""
    try:
        return None if raw is None else decode_body(raw)
    except StorageCorrupt:
        return None


def usable_row(q: QueueState, code: StateCode, raw: bytes, body: Body | None) -> StateRow | None:
    """The state row, unless it does not decode or says what cannot be."""
    try:
        row = decode_state(raw)
    except StorageCorrupt:
        return None
    if row.seq >= q.counters.next_seq or (code == StateCode.GONE) == bool(row.lane):
        return None
    if body is not None and row.lane and row.lane != lane_of(q, body):
        return None
    return row


def lane_of(q: QueueState, body: Body) -> bytes:
    return q.lane(body.priority, body.fairness_key, body.throttle_keys)


def place(q: QueueState, standing: Standing, body: Body | None) -> Placed | None:
    """The state that a message is in; of several, the one that was entered last. None: not known."""
    usable = [
        (row.seq, code, row)
        for code, raw in standing.states
        if (row := usable_row(q, code, raw, body)) is not None
    ]
    if usable:
        _, code, row = max(usable, key=lambda one: one[:2])
        return Placed(standing.raw_id, code, row, fresh=False)
    if body is None or standing.states:
        return None
    return Placed(standing.raw_id, StateCode.READY, fresh_row(q, body), fresh=True)


def ready_row(q: QueueState, placed: Placed) -> Row | None:
    """The one row that a READY message has in the ready index."""
    if placed.code != StateCode.READY:
        return None
    row = placed.row
    value = encode_ready(row.weight, row.attempts, row.expires_at_ns, has_row=not placed.fresh)
    return keys.ready(q.qid, row.lane, row.order_ns, placed.raw_id), value


def due_rows(q: QueueState, placed: Placed) -> Iterator[Row]:
    row, code = placed.row, placed.code
    if row.until_ns and code in DUE_OF_STATE:
        yield keys.due(DUE_OF_STATE[code], row.until_ns, q.qid, placed.raw_id), MARK
    elif code == StateCode.DELAYED:
        yield keys.line(q.qid, row.order_ns, placed.raw_id), line_value(row.since_ns)
    if row.expires_at_ns and code in WAITING:
        yield keys.due(Due.TTL, row.expires_at_ns, q.qid, placed.raw_id), MARK


def held_key(q: QueueState, placed: Placed) -> bytes | None:
    """A body that is only kept for cursors is freed by the seq of the event that ended it."""
    return keys.held(q.qid, placed.row.seq, placed.raw_id) if placed.code == StateCode.GONE else None


def index_rows(q: QueueState, placed: Placed) -> Iterator[tuple[str, bytes, bytes]]:
    """Every derived row of a message: space, key, value."""
    ready = ready_row(q, placed)
    if ready is not None:
        yield "ready", *ready
    for key, value in due_rows(q, placed):
        yield "due", key, value
    held = held_key(q, placed)
    if held is not None:
        yield "held", held, MARK
