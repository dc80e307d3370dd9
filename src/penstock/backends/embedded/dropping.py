"""The rows of a queue that was deleted: taken away in slices, with what points to them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from penstock.backends.embedded import keys
from penstock.backends.embedded.engine import Transaction
from penstock.backends.embedded.keys import Due, Meta, StateCode
from penstock.backends.embedded.rows import decode_dedup, decode_ready, decode_state
from penstock.backends.embedded.transitions import DUE_OF_STATE
from penstock.errors import StorageCorrupt


def drop_slice(txn: Transaction, qid: int, position: dict[int, bytes], most: int) -> bool:
    """Delete up to so many rows of each kind, from `position` on; True when nothing is left.

    Rows in the due index are found through the rows that they belong to; the rest goes by range.
    A damaged row goes without its due rows: those are dropped when they fall due.
    """
    engine = txn.engine
    txn.changed = True
    prefix, end = keys.u32(qid), keys.u32(qid + 1)
    found = False
    for place, (space, due_of) in enumerate(
        (
            (engine.state, _due_of_state),
            (engine.ready, _due_of_ready),
            (engine.dedup, _due_of_dedup),
        )
    ):
        # From where the last slice ended, not over all that is deleted: nobody writes to the queue any more.
        for key, value in list(engine.kv.scan(space, position.get(place, prefix), end, limit=most)):
            found = True
            position[place] = key
            txn.delete(key, space)
            with contextlib.suppress(StorageCorrupt):
                for what, at_ns in due_of(key, value):
                    txn.delete_due(what, at_ns, qid, key[-16:])
    if found:
        return False
    for space in (engine.messages, engine.journal, engine.held):
        txn.batch.delete_range(prefix, end, space)
    for kind in (Meta.CURSOR, Meta.LANE_HINT):
        txn.batch.delete_range(keys.meta(kind, prefix), keys.meta(kind, end), engine.meta)
    return True


def _due_of_state(key: bytes, value: bytes) -> Iterator[tuple[Due, int]]:
    code, row = key[4], decode_state(value)
    if code in DUE_OF_STATE and row.until_ns:
        yield DUE_OF_STATE[StateCode(code)], row.until_ns
    elif code == StateCode.DELAYED:
        yield Due.LINE, row.order_ns
    if code == StateCode.DELAYED and row.expires_at_ns:
        yield Due.TTL, row.expires_at_ns


def _due_of_ready(key: bytes, value: bytes) -> Iterator[tuple[Due, int]]:
    if expires_at_ns := decode_ready(value)[3]:
        yield Due.TTL, expires_at_ns


def _due_of_dedup(key: bytes, value: bytes) -> Iterator[tuple[Due, int]]:
    yield Due.DEDUP, decode_dedup(value)[0]
