"""Users' own journals: append, scan, and find by id. The system journal `_penstock` is one of them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import msgspec

from penstock.backends.embedded import keys
from penstock.backends.embedded.engine import Engine, Transaction
from penstock.backends.embedded.history import frames
from penstock.backends.embedded.keys import Meta
from penstock.backends.embedded.numbers import next_number
from penstock.backends.embedded.rows import MARK, packed, unpacked
from penstock.clock import to_ns
from penstock.codec.entry import (
    EntryFilter,
    check_entry,
    chunked,
    decode_entries,
    decode_entry_head,
    encode_entries,
)
from penstock.errors import InvalidMessage, StorageCorrupt
from penstock.event import SYSTEM_WORLD as SYSTEM_WORLD
from penstock.event import Entry
from penstock.message import checked_name, format_id, parse_id
from penstock.settings import MAX_DURATION_S, world_limits


class _Numbers(msgspec.Struct, array_like=True):
    """A world's numbers, written with every append. `vectors` counts all ever; `base_*` what was trimmed."""

    number: int
    next_seq: int = 1
    base_seq: int = 0
    vectors: int = 0
    base_vectors: int = 0
    bytes: int = 0


class World(_Numbers, array_like=True):
    """The same, and what the sweep keeps of it."""

    retention_s: Annotated[float, msgspec.Meta(gt=0, le=MAX_DURATION_S)] | None = None
    max_bytes: int | None = None


_decode_world = msgspec.msgpack.Decoder(World).decode
_decode_numbers = msgspec.msgpack.Decoder(_Numbers).decode


def decode_world(raw: bytes) -> World:
    return unpacked(raw, _decode_world, "world")


class Worlds:
    """All worlds of a store."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._names: dict[int, str] = {}

    def append(self, world: str, entries: Sequence[Entry]) -> list[str]:
        if world == SYSTEM_WORLD:
            raise InvalidMessage(f"world {SYSTEM_WORLD!r} is Penstock's own; choose another name")
        entries = list(entries)
        for entry in entries:
            if not isinstance(entry, Entry):
                raise InvalidMessage(f"an entry must be an Entry, not {type(entry).__name__}")
            check_entry(entry)
        with self._engine.lock, self._engine.transaction() as txn:
            ids = self.append_in(txn, world, entries)
            txn.answered(ids)
            return ids

    def append_in(self, txn: Transaction, world: str, entries: Sequence[Entry]) -> list[str]:
        """Append as part of another change; once a transaction, for it reads the store as it was."""
        name = checked_name(world, "world name")
        if not entries:
            return []
        engine = self._engine
        txn.changed = True
        row = self.load(world) or World(self._new_number(txn))
        ids = [engine.ids.one(txn.now_ns) for _ in entries]
        at = 0
        for chunk in chunked(entries):
            raw_ids = ids[at : at + len(chunk)]
            at += len(chunk)
            for seq, raw_id in enumerate(raw_ids, start=row.next_seq):
                txn.put(raw_id, MARK + keys.u32(row.number) + keys.u64(seq), engine.entries)
            row.vectors += sum(entry.vector is not None for entry in chunk)
            raw = encode_entries(chunk, raw_ids, row.next_seq, txn.now_ns, row.vectors)
            row.next_seq += len(chunk)
            row.bytes += len(raw)
            txn.put(keys.journal(row.number, row.next_seq - 1), raw, engine.journal)
        txn.put(keys.meta(Meta.WORLD, name), packed(row), engine.meta)
        return [format_id(raw_id) for raw_id in ids]

    def _new_number(self, txn: Transaction) -> int:
        self._engine.check_catalogue()
        return next_number(txn)

    def scan(self, world: str, **filters: Any) -> list[Entry]:
        """Entries in append order that pass the filters: see `EntryFilter`."""
        row, wanted = self.load(world), EntryFilter(**filters)
        if row is None:
            return []
        found = frames(self._engine, row.number, max(wanted.after, row.base_seq))
        return wanted.select((raw for _, raw in found), world)

    def get(self, ids: Sequence[str]) -> list[Entry | None]:
        """Entries of any worlds, in the order of the ids; None for what is not there."""
        engine = self._engine
        raw_ids = [parse_id(text) for text in ids]
        places: dict[int, set[int]] = {}
        for raw in engine.kv.get_many(raw_ids, engine.entries):
            if raw is not None:
                number, seq = int.from_bytes(raw[1:5], "big"), int.from_bytes(raw[5:13], "big")
                places.setdefault(number, set()).add(seq)
        found = {entry.id: entry for number, seqs in places.items() for entry in self._entries(number, seqs)}
        return [found.get(format_id(raw_id)) for raw_id in raw_ids]

    def _entries(self, number: int, seqs: set[int]) -> Iterator[Entry]:
        """Entries of one world by their numbers; each frame is read once."""
        if number not in self._names:
            self._names = {row.number: name for name, row in self.all()}
        if number not in self._names:
            raise StorageCorrupt(f"world {number} is not known by a name; run check")
        read_to = 0
        for seq in sorted(seqs):
            if seq > read_to:
                _, frame = next(frames(self._engine, number, seq - 1), (b"", b""))
                if not frame:
                    return
                count, first_seq, _, _ = decode_entry_head(frame)
                read_to = max(seq, first_seq + count - 1)
                yield from decode_entries(frame, self._names[number], seqs)

    def stats(self, world: str) -> dict[str, int]:
        row = self.load(world) or World(0)
        return {
            "entries": row.next_seq - 1 - row.base_seq,
            "vectors": row.vectors - row.base_vectors,
            "first_seq": row.base_seq + 1,
            "last_seq": row.next_seq - 1,
            "bytes": row.bytes,
        }

    def configure(self, world: str, retention_s: float | None, max_bytes: int | None) -> None:
        """What the sweep keeps of a world; everything, unless this says otherwise."""
        key = keys.meta(Meta.WORLD, checked_name(world, "world name"))
        limits = world_limits(retention_s, max_bytes)
        with self._engine.lock, self._engine.transaction() as txn:
            txn.changed = True
            raw = self._engine.kv.get(key, self._engine.meta)
            # Whatever limits it has now, they are replaced: they need not be sound.
            old = _Numbers(self._new_number(txn)) if raw is None else unpacked(raw, _decode_numbers, "world")
            txn.put(key, packed([*msgspec.structs.astuple(old), *limits]), self._engine.meta)
            txn.answered(None)

    def trim(self, txn: Transaction, world: str, limit: int) -> int:
        """Remove up to so many frames that are past the world's age or size."""
        engine = self._engine
        row = self.load(world)
        if row is None:
            return 0
        too_old_ns = txn.now_ns - to_ns(row.retention_s) if row.retention_s is not None else 0
        removed = 0
        for key, raw in frames(engine, row.number, row.base_seq):
            count, first_seq, at_ns, vectors = decode_entry_head(raw)
            too_big = row.max_bytes is not None and row.bytes > row.max_bytes
            if removed == limit or not (at_ns < too_old_ns or too_big):
                break
            txn.changed = True
            for entry in decode_entries(raw, world):
                txn.delete(parse_id(entry.id or ""), engine.entries)
            txn.delete(key, engine.journal)
            row.base_seq, row.base_vectors = first_seq + count - 1, vectors
            row.bytes -= len(raw)
            removed += 1
        if removed:
            txn.put(keys.meta(Meta.WORLD, world.encode()), packed(row), engine.meta)
        return removed

    def all(self) -> Iterator[tuple[str, World]]:
        """Every world's name and numbers; one whose row is damaged is left to a repair."""
        prefix = keys.meta(Meta.WORLD)
        for key, raw in self._engine.kv.scan(self._engine.meta, prefix, keys.after_prefix(prefix)):
            with contextlib.suppress(StorageCorrupt, UnicodeDecodeError):
                yield key[1:].decode(), decode_world(raw)

    def load(self, world: str) -> World | None:
        raw = self._engine.kv.get(keys.meta(Meta.WORLD, checked_name(world, "world name")), self._engine.meta)
        return None if raw is None else decode_world(raw)
