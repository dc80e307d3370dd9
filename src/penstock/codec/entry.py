"""World frames: the entries of one append, in columns, under one checksum."""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Collection, Container, Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from penstock.codec.sealed import refuse_sealed
from penstock.errors import InvalidMessage, StorageCorrupt
from penstock.event import Entry
from penstock.message import MAX_HEADERS_BYTES, MAX_PAYLOAD_BYTES, checked_name, format_id, plain

ENTRY_VERSION = 1
MAX_VECTOR = 65_536

#: What a frame holds at most, unless one entry alone is larger: finding one never reads much more.
FRAME_BYTES = 1 << 20
FRAME_ENTRIES = 1000

#: version, entries, first seq, time, vectors in this frame and before it, bytes of the names column.
HEAD = struct.Struct("<BIQQQI")
CHECKSUM = struct.Struct("<I")

_Names = list[tuple[str, list[str], list[str]]]
_encode_names = msgspec.msgpack.Encoder(enc_hook=plain).encode
_decode_names = msgspec.msgpack.Decoder(_Names).decode


def check_entry(entry: Entry) -> None:
    """Refuse what is outside the documented limits, naming the limit."""
    checked_name(entry.kind, "entry kind")
    if not isinstance(entry.body, bytes) or len(entry.body) > MAX_PAYLOAD_BYTES:
        raise InvalidMessage(f"entry body must be bytes of at most {MAX_PAYLOAD_BYTES}")
    size = 0
    for what, names in (("label", entry.labels), ("flag", entry.flags)):
        if not isinstance(names, list | tuple):
            raise InvalidMessage(f"entry {what}s must be a list of str")
        size += sum(len(checked_name(name, what)) for name in names)
    if size > MAX_HEADERS_BYTES:
        raise InvalidMessage(f"labels and flags have {size} bytes together; the limit is {MAX_HEADERS_BYTES}")
    vector = entry.vector
    if vector is not None and not (
        isinstance(vector, list | tuple)
        and 1 <= len(vector) <= MAX_VECTOR
        and all(_is_finite(x) for x in vector)
    ):
        raise InvalidMessage(f"entry vector must be 1 to {MAX_VECTOR} finite numbers, or None")


def _is_finite(number: object) -> bool:
    try:
        return isinstance(number, int | float) and math.isfinite(number)
    except OverflowError:  # A whole number beyond every float.
        return False


def encode_entries(entries: list[Entry], ids: list[bytes], first_seq: int, at_ns: int, vectors: int) -> bytes:
    names = _encode_names([(e.kind, e.labels, e.flags) for e in entries])
    dims = [len(e.vector or ()) for e in entries]
    count = len(entries)
    raw = b"".join(
        (
            HEAD.pack(ENTRY_VERSION, count, first_seq, at_ns, vectors, len(names)),
            *ids,
            struct.pack(f"<{count}I", *(len(e.body) for e in entries)),
            struct.pack(f"<{count}I", *dims),
            names,
            *(struct.pack(f"<{len(e.vector)}d", *e.vector) for e in entries if e.vector),
            *(e.body for e in entries),
        )
    )
    return raw + CHECKSUM.pack(zlib.crc32(raw))


def decode_entry_head(raw: bytes) -> tuple[int, int, int, int]:
    """(count, first seq, time, vectors so far), unchecked."""
    refuse_sealed(raw, "world frame")
    try:
        version, count, first_seq, at_ns, vectors, _ = HEAD.unpack_from(raw)
    except struct.error as error:
        raise StorageCorrupt(f"world frame of {len(raw)} bytes has no head") from error
    if version != ENTRY_VERSION:
        raise StorageCorrupt(f"world frame has version {version}; this Penstock reads {ENTRY_VERSION}")
    return count, first_seq, at_ns, vectors


class EntryFrame(NamedTuple):
    """A frame in its columns; ids, vectors and bodies lie side by side."""

    first_seq: int
    at_ns: int
    ids: bytes
    lengths: tuple[int, ...]
    dims: tuple[int, ...]
    names: _Names
    vectors: bytes
    bodies: bytes


def decode_entry_frame(raw: bytes, world: str) -> EntryFrame:
    """A whole frame, after verifying its checksum."""
    refuse_sealed(raw, f"frame of world {world!r}")
    if len(raw) < HEAD.size + 4 or CHECKSUM.unpack_from(raw, len(raw) - 4)[0] != zlib.crc32(raw[:-4]):
        raise StorageCorrupt(f"frame of world {world!r}, {len(raw)} bytes, fails its checksum")
    count, first_seq, at_ns, _ = decode_entry_head(raw)
    names_bytes = HEAD.unpack_from(raw)[5]
    at = HEAD.size
    damaged = StorageCorrupt(f"frame of world {world!r} at seq {first_seq} does not decode")
    if at + 24 * count + names_bytes + CHECKSUM.size > len(raw):
        raise damaged
    try:
        ids = raw[at : at + 16 * count]
        at += 16 * count
        lengths = struct.unpack_from(f"<{count}I", raw, at)
        dims = struct.unpack_from(f"<{count}I", raw, at + 4 * count)
        at += 8 * count
        names = _decode_names(raw[at : at + names_bytes])
        at += names_bytes
    except (struct.error, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise damaged from error
    bodies_at = at + 8 * sum(dims)
    if len(names) != count or bodies_at + sum(lengths) + CHECKSUM.size != len(raw):
        raise damaged
    bodies = raw[bodies_at : -CHECKSUM.size]
    return EntryFrame(first_seq, at_ns, ids, lengths, dims, names, raw[at:bodies_at], bodies)


def decode_entries(raw: bytes, world: str, seqs: Container[int] | None = None) -> Iterator[Entry]:
    """Every entry of a frame, or those of some numbers, in order, after verifying its checksum."""
    first_seq, at_ns, ids, lengths, dims, names, vectors, bodies = decode_entry_frame(raw, world)
    vector_at = body_at = 0
    for place, (kind, labels, flags) in enumerate(names):
        seq, dim, length = first_seq + place, dims[place], lengths[place]
        if seqs is None or seq in seqs:
            vector = list(struct.unpack_from(f"<{dim}d", vectors, vector_at)) if dim else None
            body, raw_id = bodies[body_at : body_at + length], ids[16 * place : 16 * place + 16]
            yield Entry(kind, body, labels, flags, vector, format_id(raw_id), world, seq, at_ns)
        vector_at += 8 * dim
        body_at += length


class EntryFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which entries a scan is for: one of the kinds, all of the labels and all of the flags."""

    kinds: Collection[str] = ()
    labels: Collection[str] = ()
    flags: Collection[str] = ()
    since_ns: int | None = None
    until_ns: int | None = None
    after: int = 0
    limit: int | None = None

    def select(self, frames: Iterable[bytes], world: str) -> list[Entry]:
        """Of a world's frames, in order; no more of them are read than it takes."""
        out: list[Entry] = []
        if self.limit == 0:
            return out
        labels, flags = set(self.labels), set(self.flags)
        for raw in frames:
            if not self._in_time(decode_entry_head(raw)[2]):
                continue
            for entry in decode_entries(raw, world):
                if (
                    entry.seq > self.after
                    and (not self.kinds or entry.kind in self.kinds)
                    and labels.issubset(entry.labels)
                    and flags.issubset(entry.flags)
                ):
                    out.append(entry)
                    if len(out) == self.limit:
                        return out
        return out

    def _in_time(self, at_ns: int) -> bool:
        return (self.since_ns is None or at_ns >= self.since_ns) and (
            self.until_ns is None or at_ns < self.until_ns
        )


def chunked(entries: Sequence[Entry]) -> Iterator[list[Entry]]:
    """What goes into a frame each."""
    chunk: list[Entry] = []
    size = 0
    for entry in entries:
        more = len(entry.body) + 8 * len(entry.vector or ()) + len(entry.kind)
        more += sum(map(len, entry.labels)) + sum(map(len, entry.flags))
        if chunk and (size + more > FRAME_BYTES or len(chunk) == FRAME_ENTRIES):
            yield chunk
            chunk, size = [], 0
        chunk.append(entry)
        size += more
    if chunk:
        yield chunk
