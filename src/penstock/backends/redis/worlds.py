"""Users' own journals on Redis: append, scan, and find by id. The system journal is one of them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from penstock.backends.redis.connecting import Arg, pairs
from penstock.backends.redis.engine import CHANGED, Engine
from penstock.backends.redis.scripts import script
from penstock.backends.redis.seals import FRAMES
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
from penstock.event import SYSTEM_WORLD, Entry
from penstock.message import checked_name, format_id, parse_id
from penstock.settings import world_limits

#: Frames that are read at a time.
PAGE = 100


class World(msgspec.Struct, array_like=True):
    """A world's numbers. `vectors` counts all ever; `base_*` what was trimmed."""

    next_seq: int = 1
    base_seq: int = 0
    vectors: int = 0
    base_vectors: int = 0
    bytes: int = 0
    retention_s: float | None = None
    max_bytes: int | None = None


_decode = msgspec.msgpack.Decoder(World).decode


def frame_key(world: str, last_seq: int) -> bytes:
    """What binds a frame to its place."""
    return world.encode() + last_seq.to_bytes(8, "big")


def _packed(world: World) -> bytes:
    return b"\x01" + msgspec.msgpack.encode(world)


def unpacked_world(raw: bytes | None) -> World:
    if raw is None:
        return World()
    try:
        return _decode(raw[1:])
    except msgspec.DecodeError as error:
        raise StorageCorrupt(f"world does not decode: {error}") from error


class Worlds:
    """All worlds of a store."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        #: Appends of this process take turns: they would only fence each other off.
        self._turn = threading.Lock()

    def append(self, world: str, entries: Sequence[Entry]) -> list[str]:
        if world == SYSTEM_WORLD:
            raise InvalidMessage(f"world {SYSTEM_WORLD!r} is Penstock's own; choose another name")
        checked_name(world, "world name")
        entries = list(entries)
        for entry in entries:
            if not isinstance(entry, Entry):
                raise InvalidMessage(f"an entry must be an Entry, not {type(entry).__name__}")
            check_entry(entry)
        self._record(world)  # Also refuses where the store is closed.
        if not entries:
            return []
        engine = self._engine
        ids = engine.new_ids(len(entries))
        with self._turn:
            while True:
                args = self.appending(world, entries, ids)
                reply = engine.server.run(script("world_append"), self.keys(world), [*engine.head(), *args])
                if reply[0] != CHANGED:
                    return [format_id(raw_id) for raw_id in ids]
                engine.seals.look()

    def keys(self, world: str) -> tuple[bytes, bytes, bytes, bytes]:
        keys = self._engine.keys
        return keys.worlds, keys.entries, keys.world(world), keys.store

    def appending(self, world: str, entries: Sequence[Entry], ids: Sequence[bytes]) -> list[Arg]:
        """What a script needs to append these: fenced by the record as it is now."""
        engine = self._engine
        name, at_ns, fence = world.encode(), engine.now_us() * 1000, engine.seals.fence
        raw = self._raw(world)
        row = unpacked_world(raw)
        frames: list[Arg] = []
        places: list[Arg] = []
        at = 0
        for chunk in chunked(entries):
            raw_ids = list(ids[at : at + len(chunk)])
            at += len(chunk)
            for seq, raw_id in enumerate(raw_ids, start=row.next_seq):
                places += (raw_id, b"\x01" + seq.to_bytes(8, "big") + name)
            row.vectors += sum(entry.vector is not None for entry in chunk)
            frame = encode_entries(chunk, raw_ids, row.next_seq, at_ns, row.vectors)
            row.next_seq += len(chunk)
            frame = engine.seals.seal(FRAMES, frame_key(world, row.next_seq - 1), frame)
            row.bytes += len(frame)
            frames += (b"%d-0" % (row.next_seq - 1), frame)
        return [fence, name, raw or b"", _packed(row), len(frames) // 2, len(entries), *frames, *places]

    def scan(self, world: str, **filters: Any) -> list[Entry]:
        """Entries in append order that pass the filters: see `EntryFilter`."""
        self._record(world)
        wanted = EntryFilter(**filters)
        return wanted.select(self._frames(world, wanted.after), world)

    def _frames(self, world: str, after: int, page: int = PAGE) -> Iterator[bytes]:
        """Frames that have entries after a seq, in order, opened."""
        for _, raw in self.opened_frames(world, after, page):
            yield raw

    def opened_frames(self, world: str, after: int, page: int = PAGE) -> Iterator[tuple[int, bytes]]:
        """The same, each with its last seq."""
        for seq, raw in self.stored_frames(world, after, page):
            yield seq, self._engine.seals.open(FRAMES, frame_key(world, seq), raw)

    def stored_frames(self, world: str, after: int, page: int = PAGE) -> Iterator[tuple[int, bytes]]:
        """The same as they are stored, each with its last seq."""
        stream = self._engine.keys.world(world)
        start = b"%d-0" % (after + 1)
        while rows := self._engine.server.command("XRANGE", stream, start, "+", "COUNT", page):
            for entry_id, fields in rows:
                seq = int(entry_id.split(b"-")[0])
                yield seq, fields[1] if isinstance(fields, list) else fields[b"f"]
                start = b"%d-0" % (seq + 1)

    def get(self, ids: Sequence[str]) -> list[Entry | None]:
        """Entries of any worlds, in the order of the ids; None for what is not there."""
        raw_ids = [parse_id(text) for text in ids]
        server = self._engine.server
        places: dict[str, set[int]] = {}
        found = server.command("HMGET", self._engine.keys.entries, *raw_ids) if raw_ids else []
        for raw in found:
            if raw is not None:
                places.setdefault(raw[9:].decode(), set()).add(int.from_bytes(raw[1:9], "big"))
        entries = {
            entry.id: entry for world, seqs in places.items() for entry in self._entries(world, sorted(seqs))
        }
        return [entries.get(format_id(raw_id)) for raw_id in raw_ids]

    def _entries(self, world: str, seqs: list[int]) -> Iterator[Entry]:
        """Entries of one world by their numbers; each frame is read once."""
        read_to = 0
        for seq in seqs:
            if seq > read_to:
                frame = next(self._frames(world, seq - 1, 1), b"")
                if not frame:
                    return
                count, first_seq, _, _ = decode_entry_head(frame)
                read_to = max(seq, first_seq + count - 1)
                yield from decode_entries(frame, world, seqs)

    def stats(self, world: str) -> dict[str, int]:
        row = self._record(world)
        return {
            "entries": row.next_seq - 1 - row.base_seq,
            "vectors": row.vectors - row.base_vectors,
            "first_seq": row.base_seq + 1,
            "last_seq": row.next_seq - 1,
            "bytes": row.bytes,
        }

    def configure(self, world: str, retention_s: float | None, max_bytes: int | None) -> None:
        """What the sweep keeps of a world; everything, unless this says otherwise."""
        name = checked_name(world, "world name")
        kept_s, size = world_limits(retention_s, max_bytes)
        engine = self._engine
        with self._turn:
            while True:
                raw = self._raw(world)
                row = msgspec.structs.replace(unpacked_world(raw), retention_s=kept_s, max_bytes=size)
                args: list[Arg] = [engine.seals.fence, name, raw or b"", _packed(row), 0, 0]
                reply = engine.server.run(script("world_append"), self.keys(world), [*engine.head(), *args])
                if reply[0] != CHANGED:
                    return
                engine.seals.look()

    def trim(self, world: str, now_us: int, limit: int) -> int:
        """Remove up to so many frames that are past the world's age or size."""
        raw = self._raw(world)
        row = unpacked_world(raw)
        too_old_ns = now_us * 1000 - to_ns(row.retention_s) if row.retention_s is not None else 0
        ids: list[Arg] = []
        removed = 0
        for seq, stored in self.stored_frames(world, row.base_seq):
            frame = self._engine.seals.open(FRAMES, frame_key(world, seq), stored)
            count, first_seq, at_ns, vectors = decode_entry_head(frame)
            too_big = row.max_bytes is not None and row.bytes > row.max_bytes
            if removed == limit or not (at_ns < too_old_ns or too_big):
                break
            ids += (parse_id(entry.id or "") for entry in decode_entries(frame, world))
            row.base_seq, row.base_vectors = first_seq + count - 1, vectors
            row.bytes -= len(stored)
            removed += 1
        if not removed:
            return 0
        args = [*self._engine.head(), world.encode(), raw or b"", _packed(row), removed, *ids]
        reply = self._engine.server.run(script("world_trim"), self.keys(world), args)
        return 0 if reply[0] == CHANGED else removed

    def limited(self) -> list[str]:
        """Worlds that have something to trim by."""
        raw = self._engine.server.command("HGETALL", self._engine.keys.worlds)
        out = []
        for name, record in pairs(raw):
            with contextlib.suppress(StorageCorrupt):
                row = unpacked_world(record)
                if row.retention_s is not None or row.max_bytes is not None:
                    out.append(name.decode())
        return sorted(out)

    def problems(self) -> Iterator[tuple[str, str]]:
        """World and what is wrong with it."""
        raw = self._engine.server.command("HGETALL", self._engine.keys.worlds)
        for name, record in pairs(raw):
            world = name.decode()
            try:
                row = unpacked_world(record)
                seq, size = row.base_seq, 0
                for last, stored in self.stored_frames(world, row.base_seq):
                    frame = self._engine.seals.open(FRAMES, frame_key(world, last), stored)
                    entries = list(decode_entries(frame, world))
                    if entries[0].seq != seq + 1:
                        yield world, f"{entries[0].seq} follows {seq}"
                    seq, size = entries[-1].seq, size + len(stored)
                if (seq, size) != (row.next_seq - 1, row.bytes) and self._raw(world) == record:
                    yield world, f"{seq} entries of {size} bytes, not {row.next_seq - 1} of {row.bytes}"
            except StorageCorrupt as error:
                yield world, str(error)

    def _raw(self, world: str) -> bytes | None:
        raw: Any = self._engine.server.command("HGET", self._engine.keys.worlds, world.encode())
        return None if raw is None else bytes(raw)

    def record(self, world: str) -> World:
        return unpacked_world(self._raw(world))

    @staticmethod
    def sized(record: World, size_bytes: int) -> tuple[bytes, bytes]:
        """A record as it is stored, and as it is once its frames have so many bytes."""
        return _packed(record), _packed(msgspec.structs.replace(record, bytes=size_bytes))

    def _record(self, world: str) -> World:
        checked_name(world, "world name")
        return unpacked_world(self._raw(world))
