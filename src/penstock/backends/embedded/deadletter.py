"""The end of a message that will not be tried again: DEAD here, or READY in the dead-letter queue."""

from __future__ import annotations

from penstock.backends.burial import buried
from penstock.backends.embedded.engine import Engine, Transaction
from penstock.backends.embedded.keys import StateCode
from penstock.backends.embedded.lookup import Found, find_sound
from penstock.backends.embedded.queue_state import QueueState
from penstock.backends.embedded.rows import StateRow
from penstock.backends.embedded.transitions import arrive, drop_bodies, enter, unhold
from penstock.clock import to_ns
from penstock.codec.body import Body, decode_body
from penstock.errors import StorageCorrupt
from penstock.event import Kind


def kill(txn: Transaction, q: QueueState, dead: list[tuple[bytes, StateRow]], reason: str) -> None:
    """Messages that have left their state; the events are recorded here."""
    target = txn.engine.queues.get(q.settings.dead_letter) if q.settings.dead_letter else None
    if target is not None:
        target = txn.engine.queue(target.name)
        dead = _bury_elsewhere(txn, q, target, dead, reason)
    if not dead:
        return
    keep_s = q.settings.dead_retention_s
    remove_at_ns = txn.now_ns + to_ns(keep_s) if keep_s is not None else 0
    for seq, (raw_id, row) in enumerate(dead, start=q.counters.next_seq):
        row.seq, row.since_ns, row.until_ns = seq, txn.now_ns, remove_at_ns
        row.reason = reason or row.reason
        enter(txn, q, raw_id, StateCode.DEAD, row)
    attempts = [row.attempts for _, row in dead]
    txn.record(q, Kind.DEAD, [raw_id for raw_id, _ in dead], attempts, remove_at_ns, reason=reason)


def can_bury(engine: Engine, q: QueueState) -> bool:
    """Whether its messages can die: not while their dead-letter queue is damaged."""
    target = engine.queues.get(q.settings.dead_letter) if q.settings.dead_letter else None
    return target is None or engine.sound_queue(target.qid) is not None


def _bury_elsewhere(
    txn: Transaction, q: QueueState, target: QueueState, dead: list[tuple[bytes, StateRow]], reason: str
) -> list[tuple[bytes, StateRow]]:
    """Move them to the dead-letter queue; the ones that cannot go there are given back."""
    engine = txn.engine
    ids = [raw_id for raw_id, _ in dead]
    bodies = engine.kv.get_many([q.prefix + raw_id for raw_id in ids], engine.messages)
    # Ids are the users' to choose: a message that the target has already must not be overwritten.
    there = find_sound(engine, target, ids)
    moved: list[tuple[bytes, StateRow]] = []
    staying: list[tuple[bytes, StateRow]] = []
    visible: list[int] = []
    for (raw_id, row), raw, other in zip(dead, bodies, there, strict=True):
        body = None if is_taken(other) else _sound(raw)
        if body is None:
            staying.append((raw_id, row))
            continue
        if isinstance(other, Found):
            unhold(txn, target, other)
        seq = target.counters.next_seq + len(moved)
        there_body = buried(body, q.name, row.attempts, reason or row.reason)
        visible.append(arrive(txn, target, raw_id, there_body, seq))
        moved.append((raw_id, row))
    if moved:
        gone = [raw_id for raw_id, _ in moved]
        txn.record(target, Kind.ENQUEUED, gone, due_ns=visible, reason=reason, extra=q.name)
        drop_bodies(txn, q, gone, q.counters.next_seq)
        attempts = [row.attempts for _, row in moved]
        txn.record(q, Kind.DEAD, gone, attempts, reason=reason, extra=target.name)
    return staying


def is_taken(other: Found | StorageCorrupt | None) -> bool:
    """Whether a queue has a message under an id; one that is only kept for cursors does not count."""
    return other is not None and not (isinstance(other, Found) and other.code == StateCode.GONE)


def _sound(raw: bytes | None) -> Body | None:
    """A body that can go elsewhere: a damaged one stays, so that it stops nobody else's death."""
    try:
        return None if raw is None else decode_body(raw)
    except StorageCorrupt:
        return None
