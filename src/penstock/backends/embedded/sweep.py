"""What time does: delays pass, leases run out, messages expire, kept ones are removed.

Each step is a bounded transaction. Leasing takes the steps that it needs; `sweep` takes them all.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import groupby
from operator import itemgetter

from penstock.backends.embedded import keys
from penstock.backends.embedded.delayline import FAR_FUTURE_NS, UNREADABLE_AGAIN_NS
from penstock.backends.embedded.engine import Engine, Transaction
from penstock.backends.embedded.keys import Due, StateCode
from penstock.backends.embedded.leases import GiveBack, release
from penstock.backends.embedded.lookup import Found, find_sound
from penstock.backends.embedded.queue_state import QueueState
from penstock.backends.embedded.rows import DEDUP_ROW, StateRow, decode_state
from penstock.backends.embedded.transitions import drop_bodies, enter_ready, leave
from penstock.backends.embedded.undecided import Undecided
from penstock.errors import StorageCorrupt
from penstock.event import Kind
from penstock.message import format_id

log = logging.getLogger("penstock")

#: Due rows that one transaction takes on.
SLICE = 500
#: Slices that a read takes on before it answers: what is due beyond them stays for the sweep.
SLICES_PER_READ = 20

#: Time's own changes to waiting messages: applied before anything looks at them.
OF_WAITING = (Due.DELAY, Due.LINE, Due.TTL)


#: What has expired goes first: it must not stand in the way of what is released.
SWEEP_ORDER = (Due.TTL, Due.DELAY, Due.LINE, Due.LEASE, Due.RETENTION, Due.DEDUP)


def apply_due(engine: Engine, kind: Due) -> int:
    """One slice of what is due of one kind; how many rows it took on."""
    if engine.clock.now_ns() < engine.next_due_ns[kind]:
        return 0
    with engine.lock:
        engine.check_usable()
        try:
            due = engine.lines.due_rows(SLICE) if kind == Due.LINE else _due_rows(engine, kind)
            if due:
                engine.applying_ns[kind] = due[0][0]
            return _apply(engine, kind, due)
        except BaseException:
            engine.read_anew(engine.load_due_hints)  # What was not applied is due still.
            raise
        finally:
            engine.applying_ns.pop(kind, None)


def _apply(engine: Engine, kind: Due, due: list[tuple[int, int, bytes]]) -> int:
    # A write for each queue: two may send messages of one id to the same dead-letter queue.
    for qid, items in _by_queue(due):
        q = engine.sound_queue(qid)
        if q is None and qid in engine.by_qid:
            if kind == Due.LINE:
                engine.lines.leave_alone(qid)
            continue  # Damaged: what is due of it waits for a repair, the others do not.
        if kind == Due.LEASE and q is not None and q.settings.on_failure is not None:
            engine.undecided.setdefault(qid, Undecided()).add(items)
            continue
        with left_for_repair(engine, kind, q), engine.transaction() as txn:
            txn.changed = True
            if q is None:
                drop_rows(txn, kind, qid, items)
            else:
                _APPLY[kind](txn, q, items)
    return len(due)


@contextmanager
def left_for_repair(engine: Engine, kind: Due, q: QueueState | None) -> Iterator[None]:
    """What is due of a queue is left where it is if something damaged keeps it from being applied.

    The next slice starts behind it. A failed write is otherwise found again at once: those behind it would
    never have their turn, and who goes on for as long as there is something would not come to an end.
    """
    at_ns, row, undecided = engine.next_due_ns[kind], engine.next_due_row.get(kind), dict(engine.undecided)
    lines = engine.lines.kept() if kind == Due.LINE else None
    try:
        yield
    except StorageCorrupt as error:
        if q is None:
            raise
        engine.note_damage(q.name, error)
        engine.next_due_ns[kind] = at_ns
        if row is not None:
            engine.next_due_row[kind] = row
        if kind == Due.LEASE:
            engine.undecided.update(undecided)
        elif kind == Due.LINE:
            engine.lines.take_back(lines)
            engine.lines.leave_alone(q.qid)


def _by_queue(due: list[tuple[int, int, bytes]]) -> Iterable[tuple[int, list[tuple[int, bytes]]]]:
    """What is due of each queue. Where queues share an id, what comes first in time goes first: it may
    take the place in a dead-letter queue that the other would have had.
    """
    if len({raw_id for _, _, raw_id in due}) < len(due):
        runs = groupby(due, key=itemgetter(1))
        return [(qid, [(at_ns, raw_id) for at_ns, _, raw_id in run]) for qid, run in runs]
    by_queue: dict[int, list[tuple[int, bytes]]] = defaultdict(list)
    for at_ns, qid, raw_id in due:
        by_queue[qid].append((at_ns, raw_id))
    return by_queue.items()


def apply_waiting(engine: Engine) -> None:
    """Let time's changes to waiting messages be seen by the read that follows."""
    for kind in OF_WAITING:
        for _ in range(SLICES_PER_READ):
            if apply_due(engine, kind) < SLICE:
                break


def release_for(engine: Engine, queue: str, wanted: int) -> bool:
    """Before a lease: what is due, slice by slice, until the queue has enough, or nothing more to gain.

    The lock is free between slices: what other queues have due may be a lot. True if it seemed enough: should
    none of it be handed out, there is more to release.
    """
    enough = False
    for kind in (Due.LEASE, Due.DELAY, Due.LINE):
        while apply_due(engine, kind) == SLICE and may_gain(engine, queue, kind):
            if has_enough(engine, queue, wanted):
                enough = True
                break
    return enough


def has_enough(engine: Engine, queue: str, wanted: int) -> bool:
    """Whether so many are ready, and some may be handed out: only a lease finds out."""
    with engine.lock:
        q = engine.queue(queue)
        return q.counters.counts[StateCode.READY] >= wanted and q.lease_may_succeed(engine.clock.now_ns())


def may_gain(engine: Engine, queue: str, kind: Due) -> bool:
    """Whether more may become ready in a queue by what is due."""
    with engine.lock:
        counts = engine.queue(queue).counters.counts
        if kind in (Due.DELAY, Due.LINE):
            return counts[StateCode.DELAYED] > 0
        # Another's last lease that ends may make a dead letter.
        buries = any(other.settings.dead_letter == queue for other in engine.queues.values())
        return buries or counts[StateCode.LEASED] > 0


def _due_rows(engine: Engine, kind: Due) -> list[tuple[int, int, bytes]]:
    """(time, queue number, id) of what is due, earliest first; remembers where the rest starts."""
    now_ns = engine.clock.now_ns()
    # Where the last slice ended, unless that was before the time up to which there is nothing by now.
    lower = max(bytes((kind,)) + keys.u64(engine.next_due_ns[kind]), engine.next_due_row.pop(kind, b""))
    rows: list[tuple[int, int, bytes]] = []
    next_ns = FAR_FUTURE_NS
    try:
        for key, _ in engine.kv.scan(engine.due, lower, bytes((kind + 1,)), limit=SLICE + 1):
            _, at_ns, qid, raw_id = keys.parse_due(key)
            if at_ns > now_ns or len(rows) == SLICE:
                next_ns, engine.next_due_row[kind] = at_ns, key
                break
            rows.append((at_ns, qid, raw_id))
    except StorageCorrupt as error:
        # Of all queues: none may stop for it. What was read is applied, the rest is a repair's to rebuild.
        log.error("times of %s cannot be read: %s", kind.name.lower(), error)
        next_ns = now_ns + UNREADABLE_AGAIN_NS
    engine.next_due_ns[kind] = next_ns
    return rows


def drop_rows(txn: Transaction, kind: Due, qid: int, items: list[tuple[int, bytes]]) -> None:
    for at_ns, raw_id in items:
        txn.delete_due(kind, at_ns, qid, raw_id)


def end_leases(
    txn: Transaction, q: QueueState, items: list[tuple[int, bytes]], settle: GiveBack | None = None
) -> None:
    engine = txn.engine
    rows = engine.kv.get_many(
        [keys.state(q.qid, StateCode.LEASED, raw_id) for _, raw_id in items], engine.state
    )
    ended = []
    for (at_ns, raw_id), raw in zip(items, rows, strict=True):
        row = _decoded(q, raw_id, raw)
        if row is not None and row.until_ns == at_ns:
            ended.append((raw_id, row))
        else:
            txn.delete_due(Due.LEASE, at_ns, q.qid, raw_id)
    release(txn, q, ended, settle)


def _decoded(q: QueueState, raw_id: bytes, raw: bytes | None) -> StateRow | None:
    try:
        return None if raw is None else decode_state(raw)
    except StorageCorrupt as error:
        _report(q, raw_id, error)
        return None


def _report(q: QueueState, raw_id: bytes, error: StorageCorrupt) -> None:
    """One damaged row must not stop the others: it loses its due row, and `check` finds it."""
    log.error("queue %r, message %s was left alone: %s", q.name, format_id(raw_id), error)


def _end_delays(txn: Transaction, q: QueueState, items: list[tuple[int, bytes]]) -> None:
    for at_ns, found in _found(txn, q, items):
        if found.code == StateCode.DELAYED and found.row.until_ns == at_ns:
            leave(txn, q, found)
            found.row.since_ns = at_ns
            enter_ready(txn, q, found.raw_id, found.row, fresh=False)
        else:
            txn.delete_due(Due.DELAY, at_ns, q.qid, found.raw_id)


def _end_queue_delay(txn: Transaction, q: QueueState, items: list[tuple[int, bytes]]) -> None:
    for order_ns, found in _found(txn, q, items):
        row = found.row
        if found.code == StateCode.DELAYED and not row.until_ns and row.order_ns == order_ns:
            leave(txn, q, found)
            row.since_ns = min(row.since_ns + q.delay_ns, txn.now_ns)
            enter_ready(txn, q, found.raw_id, row, fresh=False)
        else:
            txn.delete_due(Due.LINE, order_ns, q.qid, found.raw_id)


def _expire(txn: Transaction, q: QueueState, items: list[tuple[int, bytes]]) -> None:
    _remove(txn, q, items, Due.TTL, (StateCode.DELAYED, StateCode.READY), Kind.EXPIRED)


def _end_retention(txn: Transaction, q: QueueState, items: list[tuple[int, bytes]]) -> None:
    _remove(txn, q, items, Due.RETENTION, (StateCode.DONE, StateCode.DEAD), Kind.REMOVED)


def _remove(
    txn: Transaction,
    q: QueueState,
    items: list[tuple[int, bytes]],
    due: Due,
    states: tuple[StateCode, ...],
    kind: Kind,
) -> None:
    gone: list[bytes] = []
    for at_ns, found in _found(txn, q, items):
        row = found.row
        when_ns = row.expires_at_ns if due == Due.TTL else row.until_ns
        if found.code in states and when_ns == at_ns:
            leave(txn, q, found)
            gone.append(found.raw_id)
        else:
            txn.delete_due(due, at_ns, q.qid, found.raw_id)
    if gone:
        drop_bodies(txn, q, gone, q.counters.next_seq)
        txn.record(q, kind, gone)


def _found(txn: Transaction, q: QueueState, items: list[tuple[int, bytes]]) -> list[tuple[int, Found]]:
    """What the rows speak of; rows that speak of nothing, or of something damaged, are deleted."""
    out = []
    found = find_sound(txn.engine, q, [raw_id for _, raw_id in items])
    for (at_ns, raw_id), one in zip(items, found, strict=True):
        if isinstance(one, StorageCorrupt):
            _report(q, raw_id, one)
        if not isinstance(one, Found):
            for kind in (*OF_WAITING, Due.RETENTION):
                txn.delete(keys.due(kind, at_ns, q.qid, raw_id), txn.engine.due)
        else:
            out.append((at_ns, one))
    return out


def _forget_dedup(txn: Transaction, q: QueueState, items: list[tuple[int, bytes]]) -> None:
    engine = txn.engine
    rows = engine.kv.get_many([q.prefix + hashed for _, hashed in items], engine.dedup)
    for (at_ns, hashed), raw in zip(items, rows, strict=True):
        if raw is not None and (len(raw) != DEDUP_ROW.size or DEDUP_ROW.unpack(raw)[1] == at_ns):
            txn.delete(q.prefix + hashed, engine.dedup)
        txn.delete_due(Due.DEDUP, at_ns, q.qid, hashed)


_APPLY = {
    Due.LEASE: end_leases,
    Due.DELAY: _end_delays,
    Due.LINE: _end_queue_delay,
    Due.TTL: _expire,
    Due.RETENTION: _end_retention,
    Due.DEDUP: _forget_dedup,
}
