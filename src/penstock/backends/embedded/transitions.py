"""The steps that every operation is made of: out of one state, into another, inside a transaction.

Each step changes rows, index and counters together; the caller records the event.
"""

from __future__ import annotations

import msgspec

from penstock.backends.embedded import keys
from penstock.backends.embedded.engine import Transaction
from penstock.backends.embedded.keys import Due, StateCode
from penstock.backends.embedded.lookup import Found
from penstock.backends.embedded.queue_state import QueueState
from penstock.backends.embedded.rows import MARK, StateRow, encode_ready, encode_state, line_value
from penstock.codec.body import Body, encode_body

#: The due row that a state has besides the ttl of a waiting message.
DUE_OF_STATE = {
    StateCode.DELAYED: Due.DELAY,
    StateCode.LEASED: Due.LEASE,
    StateCode.DONE: Due.RETENTION,
    StateCode.DEAD: Due.RETENTION,
}
WAITING = (StateCode.DELAYED, StateCode.READY)


def leave(txn: Transaction, q: QueueState, found: Found) -> None:
    """Out of the state it is in; the body stays. A READY message's lane is read anew."""
    txn.mark(q)
    engine, row, raw_id = txn.engine, found.row, found.raw_id
    if found.code == StateCode.READY:
        txn.delete(keys.ready(q.qid, row.lane, row.order_ns, raw_id), engine.ready)
        q.ready.forget(row.lane)
    if not found.fresh:
        txn.delete(keys.state(q.qid, found.code, raw_id), engine.state)
    if found.code in DUE_OF_STATE and row.until_ns:
        txn.delete_due(DUE_OF_STATE[found.code], row.until_ns, q.qid, raw_id)
    elif found.code == StateCode.DELAYED:
        txn.delete_due(Due.LINE, row.order_ns, q.qid, raw_id)
        q.left_line(row.since_ns)
    if row.expires_at_ns and found.code in WAITING:
        txn.delete_due(Due.TTL, row.expires_at_ns, q.qid, raw_id)
    q.counters.counts[found.code] -= 1
    if found.code == StateCode.LEASED:
        q.leases.left(row.since_ns, row.until_ns)
    if found.code in (StateCode.LEASED, StateCode.DELAYED) and row.until_ns:
        q.left_flight(found.code, 1, [row.lane])


def enter_ready(txn: Transaction, q: QueueState, raw_id: bytes, row: StateRow, *, fresh: bool) -> None:
    """READY at `row.order_ns`; `fresh` only if the body's own order says the same."""
    txn.mark(q)
    engine = txn.engine
    key = keys.ready(q.qid, row.lane, row.order_ns, raw_id)
    value = encode_ready(row.weight, row.attempts, row.expires_at_ns, has_row=not fresh)
    txn.put(key, value, engine.ready)
    if not fresh:
        row.until_ns = 0
        txn.put(keys.state(q.qid, StateCode.READY, raw_id), encode_state(row), engine.state)
    if row.expires_at_ns:
        txn.put_due(Due.TTL, row.expires_at_ns, q.qid, [raw_id])
    q.ready.add(txn, row.lane, [(key, value, None, None)])
    q.counters.counts[StateCode.READY] += 1
    q.arrived.notify()


def enter(txn: Transaction, q: QueueState, raw_id: bytes, code: StateCode, row: StateRow) -> None:
    """Into any state but READY; its due row is at `row.until_ns`, if that is set.

    A DELAYED message without it waits for the queue's delay: it is behind those before it, and holds up none.
    """
    txn.mark(q)
    engine = txn.engine
    txn.put(keys.state(q.qid, code, raw_id), encode_state(row), engine.state)
    if code == StateCode.LEASED:
        q.leases.entered(row.until_ns)
    if row.until_ns:
        txn.put_due(DUE_OF_STATE[code], row.until_ns, q.qid, [raw_id])
    elif code == StateCode.DELAYED:
        txn.put(keys.line(q.qid, row.order_ns, raw_id), line_value(row.since_ns), engine.due)
        engine.lines.note(q.qid, row.since_ns + q.delay_ns)
        q.entered_line(row.since_ns)
    if row.expires_at_ns and code == StateCode.DELAYED:
        txn.put_due(Due.TTL, row.expires_at_ns, q.qid, [raw_id])
    q.counters.counts[code] += 1
    if q.settings.fifo and code in (StateCode.LEASED, StateCode.DELAYED) and row.until_ns:
        q.ready.started(row.lane)


def enter_line(txn: Transaction, q: QueueState, raw_id: bytes, row: StateRow) -> int:
    """DELAYED by the queue's delay from now on, at `row.order_ns`; until when, for the event."""
    row.since_ns, row.until_ns = q.waits_since(txn.engine, txn.now_ns), 0
    enter(txn, q, raw_id, StateCode.DELAYED, row)
    return q.line_due_ns(row.since_ns, txn.now_ns)


def drop_bodies(
    txn: Transaction, q: QueueState, raw_ids: list[bytes], first_seq: int, in_order: list[bytes] | None = None
) -> None:
    """The messages are gone by the events numbered from `first_seq`: delete their bodies.

    `in_order` are the same ids in order, if the caller has them so.

    While a required cursor has not read so far, a body stays, marked GONE: an archive that is behind
    never finds a hole.
    """
    engine, prefix = txn.engine, q.prefix
    if not q.required:
        for raw_id in in_order or sorted(raw_ids):
            txn.delete(prefix + raw_id, engine.messages)
        return
    for seq, raw_id in enumerate(raw_ids, start=first_seq):
        txn.put(keys.held(q.qid, seq, raw_id), MARK, engine.held)
        txn.put(
            keys.state(q.qid, StateCode.GONE, raw_id),
            encode_state(StateRow(0, seq, txn.now_ns, 0, 0, 0, 1, b"")),
            engine.state,
        )
    q.counters.held += len(raw_ids)


def unhold(txn: Transaction, q: QueueState, found: Found) -> None:
    """A GONE message's id is used again: its old body is about to be replaced."""
    txn.mark(q)
    txn.delete(keys.held(q.qid, found.row.seq, found.raw_id), txn.engine.held)
    txn.delete(keys.state(q.qid, StateCode.GONE, found.raw_id), txn.engine.state)
    q.counters.held -= 1


def arrive(
    txn: Transaction, q: QueueState, raw_id: bytes, body: Body, seq: int, visible_at_ns: int = 0
) -> int:
    """A message comes in from another queue by event `seq`: READY at the end of the line, or DELAYED.

    Answers when it is visible.
    """
    lane = q.lane(body.priority, body.fairness_key, body.throttle_keys)
    order_ns = visible_at_ns or q.next_order_ns(txn.now_ns)
    body = msgspec.structs.replace(body, order_ns=order_ns, placed=True)
    raw = encode_body(body, q.settings.compress_over_bytes)
    txn.engine.ahead.replaced(txn, q.prefix + raw_id)
    txn.put(q.prefix + raw_id, raw, txn.engine.messages)
    row = StateRow(0, seq, txn.now_ns, visible_at_ns, order_ns, body.expires_at_ns, body.weight, lane)
    q.counters.enqueued_total += 1
    if visible_at_ns:
        enter(txn, q, raw_id, StateCode.DELAYED, row)
        return visible_at_ns
    if q.lines_up:
        return enter_line(txn, q, raw_id, row)
    enter_ready(txn, q, raw_id, row, fresh=True)
    return txn.now_ns
