"""What the load writes down: an intent before each call, an outcome once it has returned."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import msgspec


class NewItem(msgspec.Struct, array_like=True, frozen=True):
    """One message of an enqueue or upsert. `tag` names it in its payload; the id may not be known yet."""

    tag: str
    version: int
    given_id: str | None = None
    dedup_id: str | None = None
    expires: bool = False


class Delivered(msgspec.Struct, array_like=True, frozen=True):
    """One delivery: `token` is the number of its lease event."""

    id: str
    token: int
    tag: str
    attempts: int


class Intent(msgspec.Struct, tag="i", kw_only=True, omit_defaults=True):
    """A call about to be made. `n` counts the calls of one thread."""

    n: int
    op: str
    queue: str = ""
    items: list[NewItem] = []
    leases: list[Delivered] = []
    ids: list[str] = []
    target: str = ""
    name: str = ""
    number: int = 0
    value: str = ""


class Outcome(msgspec.Struct, tag="o", kw_only=True, omit_defaults=True):
    """A call that has returned: each item's error ("" for none), or the error that it raised."""

    n: int
    errors: list[str] = []
    ids: list[str | None] = []
    duplicates: list[bool] = []
    deliveries: list[Delivered] = []
    number: int = 0


class Synced(msgspec.Struct, tag="s"):
    """A sync that succeeded: how long each log file was when it began."""

    sizes: dict[str, int]


class Failed(msgspec.Struct, tag="f"):
    """The load met an error that it did not expect."""

    what: str


Record = Intent | Outcome | Synced | Failed

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Record).decode


class Log(Protocol):
    """Where one thread's records go."""

    def write(self, record: Record) -> None: ...


class FileLog:
    """A file of one thread. A write is in the system's hands when it returns: SIGKILL cannot take it back."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, record: Record) -> None:
        os.write(self._file, _encode(record) + b"\n")


class ListLog:
    """Records in memory, for loads in the test's own process."""

    def __init__(self) -> None:
        self.records: list[Record] = []

    def write(self, record: Record) -> None:
        self.records.append(record)


def read_log(path: Path) -> Iterator[Record]:
    """The records of a file, if the child lived to make it. A torn last line was never written."""
    if not path.exists():
        return
    for line in path.read_bytes().split(b"\n")[:-1]:
        yield _decode(line)


def payload(tag: str, version: int, filler: bytes) -> bytes:
    """Bytes that say whose they are and prove that they are whole."""
    raw = f"{tag} {version} ".encode() + filler
    return raw + zlib.crc32(raw).to_bytes(4, "big")


def parse_payload(raw: bytes) -> tuple[str, int]:
    """(tag, version), or ValueError for bytes that no load wrote."""
    if zlib.crc32(raw[:-4]) != int.from_bytes(raw[-4:], "big"):
        raise ValueError("payload fails its checksum")
    tag, version, _ = raw.split(b" ", 2)
    return tag.decode(), int(version)
