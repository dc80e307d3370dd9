"""What a lease meets that does not fit together: it is healed as a repair would, and the rest goes on."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.backends.embedded import keys
from penstock.backends.embedded.checking.evidence import last_events
from penstock.backends.embedded.checking.view import View
from penstock.backends.embedded.engine import Transaction
from penstock.backends.embedded.keys import Due, StateCode
from penstock.backends.embedded.lanes import Lane, ReadyRow
from penstock.backends.embedded.lookup import ready_found
from penstock.backends.embedded.quarantine import keep
from penstock.backends.embedded.queue_state import QueueState
from penstock.backends.embedded.rows import decode_state
from penstock.backends.embedded.transitions import leave
from penstock.codec.body import decode_body
from penstock.errors import StorageCorrupt
from penstock.event import Kind

DAMAGED = "its body does not decode"

#: Events that a lease reads at most, back from the last, to find out about an orphan: others wait for it.
HEAL_EVENTS = 2_000


class DamagedBodies(StorageCorrupt):
    """Ready messages that cannot be handed out; nothing of the lease happened."""

    def __init__(self, what: str, rows: list[ReadyRow]) -> None:
        super().__init__(what)
        self.rows = rows


def set_aside(txn: Transaction, q: QueueState, rows: list[ReadyRow]) -> None:
    """Damaged messages leave the queue, their bodies for quarantine: those behind them are delivered.

    This is what a repair does with them too.
    """
    engine = txn.engine
    ids = [row[0][-16:] for row in rows]
    bodies = engine.kv.get_many([q.prefix + raw_id for raw_id in ids], engine.messages)
    for row, raw_id, body in zip(rows, ids, bodies, strict=True):
        leave(txn, q, ready_found(engine, q, row[:2]))
        keep(txn, q.name, "messages", q.prefix + raw_id, body or b"", DAMAGED)
    txn.record(q, Kind.REPAIRED, ids, reason=DAMAGED)


def decodes(body: bytes) -> bool:
    try:
        decode_body(body)
    except StorageCorrupt:
        return False
    return True


def without_strays(
    txn: Transaction, q: QueueState, taken: list[tuple[Lane, ReadyRow]]
) -> list[tuple[Lane, ReadyRow]]:
    """Where tables were lost, index rows that had been deleted may be back: their messages are elsewhere.

    Nobody counted them, so nothing is counted out.
    """
    states = (StateCode.LEASED, StateCode.DELAYED, StateCode.DEAD, StateCode.DONE, StateCode.READY)
    wanted = [keys.state(q.qid, code, row[0][-16:]) for _, row in taken for code in states]
    found = iter(txn.engine.kv.get_many(wanted, txn.engine.state))
    sound: dict[bytes, tuple[Lane, ReadyRow]] = {}
    for pair in taken:
        *elsewhere, ready = [next(found) for _ in states]
        key = pair[1][0]
        stray = any(elsewhere) or key[-16:] in sound or (ready is not None and not _stands_at(ready, key))
        if not stray:
            sound[key[-16:]] = pair
            continue
        txn.changed = True
        txn.delete(key, txn.engine.ready)
        q.ready.undelivered(txn, pair[0])
    return list(sound.values())


def _stands_at(state: bytes, ready_key: bytes) -> bool:
    """Whether this is the place in line that a message's state row speaks of."""
    row = decode_state(state)
    return row.lane + keys.u64(row.order_ns) == ready_key[4:-16]


def heal_orphans(
    txn: Transaction, q: QueueState, taken: list[tuple[Lane, ReadyRow]], bodies: Sequence[object | None]
) -> list[tuple[Lane, ReadyRow]]:
    """Index rows without a body are removed, and the journal says so; the others are returned.

    Whether a message was counted is what the journal knows: its body may be lost, or it left long ago.
    """
    lost_pairs = [pair for pair, body in zip(taken, bodies, strict=True) if body is None]
    orphans = [row for _, row in lost_pairs]
    view = View(txn.engine.kv, txn.engine)
    evidence = last_events(view, q, [key[-16:] for key, *_ in orphans], HEAL_EVENTS)
    view.release()
    for key, value, *_ in orphans:
        txn.delete(key, txn.engine.ready)
        if value[1]:
            txn.delete(keys.state(q.qid, StateCode.READY, key[-16:]), txn.engine.state)
        if expires_ns := int.from_bytes(value[8:16], "big"):
            txn.delete_due(Due.TTL, expires_ns, q.qid, key[-16:])
    for lane, _ in lost_pairs:
        q.ready.undelivered(txn, lane)
    lost = sum(evidence.alive(key[-16:]) for key, *_ in orphans)
    q.counters.counts[StateCode.READY] -= min(lost, q.counters.counts[StateCode.READY])
    txn.record(q, Kind.REPAIRED, [key[-16:] for key, *_ in orphans], reason="ready row without a body")
    return [pair for pair, body in zip(taken, bodies, strict=True) if body is not None]
