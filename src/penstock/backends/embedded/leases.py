"""Lease, ack, nack, reject, extend, and the return of what nobody finished."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from operator import itemgetter

import msgspec

from penstock.backends.embedded import keys
from penstock.backends.embedded.contents import Content, contents, throttle_keys
from penstock.backends.embedded.deadletter import can_bury, kill
from penstock.backends.embedded.delivering import Granted, deliveries
from penstock.backends.embedded.engine import Engine, Transaction
from penstock.backends.embedded.fifo import FifoIndex
from penstock.backends.embedded.healing import DamagedBodies, decodes, heal_orphans, without_strays
from penstock.backends.embedded.keys import Due, StateCode
from penstock.backends.embedded.known_leases import GRANT_FROM, Ended
from penstock.backends.embedded.lanes import Lane, ReadyRow
from penstock.backends.embedded.lookup import NO_BODY, Found
from penstock.backends.embedded.queue_state import QueueState
from penstock.backends.embedded.rows import (
    LEASED_ROW,
    NO_TIME,
    ROW_VERSION,
    StateRow,
    decode_state,
    encode_state,
    since_until,
    state_lane,
)
from penstock.backends.embedded.transitions import drop_bodies, enter, enter_ready, leave
from penstock.backends.meters import ACKED, FAILED
from penstock.clock import to_ns
from penstock.codec.frame import Column
from penstock.errors import StaleReceipt, StorageCorrupt
from penstock.event import Kind
from penstock.kv.base import Row
from penstock.message import OK, Delivery, Outcome, parse_receipt
from penstock.scheduling.retry import retry_delay_s

#: So many due rows side by side are worth a deletion of a range, which is dearer than one of a row.
RANGE_FROM_ROWS = 16

_FIRST = itemgetter(0)
_LEASE_KIND = bytes((Due.LEASE,))
#: Of a state row.
_ATTEMPT_SINCE_UNTIL = struct.Struct(">xI8xQQ")


def lease(txn: Transaction, q: QueueState, count: int, lease_ns: int, consumer: str) -> list[Delivery] | None:
    """Hand out up to `count` ready messages; fewer when some turn out expired, or not there: call again.

    None if there was none to take.
    """
    taken = q.ready.take(txn, count)
    if not taken:
        return None
    if txn.engine.kv.losses() and not (taken := without_strays(txn, q, taken)):
        return []
    read = contents(txn.engine, q, taken)
    bodies = [body for body in read if body is not None]
    if len(bodies) < len(taken):
        taken = heal_orphans(txn, q, taken, read)
        if not taken:
            return []
    until_ns = txn.now_ns + lease_ns
    try:
        if isinstance(q.ready, FifoIndex):
            taken, bodies = _with_tokens(txn, q.ready, taken, bodies)
        granted = _grant(txn, q, taken, bodies, until_ns, consumer) if taken else []
        return deliveries(q, granted, txn.now_ns, until_ns, consumer)
    except (struct.error, msgspec.DecodeError, UnicodeDecodeError, StorageCorrupt) as error:
        stored = [
            (row, body) for (_, row), body in zip(taken, bodies, strict=True) if isinstance(body, bytes)
        ]
        damaged = [row for row, body in stored if not decodes(body)]
        raise DamagedBodies(f"a body of queue {q.name!r} does not decode: {error}", damaged) from error


def _with_tokens(
    txn: Transaction, index: FifoIndex, taken: list[tuple[Lane, ReadyRow]], bodies: list[Content]
) -> tuple[list[tuple[Lane, ReadyRow]], list[Content]]:
    """Those that need no tokens, or get them: what a fifo line throttles is known by its bodies alone.

    An expired one needs none: it is on its way out.
    """
    kept = [
        (pair, body)
        for pair, body in zip(taken, bodies, strict=True)
        if 0 < int.from_bytes(pair[1][1][8:16], "big") <= txn.now_ns
        or index.draw(txn, *pair, throttle_keys(body))
    ]
    return [pair for pair, _ in kept], [body for _, body in kept]


def _grant(
    txn: Transaction,
    q: QueueState,
    taken: list[tuple[Lane, ReadyRow]],
    bodies: list[Content],
    until_ns: int,
    consumer: str,
) -> list[Granted]:
    """Turn ready rows into leased ones; what is past its ttl is removed instead."""
    put, delete, state_space = txn.put, txn.delete, txn.engine.state
    state_prefix = keys.state_prefix(q.qid, StateCode.LEASED)
    span, consumer_raw = since_until(txn.now_ns, until_ns), consumer.encode()
    pack, from_bytes, ready_space = LEASED_ROW.pack, int.from_bytes, txn.engine.ready
    consumer_bytes = len(consumer_raw)
    seq = q.counters.next_seq
    granted: list[Granted] = []
    orders: list[bytes] = []
    rows: list[Row] = []
    expired: list[bytes] = []
    known, has_row, expiry, weight = b"", 0, NO_TIME, b""
    for (lane, (key, value, _, _)), body in zip(taken, bodies, strict=True):
        delete(key, ready_space)
        raw_id, order, attempt, expires_at_ns = key[-16:], key[-24:-16], 1, 0
        orders.append(order)
        if value is not known:  # Rows that were enqueued alike have one object for it.
            known, has_row, expiry, weight = value, value[1], value[8:16], value[2:4]
        if has_row:
            delete(keys.state(q.qid, StateCode.READY, raw_id), state_space)
            attempt = from_bytes(value[4:8], "big") + 1
        if expiry != NO_TIME:
            expires_at_ns = from_bytes(expiry, "big")
            txn.delete_due(Due.TTL, expires_at_ns, q.qid, raw_id)
            if expires_at_ns <= txn.now_ns:
                expired.append(raw_id)
                continue
        # Order, expiry and weight are the ready row's own bytes.
        name = lane.lane
        row = pack(ROW_VERSION, attempt, seq, span, order, expiry, weight, len(name), consumer_bytes, 0)
        rows.append((raw_id, row + name + consumer_raw))
        granted.append((raw_id, seq, attempt, expires_at_ns, body, lane))
        seq += 1
    rows.sort(key=_FIRST)  # In order of their keys, which the engine takes in faster.
    for raw_id, row in rows:
        put(state_prefix + raw_id, row, state_space)
    q.counters.counts[StateCode.READY] -= len(taken)
    # A place in line is the time from which on the message stood in it.
    txn.timings.append((q.meter.waits, struct.unpack(f">{len(taken)}Q", b"".join(orders))))
    if granted:
        ids = [one[0] for one in granted]
        q.counters.counts[StateCode.LEASED] += len(ids)
        txn.put_due(Due.LEASE, until_ns, q.qid, [raw_id for raw_id, _ in rows])
        attempts = _column([one[2] for one in granted])
        if len(ids) >= GRANT_FROM:
            queues = len(txn.engine.by_qid)
            q.leases.granted(q.counters.next_seq, ids, attempts, txn.now_ns, until_ns, queues)
        txn.record(q, Kind.LEASED, ids, attempts, until_ns, consumer)
    if expired:
        _expire_taken(txn, q, taken, set(expired))
    return granted


def _expire_taken(
    txn: Transaction, q: QueueState, taken: list[tuple[Lane, ReadyRow]], expired: set[bytes]
) -> None:
    gone = [(lane, row[0][-16:]) for lane, row in taken if row[0][-16:] in expired]
    ids = [raw_id for _, raw_id in gone]
    drop_bodies(txn, q, ids, q.counters.next_seq)
    txn.record(q, Kind.EXPIRED, ids)
    for lane, _ in gone:
        q.ready.undelivered(txn, lane)


def _column(values: list[int]) -> Column:
    """One value if all are the same."""
    return values[0] if values.count(values[0]) == len(values) else values


def holding(
    engine: Engine, q: QueueState, receipts: Sequence[str], outcomes: list[Outcome]
) -> list[tuple[int, bytes, bytes]]:
    """(place, id, state row) of every receipt that still holds its message; the others are answered."""
    parsed = [parse_receipt(receipt) for receipt in receipts]
    prefix = keys.state_prefix(q.qid, StateCode.LEASED)
    rows = iter(engine.kv.get_many([prefix + p[0] for p in parsed if p is not None], engine.state))
    held: list[tuple[int, bytes, bytes]] = []
    seen: set[bytes] = set()
    for place, p in enumerate(parsed):
        row = next(rows) if p is not None else None
        if p is None or row is None or q.prefix + row[5:13] != p[1] or p[0] in seen:
            outcomes[place] = Outcome(StaleReceipt(str(receipts[place])[:80]))
            continue
        seen.add(p[0])
        held.append((place, p[0], row))
    return held


def ack(txn: Transaction, q: QueueState, receipts: Sequence[str]) -> list[Outcome]:
    outcomes = [OK] * len(receipts)
    held: list[tuple[int, bytes, bytes]] = []
    ended: Ended | None = None
    if len(receipts) >= GRANT_FROM and not (q.settings.retention_s or q.limits_keys):  # They need the rows.
        ended = q.leases.all_of([parse_receipt(receipt) for receipt in receipts], q.prefix)
    if ended is None:
        held = holding(txn.engine, q, receipts, outcomes)
        if not held:
            return outcomes
        ended = _ended(q, held)
    txn.changed = True
    engine, delete, now_ns = txn.engine, txn.delete, txn.now_ns
    prefix = keys.state_prefix(q.qid, StateCode.LEASED)
    state_space, (ids, attempts, since_ns, _) = engine.state, ended
    in_order = sorted(ids)
    for raw_id in in_order:
        delete(prefix + raw_id, state_space)
    _end(txn, q, ended, in_order)
    counts = q.counters.counts
    counts[StateCode.LEASED] -= len(ids)
    remove_at_ns = now_ns + to_ns(q.settings.retention_s) if q.settings.retention_s else 0
    if remove_at_ns:
        for seq, (_, raw_id, raw) in enumerate(held, start=q.counters.next_seq):
            row = decode_state(raw)
            row.seq, row.since_ns, row.until_ns = seq, now_ns, remove_at_ns
            enter(txn, q, raw_id, StateCode.DONE, row)
    else:
        drop_bodies(txn, q, ids, q.counters.next_seq, in_order)
    txn.record(q, Kind.ACKED, ids, attempts, remove_at_ns)
    q.counters.acked_total += len(ids)
    txn.rates.append((q, ACKED, len(ids)))
    txn.timings.append((q.meter.services, since_ns))
    q.left_flight(StateCode.LEASED, len(ids), (state_lane(raw) for _, _, raw in held))
    return outcomes


def _ended(q: QueueState, held: list[tuple[int, bytes, bytes]]) -> Ended:
    """Leases whose state rows were looked up; what is known of their grants does not hold any longer."""
    columns = zip(*[_ATTEMPT_SINCE_UNTIL.unpack_from(raw) for _, _, raw in held], strict=True)
    attempts, since_ns, until_ns = columns
    q.leases.changed(since_ns)
    return [raw_id for _, raw_id, _ in held], _column([*attempts]), since_ns, until_ns


def _end(txn: Transaction, q: QueueState, ended: Ended, in_order: list[bytes]) -> None:
    """Delete the due rows of leases, which end when their state rows say."""
    leases, space, count = q.leases, txn.engine.due, len(in_order)
    txn.due_deletions[Due.LEASE] = txn.due_deletions.get(Due.LEASE, 0) + count
    ids, _, _, ends = ended
    until_ns = ends[0]
    if count > 1 and ends.count(until_ns) < count:
        for raw_id, one in sorted(zip(ids, ends, strict=True)):
            leases.over(one, 1)
            txn.delete(keys.due(Due.LEASE, one, q.qid, raw_id), space)
        return
    prefix = _LEASE_KIND + until_ns.to_bytes(8, "big") + q.prefix
    if count >= RANGE_FROM_ROWS and leases.are_all(until_ns, count, q.counters.counts[StateCode.LEASED]):
        txn.batch.delete_range(prefix + in_order[0], prefix + in_order[-1] + b"\0", space)
    else:
        for raw_id in in_order:
            txn.delete(prefix + raw_id, space)
    leases.over(until_ns, count)


def extend(txn: Transaction, q: QueueState, receipts: Sequence[str], lease_ns: int) -> list[Outcome]:
    # Unlike an ack, extending twice is no contradiction: a repeated receipt has the first one's outcome.
    distinct = list(dict.fromkeys(map(str, receipts)))
    answers = [OK] * len(distinct)
    held = holding(txn.engine, q, distinct, answers)
    if held:
        _extend(txn, q, held, lease_ns)
    outcomes = dict(zip(distinct, answers, strict=True))
    return [outcomes[str(receipt)] for receipt in receipts]


def _extend(txn: Transaction, q: QueueState, held: list[tuple[int, bytes, bytes]], lease_ns: int) -> None:
    until_ns = txn.now_ns + lease_ns
    ids, attempts, consumers = [], [], []
    for _, raw_id, raw in held:
        row = decode_state(raw)
        txn.delete_due(Due.LEASE, row.until_ns, q.qid, raw_id)
        q.leases.left(row.since_ns, row.until_ns)
        row.until_ns = until_ns
        txn.put(keys.state(q.qid, StateCode.LEASED, raw_id), encode_state(row), txn.engine.state)
        ids.append(raw_id)
        attempts.append(row.attempts)
        consumers.append(row.consumer)
    txn.put_due(Due.LEASE, until_ns, q.qid, ids)
    q.leases.entered(until_ns, len(ids))
    txn.record(q, Kind.EXTENDED, ids, attempts, until_ns, consumers)


#: What becomes of a failed message: None for dead, else the time it becomes visible again.
Decide = Callable[[StateRow], int | None]
Leased = list[tuple[bytes, StateRow]]
#: What `give_back` does, or the same with what a script decided.
GiveBack = Callable[[Transaction, QueueState, Leased, Decide, Kind, str], None]


def nack(
    txn: Transaction,
    q: QueueState,
    receipts: Sequence[str],
    delay_ns: int | None,
    reason: str,
    settle: GiveBack | None = None,
) -> list[Outcome]:
    settings, rng, now_ns = q.settings, txn.engine.rng, txn.now_ns

    def decide(row: StateRow) -> int | None:
        if row.attempts >= settings.max_attempts:
            return None
        if delay_ns is not None:
            return now_ns + delay_ns
        return now_ns + to_ns(retry_delay_s(settings.retry, row.attempts, rng))

    return _fail(txn, q, receipts, decide, reason, settle)


def reject(
    txn: Transaction, q: QueueState, receipts: Sequence[str], reason: str, settle: GiveBack | None = None
) -> list[Outcome]:
    return _fail(txn, q, receipts, lambda row: None, reason, settle)


def _fail(
    txn: Transaction,
    q: QueueState,
    receipts: Sequence[str],
    decide: Decide,
    reason: str,
    settle: GiveBack | None,
) -> list[Outcome]:
    outcomes = [OK] * len(receipts)
    held = holding(txn.engine, q, receipts, outcomes)
    failed = [(raw_id, decode_state(raw)) for _, raw_id, raw in held]
    (settle or give_back)(txn, q, failed, decide, Kind.NACKED, reason)
    return outcomes


def release(txn: Transaction, q: QueueState, ended: Leased, settle: GiveBack | None = None) -> None:
    """Leases that ran out: a failure each, and READY again at once."""

    def decide(row: StateRow) -> int | None:
        return None if row.attempts >= q.settings.max_attempts else txn.now_ns

    (settle or give_back)(txn, q, ended, decide, Kind.RELEASED, "")


def give_back(
    txn: Transaction,
    q: QueueState,
    failed: list[tuple[bytes, StateRow]],
    decide: Decide,
    kind: Kind,
    reason: str,
) -> None:
    """Leased messages that were not finished: waiting again, expired, or dead.

    Where a lease ran out, nobody is there to be told that a dead-letter queue is damaged: what is to die
    stays as it is until a repair, and the others do not wait for it.
    """
    if kind is Kind.RELEASED and not can_bury(txn.engine, q):
        failed = [(raw_id, row) for raw_id, row in failed if decide(row) is not None]
    if not failed:
        return
    txn.changed = True
    now_ns = txn.now_ns
    back: list[tuple[bytes, int, int, str]] = []
    dead: list[tuple[bytes, StateRow]] = []
    expired: list[bytes] = []
    for raw_id, row in failed:
        leave(txn, q, Found(raw_id, StateCode.LEASED, row, NO_BODY, fresh=False))
        visible_at_ns = decide(row)
        if visible_at_ns is None:
            dead.append((raw_id, row))
        elif row.expires_at_ns and row.expires_at_ns <= max(now_ns, visible_at_ns):
            expired.append(raw_id)
        else:
            back.append((raw_id, row.attempts, visible_at_ns, row.consumer))
            _wait_again(txn, q, raw_id, row, visible_at_ns, q.counters.next_seq + len(back) - 1, reason)
    if back:
        ids, attempts, visible, consumers = (list(column) for column in zip(*back, strict=True))
        txn.record(q, kind, ids, attempts, visible, consumers, reason)
    if expired:
        drop_bodies(txn, q, expired, q.counters.next_seq)
        txn.record(q, Kind.EXPIRED, expired)
    if dead:
        why = reason or ("lease ran out" if kind is Kind.RELEASED else "")
        kill(txn, q, dead, why)
    q.counters.failed_total += len(failed)
    txn.rates.append((q, FAILED, len(failed)))


def _wait_again(
    txn: Transaction, q: QueueState, raw_id: bytes, row: StateRow, visible_at_ns: int, seq: int, reason: str
) -> None:
    fifo = q.settings.fifo
    row.seq, row.since_ns, row.consumer = seq, txn.now_ns, ""
    if reason:
        row.reason = reason
    if visible_at_ns > txn.now_ns:
        row.until_ns = visible_at_ns
        if not fifo:
            row.order_ns = visible_at_ns
        enter(txn, q, raw_id, StateCode.DELAYED, row)
    else:
        if not fifo:
            row.order_ns = q.next_order_ns(txn.now_ns)
        enter_ready(txn, q, raw_id, row, fresh=False)
