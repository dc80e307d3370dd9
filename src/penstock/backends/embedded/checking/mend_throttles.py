"""Mending limits by throttle key: a damaged or lost one is made anew from what the system journal says."""

from __future__ import annotations

import contextlib

import msgspec

from penstock.backends.embedded.buckets import ThrottleRow
from penstock.backends.embedded.checking.findings import Finding
from penstock.backends.embedded.engine import Transaction
from penstock.backends.embedded.quarantine import keep
from penstock.backends.embedded.rows import packed
from penstock.backends.embedded.throttles import THROTTLE_DELETED, THROTTLE_SET
from penstock.backends.embedded.worlds import SYSTEM_WORLD, Worlds
from penstock.errors import InvalidMessage, StorageCorrupt
from penstock.event import Entry
from penstock.scheduling.throttle import checked_burst, checked_rate


class _Was(msgspec.Struct):
    rate_per_s: float
    burst: int


def mend_throttle(txn: Transaction, worlds: Worlds, finding: Finding) -> None:
    """A damaged row goes to quarantine. A limit made anew has no tokens: a repair gives no free burst."""
    engine = txn.engine
    raw = engine.kv.get(finding.key, engine.meta)
    key = finding.key[1:].decode(errors="replace")
    was = _remembered(worlds, key)
    if raw is not None:
        keep(txn, "", "meta", finding.key, raw, finding.what)
    kept = "" if raw is None else "; the old row moved to quarantine"
    txn.changed = True
    if was is None:
        if finding.kind == "throttle_missing":  # Noted, lest every check misses what nobody can make anew.
            worlds.append_in(txn, SYSTEM_WORLD, [Entry(THROTTLE_DELETED, b"", [key])])
        finding.action = f"the key has no limit any more, set it again{kept}"
        return
    row = ThrottleRow(checked_rate(was.rate_per_s), checked_burst(was.burst), 0, 0, txn.now_ns)
    txn.put(finding.key, packed(row), engine.meta)
    finding.action = f"made anew from the system journal{kept}"


def _remembered(worlds: Worlds, key: str) -> _Was | None:
    """What was last set, as far as the journal can be read."""
    with contextlib.suppress(StorageCorrupt, InvalidMessage, msgspec.DecodeError):
        entries = worlds.scan(SYSTEM_WORLD, kinds=(THROTTLE_SET, THROTTLE_DELETED), labels=[key])
        if entries and entries[-1].kind == THROTTLE_SET:
            was = msgspec.json.decode(entries[-1].body, type=_Was)
            checked_rate(was.rate_per_s)
            checked_burst(was.burst)
            return was
    return None
