"""A queue's journal: reading events, cursors, and what retention may remove."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.backends.bulk import ALL_QUEUES, ARCHIVES
from penstock.backends.embedded import keys
from penstock.backends.embedded.engine import Engine, Transaction
from penstock.backends.embedded.keys import Meta, StateCode
from penstock.backends.embedded.queue_state import QueueState
from penstock.backends.embedded.rows import CursorRow, decode_cursor, packed
from penstock.clock import to_ns
from penstock.codec.frame import decode_events, decode_head
from penstock.errors import HistoryTruncated, InvalidMessage, StorageCorrupt
from penstock.event import Event
from penstock.message import checked_name


def frames(engine: Engine, number: int, after: int) -> Iterator[tuple[bytes, bytes]]:
    """Stored frames that have events after a seq, in order."""
    return engine.kv.scan(engine.journal, keys.journal(number, after + 1), keys.u32(number + 1))


def events(engine: Engine, q: QueueState, after: int, limit: int) -> list[Event]:
    out: list[Event] = []
    for _, raw in frames(engine, q.qid, max(after, q.counters.base_seq)):
        out += decode_events(raw, after, limit - len(out))
        if len(out) == limit:
            break
    return out


# -- cursors ------------------------------------------------------------------------------------


def open_cursor(txn: Transaction, q: QueueState, name: str, *, required: bool) -> CursorRow:
    """The cursor's row; made if it is new, at the start of what the journal still has."""
    engine = txn.engine
    key = keys.cursor(q.qid, checked_name(name, "cursor name"))
    raw = engine.kv.get(key, engine.meta)
    row = decode_cursor(raw) if raw is not None else CursorRow(q.counters.base_seq, required)
    if raw is None or (required and not row.required):
        row.required = row.required or required
        _put_cursor(txn, q, name, row)
    return row


def open_archive_cursors(txn: Transaction, q: QueueState) -> None:
    """A queue that is made where all are archived has the archive's cursor from its first event on.

    An archive whose cursors were all dropped is over, whatever the state still says of it.
    """
    engine = txn.engine
    prefix = keys.meta(Meta.USER_STATE, ARCHIVES.encode())
    for key, raw in engine.kv.scan(engine.meta, prefix, keys.after_prefix(prefix)):
        name = key[len(prefix) :]
        if raw.endswith(ALL_QUEUES) and (not engine.queues or _is_in_use(engine, name)):
            txn.put(keys.cursor(q.qid, name), packed(CursorRow(0, required=True)), engine.meta)


def _is_in_use(engine: Engine, cursor: bytes) -> bool:
    prefix = keys.meta(Meta.CURSOR)
    rows = engine.kv.scan(engine.meta, prefix, keys.after_prefix(prefix))
    return any(key[5:] == cursor for key, _ in rows)


def read_cursor(engine: Engine, q: QueueState, name: str, limit: int) -> list[Event]:
    row = _cursor(engine, q, name)
    if row.position < q.counters.base_seq:
        raise HistoryTruncated(f"cursor {name!r} of {q.name!r}", row.position, q.counters.base_seq + 1)
    return events(engine, q, row.position, limit)


def commit_cursor(txn: Transaction, q: QueueState, name: str, seq: int) -> None:
    """Move the cursor; back as well, to read again what the journal still has."""
    row = _cursor(txn.engine, q, name)
    low, high = q.counters.base_seq, q.counters.next_seq - 1
    if isinstance(seq, bool) or not isinstance(seq, int) or not low <= seq <= high:
        raise InvalidMessage(f"cursor {name!r} of {q.name!r}: seq is {seq!r}; accepted: {low} to {high}")
    row.position = seq
    _put_cursor(txn, q, name, row)


def drop_cursor(txn: Transaction, q: QueueState, name: str) -> None:
    txn.changed = True
    txn.delete(keys.cursor(q.qid, checked_name(name, "cursor name")), txn.engine.meta)
    q.required.pop(name, None)


def cursors(engine: Engine, q: QueueState) -> dict[str, CursorRow]:
    lower, upper = keys.cursor(q.qid, b""), keys.cursor(q.qid + 1, b"")
    return {key[5:].decode(): decode_cursor(raw) for key, raw in engine.kv.scan(engine.meta, lower, upper)}


def queues_with_cursors(engine: Engine) -> set[int]:
    prefix = keys.meta(Meta.CURSOR)
    rows = engine.kv.scan(engine.meta, prefix, keys.after_prefix(prefix))
    return {int.from_bytes(key[1:5], "big") for key, _ in rows}


def _cursor(engine: Engine, q: QueueState, name: str) -> CursorRow:
    raw = engine.kv.get(keys.cursor(q.qid, checked_name(name, "cursor name")), engine.meta)
    if raw is None:
        raise InvalidMessage(f"queue {q.name!r} has no cursor {name!r} (any more); open it again")
    return decode_cursor(raw)


def _put_cursor(txn: Transaction, q: QueueState, name: str, row: CursorRow) -> None:
    txn.changed = True
    txn.put(keys.cursor(q.qid, name.encode()), packed(row), txn.engine.meta)
    if row.required:
        q.required[name] = row.position


# -- retention ----------------------------------------------------------------------------------


def read_by_all(q: QueueState) -> int:
    """The last seq that every required cursor has read."""
    return min(q.required.values(), default=q.counters.next_seq - 1)


def keeps_too_much(engine: Engine, q: QueueState, now_ns: int) -> bool:
    """Whether required cursors keep events past the journal's age or size."""
    keep_s, max_bytes = q.settings.journal_retention_s, q.settings.journal_max_bytes
    _, raw = next(frames(engine, q.qid, q.counters.base_seq), (b"", b""))
    try:
        head = decode_head(raw)
    except StorageCorrupt:  # None, or a damaged one, which is told where it is met.
        return False
    too_old = keep_s is not None and head.at_ns < now_ns - to_ns(keep_s)
    too_big = max_bytes is not None and q.counters.journal_bytes > max_bytes
    return (too_old or too_big) and head.last_seq > read_by_all(q)


def trim(txn: Transaction, q: QueueState, limit: int) -> int:
    """Remove up to so many frames that are past the journal's age or size and read by all who must."""
    engine, c, settings = txn.engine, q.counters, q.settings
    keep_s = settings.journal_retention_s
    too_old_ns = txn.now_ns - to_ns(keep_s) if keep_s is not None else 0
    max_bytes = settings.journal_max_bytes
    removed = 0
    for key, raw in frames(engine, q.qid, c.base_seq):
        head = decode_head(raw)
        too_big = max_bytes is not None and c.journal_bytes > max_bytes
        if removed == limit or head.last_seq > read_by_all(q) or not (head.at_ns < too_old_ns or too_big):
            break
        txn.changed = True
        txn.delete(key, engine.journal)
        c.base_seq = head.last_seq
        c.base_counts = list(head.counts)
        c.journal_bytes -= len(raw)
        removed += 1
    if removed:
        txn.put_counters(q)
    return removed


def free_held(txn: Transaction, q: QueueState, limit: int) -> int:
    """Delete up to so many bodies that were only kept for cursors which have read past them."""
    engine, free_to = txn.engine, read_by_all(q)
    if not q.counters.held:
        return 0
    freed = 0
    upper = keys.held(q.qid, free_to + 1, b"")
    for key, _ in engine.kv.scan(engine.held, min(q.held_from, upper), upper, limit=limit):
        txn.changed = True
        raw_id = key[-16:]
        txn.delete(key, engine.held)
        txn.delete(keys.state(q.qid, StateCode.GONE, raw_id), engine.state)
        txn.delete(q.prefix + raw_id, engine.messages)
        q.held_from = key
        freed += 1
    if freed:
        q.counters.held -= freed
        txn.put_counters(q)
    return freed
