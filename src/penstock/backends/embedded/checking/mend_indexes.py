"""Mending derived rows that are no message's own, and counters."""

from __future__ import annotations

from penstock.backends.embedded import keys
from penstock.backends.embedded.checking.findings import Finding
from penstock.backends.embedded.checking.recount import recount, stored_counters
from penstock.backends.embedded.checking.view import View
from penstock.backends.embedded.engine import Engine, Transaction
from penstock.backends.embedded.keys import Due, Meta
from penstock.backends.embedded.quarantine import keep
from penstock.backends.embedded.queue_state import QueueState
from penstock.backends.embedded.rows import (
    DEDUP_ROW,
    MARK,
    ROW_VERSION,
    Counters,
    decode_cursor,
    packed,
)
from penstock.errors import StorageCorrupt
from penstock.event import NOBODY, Kind


def mend_index(txn: Transaction, finding: Finding) -> None:
    """One row of an index, hint or cursor, looked at again in the live store."""
    txn.changed = True
    if finding.kind.startswith("due_") and finding.kind != "due_hint":
        _dedup_due(txn, finding)
    elif finding.kind.startswith("entry_"):
        _entry(txn, finding)
    elif finding.kind == "dedup_damaged":
        raw = txn.engine.kv.get(finding.key, txn.engine.dedup)
        if raw is not None:
            keep(txn, finding.queue, "dedup", finding.key, raw, finding.what)
        finding.action = "moved to quarantine"
    elif finding.kind == "lane_hint":
        txn.delete(finding.key, txn.engine.meta)
        finding.action = "hint removed"
    elif finding.kind == "due_hint":
        kind = Due(finding.number)
        txn.engine.put_due_hint(txn, kind, 0)
        finding.action = "hint removed"
    elif finding.kind == "cursor_ahead":
        _cursor(txn, finding)


def _dedup_due(txn: Transaction, finding: Finding) -> None:
    """The due row of a dedup window, or of nothing that is a message."""
    engine = txn.engine
    what, at_ns, qid, hashed = keys.parse_due(finding.key)
    raw = engine.kv.get(keys.u32(qid) + hashed, engine.dedup)
    owned = (
        what == Due.DEDUP
        and raw is not None
        and len(raw) == DEDUP_ROW.size
        and raw[0] == ROW_VERSION
        and DEDUP_ROW.unpack(raw)[1] == at_ns
    )
    if owned:
        txn.put(finding.key, MARK, engine.due)
        engine.note_due(txn, Due.DEDUP, at_ns)
        finding.action = "due row rebuilt"
    else:
        txn.delete(finding.key, engine.due)
        finding.action = "due row removed"


def _entry(txn: Transaction, finding: Finding) -> None:
    engine = txn.engine
    if finding.value:
        txn.put(finding.key, finding.value, engine.entries)
        finding.action = "id leads to its entry again"
    else:
        txn.delete(finding.key, engine.entries)
        finding.action = "id removed"


def _cursor(txn: Transaction, finding: Finding) -> None:
    engine = txn.engine
    q, raw = engine.queue_by_number(finding.number), engine.kv.get(finding.key, engine.meta)
    if q is None or raw is None:
        return
    row = decode_cursor(raw)
    row.position = min(max(row.position, q.counters.base_seq), q.counters.next_seq - 1)
    txn.put(finding.key, packed(row), engine.meta)
    finding.action = f"set to {row.position}"


def mend_counters(engine: Engine, number: int, findings: list[Finding]) -> None:
    """Count a queue anew, under the lock; the journal says so in an event that concerns no message."""
    with engine.lock:
        known = engine.by_qid.get(number)
        if known is None:
            return
        view = View(engine.kv, engine)
        try:
            stored = _sound_counters(view, known)
            counted = recount(view, QueueState(known.qid, known.settings, engine.lock), stored)
            known.unload()
            with engine.lock, engine.transaction() as txn:
                if stored is None:
                    _keep_row(txn, known)
                known.load(engine, counted)
                why = "; ".join(dict.fromkeys(finding.what for finding in findings))
                txn.record(known, Kind.REPAIRED, [NOBODY], reason=why)
        finally:
            view.release()
            known.unload()
        for finding in findings:
            finding.action = "counted anew"


def _sound_counters(view: View, q: QueueState) -> Counters | None:
    try:
        return stored_counters(view, q)
    except StorageCorrupt:
        return None


def _keep_row(txn: Transaction, q: QueueState) -> None:
    """Its bytes go to quarantine; the row is written again in the same batch, after that."""
    engine = txn.engine
    key = keys.meta(Meta.COUNTERS, q.prefix)
    try:
        raw = engine.kv.get(key, engine.meta)
    except StorageCorrupt:
        return
    if raw is not None:
        keep(txn, q.name, "meta", key, raw, "counters that cannot be")
