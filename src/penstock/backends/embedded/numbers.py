"""Numbers of queues and worlds: handed out once, never again."""

from __future__ import annotations

from penstock.backends.embedded import keys
from penstock.backends.embedded.engine import Engine, Transaction
from penstock.backends.embedded.keys import Meta
from penstock.backends.embedded.rows import MARK


def next_number(txn: Transaction) -> int:
    """A new number. The engine keeps the last one: a transaction does not see its own writes."""
    engine = txn.engine
    key = keys.meta(Meta.NEXT_NUMBER)
    if engine.next_number is None:
        raw = engine.kv.get(key, engine.meta)
        engine.next_number = int.from_bytes(raw[1:], "big") if raw else _after_all(engine)
    number = engine.next_number
    engine.next_number += 1
    txn.changed = True
    txn.put(key, MARK + keys.u32(engine.next_number), engine.meta)
    return number


def _after_all(engine: Engine) -> int:
    """For a store that is new, or that has lost its next number: one that no row has."""
    spaces = (engine.messages, engine.journal, engine.state, engine.ready, engine.dedup, engine.held)
    last = (next(engine.kv.scan(space, b"", None, reverse=True, limit=1), None) for space in spaces)
    return max((int.from_bytes(row[0][:4], "big") for row in last if row is not None), default=0) + 1
