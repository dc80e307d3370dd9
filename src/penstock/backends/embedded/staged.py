"""Staged rows on disk: folders, files and ids of a bulk write before it is committed.

A *chunk* is some rows of one queue in three files: a table of bodies, a table of ready rows, each exactly as
the store will have it, and what an owner must know of them to take them in. A small one is a single file,
with its bodies and ready rows in it. None of them is looked at before a commit names it.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable
from pathlib import Path

import msgspec

from penstock.backends.bulk import Chunk, Txn, WriteTicket
from penstock.backends.embedded.rows import packed, unpacked
from penstock.backends.tables.jobs import check_ticket
from penstock.codec.frame import CHECKSUM, Counted
from penstock.errors import InvalidMessage, StorageCorrupt, StorageError
from penstock.kv.base import Row
from penstock.kv.failures import translated

#: In a store's folder; each write has a folder of its own below.
STAGING = "staging"
MESSAGES, READY, ROWS = ".messages", ".ready", ".rows"
FILES = (MESSAGES, READY, ROWS)

ID_BYTES = 16


class Waiting(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A row that is not ready at once: its place among the chunk's, and what its state row will say."""

    place: int
    visible_at_ns: int
    expires_at_ns: int
    weight: int
    lane: bytes


class Rows(msgspec.Struct, array_like=True):
    """What a chunk has, besides its tables: ids in the order of its rows, and where they belong.

    Where they are consecutive, there is only the first of them, and `counted` has how many they are.
    """

    ids: bytes
    #: lane, order and id of its first row, rows.
    lanes: list[tuple[bytes, bytes, int]]
    #: Of the ready ones.
    last_order_ns: int
    delayed: list[Waiting] = []
    #: Ready ones that expire: place, when.
    expiring: list[tuple[int, int]] = []
    #: Of a chunk without tables: bodies in the order of ids, and ready rows without the queue's number.
    bodies: list[bytes] = []
    ready: list[Row] = []
    counted: int = 0

    @property
    def count(self) -> int:
        return self.counted or len(self.ids) // ID_BYTES

    def all_ids(self) -> list[bytes]:
        if self.counted:
            return Counted(self.ids, self.counted).some(0, self.counted)
        return [self.ids[at : at + ID_BYTES] for at in range(0, len(self.ids), ID_BYTES)]

    def some_ids(self, start: int, stop: int) -> bytes | Counted:
        """As a journal takes them."""
        if self.counted:
            return Counted(self.ids, self.counted).part(start, stop)
        return self.ids[start * ID_BYTES : stop * ID_BYTES]

    def id_at(self, place: int) -> bytes:
        if self.counted:
            return Counted(self.ids, self.counted).some(place, place + 1)[0]
        return self.ids[place * ID_BYTES : (place + 1) * ID_BYTES]


_decode_rows = msgspec.msgpack.Decoder(Rows).decode


def folder_of(ticket: WriteTicket, txn: Txn) -> str:
    """The name of the folder that rows of a job are staged in."""
    check_ticket(ticket)
    return f"{ticket.id}-{txn.version}"


def ticket_of(folder: str) -> str:
    """The id of the ticket that a folder of that name belongs to."""
    return folder.partition("-")[0]


def staging(store: str) -> Path:
    return Path(store, STAGING)


def has_tables(chunk: Chunk) -> bool:
    return chunk.sizes_bytes[0] > 0


def check_there(folder: Path, chunk: Chunk) -> None:
    """Raise `StorageCorrupt` for a chunk that is not wholly there."""
    if os.path.basename(chunk.name) != chunk.name or len(chunk.sizes_bytes) != len(FILES):
        raise InvalidMessage(f"staged chunk {chunk.name!r:.80} is not the name of one")
    for ending, size in zip(FILES, chunk.sizes_bytes, strict=True):
        path = folder / (chunk.name + ending)
        found = path.stat().st_size if path.exists() else 0
        if found != size:
            raise StorageCorrupt(
                f"staged file {path} has {found} bytes, not {size}: it was damaged or swept away; "
                "run the job again"
            )


def write_rows(path: Path, rows: Rows) -> int:
    """How many bytes it has."""
    raw = packed(rows)
    raw += CHECKSUM.pack(zlib.crc32(raw))
    try:
        with path.open("xb") as file:
            file.write(raw)
    except OSError as error:
        raise translated(error, str(path)) from error
    return len(raw)


def files_of(folder: Path, chunk: Chunk) -> list[Path]:
    sizes = zip(FILES, chunk.sizes_bytes, strict=True)
    return [folder / (chunk.name + ending) for ending, size in sizes if size]


def sync_all(paths: Iterable[Path]) -> None:
    """Files and folders of a write that is staged."""
    for path in paths:
        try:
            sync(path)
        except OSError as error:
            raise translated(error, str(path)) from error


def read_rows(folder: Path, chunk: Chunk) -> Rows:
    """Those of a chunk whose files were found to be there."""
    path = folder / (chunk.name + ROWS)
    try:
        raw = path.read_bytes()
    except OSError as error:  # Nothing is wrong with the file: too many are open, perhaps.
        raise StorageError(f"staged file {path} cannot be read: {error.strerror}; try again") from error
    if raw[-CHECKSUM.size :] != CHECKSUM.pack(zlib.crc32(raw[: -CHECKSUM.size])):
        raise StorageCorrupt(f"staged file {path} is damaged: run the job again")
    rows = unpacked(raw[: -CHECKSUM.size], _decode_rows, f"staged rows {path.name}")
    if rows.count != chunk.rows or len(rows.ids) != (1 if rows.counted else chunk.rows) * ID_BYTES:
        raise StorageCorrupt(f"staged file {path} has other rows than it should: run the job again")
    return rows


def make_folder(path: Path) -> None:
    path.mkdir(mode=0o700, parents=True, exist_ok=True)


def sync(path: Path) -> None:
    """A file, or a folder: then the names in it survive a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
