"""Staged rows on disk: folders, files and ids of a bulk write before it is committed.

A *chunk* is some rows of one queue in three files: a table of bodies, a table of ready rows, each exactly as
the store will have it, and what an owner must know of them to take them in. A small one is a single file,
with its bodies and ready rows in it. None of them is looked at before a commit names it.
"""

from __future__ import annotations

import hashlib
import os
import re
import zlib
from collections.abc import Iterable
from pathlib import Path

import msgspec

from penstock.backends.bulk import Chunk, Txn, WriteTicket
from penstock.backends.embedded import keys
from penstock.backends.embedded.rows import packed, unpacked
from penstock.codec.frame import CHECKSUM, Counted
from penstock.errors import InvalidMessage, StorageCorrupt, StorageError
from penstock.kv.base import Row
from penstock.kv.failures import translated
from penstock.message import MAX_COUNT, checked_name

#: In a store's folder; each write has a folder of its own below.
STAGING = "staging"
MESSAGES, READY, ROWS = ".messages", ".ready", ".rows"
FILES = (MESSAGES, READY, ROWS)

ID_BYTES = 16
#: Of an id: which partition of its job it is of, and which row of that.
PARTITION_BITS, ROW_BITS = 20, 28
_PREFIX_BYTES = 10
_TICKET_ID = re.compile("[0-9a-f]{32}")


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


def check_txn(txn: Txn) -> None:
    checked_name(txn.app, "txnAppId")
    version = txn.version
    if isinstance(version, bool) or not isinstance(version, int) or not 0 <= version <= MAX_COUNT:
        raise InvalidMessage(f"txnVersion is {version!r:.40}; accepted: whole numbers from 0 to 2**63 - 1")


def queue_number(ticket: WriteTicket) -> int:
    """The number of the queue that a write is for; 0, which none has, where each row names its own."""
    return 0 if ticket.queue is None else ticket.queues[ticket.queue].number


def id_prefix(txn: Txn, queue: int) -> bytes:
    """The start of every id that a job makes: a UUID of version 8, the same whenever it is tried again."""
    raw = bytearray(
        hashlib.blake2b(
            txn.app.encode() + b"\0" + txn.version.to_bytes(8, "big") + keys.u32(queue),
            digest_size=_PREFIX_BYTES,
            person=b"penstock row",
        ).digest()
    )
    raw[6] = 0x80 | raw[6] & 0x0F
    raw[8] = 0x80 | raw[8] & 0x3F
    return bytes(raw)


def first_low(partition: int) -> int:
    """The last six bytes of the id of a partition's first row, as a number."""
    if not 0 <= partition < 1 << PARTITION_BITS:
        raise InvalidMessage(f"partition {partition}; accepted: 0 to {(1 << PARTITION_BITS) - 1}")
    return partition << ROW_BITS


def folder_of(ticket: WriteTicket, txn: Txn) -> str:
    """The name of the folder that rows of a job are staged in."""
    if not _TICKET_ID.fullmatch(ticket.id):
        raise InvalidMessage(f"ticket {ticket.id!r:.60} is none that begin_write has given")
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
