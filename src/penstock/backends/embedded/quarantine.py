"""Quarantine: rows that a repair took out of the store, kept with where they were and why.

Nothing that has content is deleted by a repair: it comes here, in the same atomic write.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from penstock.backends.base import QuarantineItem
from penstock.backends.embedded import keys
from penstock.backends.embedded.engine import Engine, Transaction
from penstock.backends.embedded.keys import Meta
from penstock.backends.embedded.rows import packed, unpacked
from penstock.errors import MessageNotFound
from penstock.message import format_id, parse_id


class Kept(msgspec.Struct, array_like=True):
    """One row as it was."""

    at_ns: int
    queue: str
    space: str
    key: bytes
    value: bytes
    reason: str


_decode_kept = msgspec.msgpack.Decoder(Kept).decode


def decode_kept(raw: bytes) -> Kept:
    return unpacked(raw, _decode_kept, "quarantine")


def keep(txn: Transaction, queue: str, space: str, key: bytes, value: bytes, reason: str) -> str:
    """Move a row into quarantine, as part of this write; the item's id."""
    engine = txn.engine
    txn.changed = True
    raw_id = engine.ids.one(txn.now_ns)
    kept = Kept(txn.now_ns, queue, space, key, value, reason)
    txn.put(keys.meta(Meta.QUARANTINE, raw_id), packed(kept), engine.meta)
    txn.delete(key, engine.kv.space(space))
    return format_id(raw_id)


def items(engine: Engine, limit: int, after: str | None) -> list[QuarantineItem]:
    """Oldest first."""
    prefix = keys.meta(Meta.QUARANTINE)
    lower = prefix if after is None else prefix + parse_id(after) + b"\0"
    rows = engine.kv.scan(engine.meta, lower, keys.after_prefix(prefix), limit=limit)
    return [_item(format_id(key[1:]), decode_kept(raw)) for key, raw in rows]


def _item(item_id: str, kept: Kept) -> QuarantineItem:
    return QuarantineItem(item_id, kept.at_ns, kept.queue, kept.space, kept.key, kept.reason, len(kept.value))


def content(engine: Engine, item_id: str) -> bytes:
    raw = engine.kv.get(keys.meta(Meta.QUARANTINE, parse_id(item_id)), engine.meta)
    if raw is None:
        raise MessageNotFound(item_id, "quarantine")
    return decode_kept(raw).value


def drop(txn: Transaction, ids: Sequence[str]) -> list[QuarantineItem]:
    """Forget items; those that there were."""
    engine = txn.engine
    row_keys = [keys.meta(Meta.QUARANTINE, parse_id(text)) for text in dict.fromkeys(ids)]
    dropped = []
    for key, raw in zip(row_keys, engine.kv.get_many(row_keys, engine.meta), strict=True):
        if raw is not None:
            txn.changed = True
            txn.delete(key, engine.meta)
            dropped.append(_item(format_id(key[1:]), decode_kept(raw)))
    return dropped
