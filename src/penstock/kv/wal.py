"""RocksDB's write-ahead logs, looked at before the database is: one kind of damage makes it hang.

A log is blocks of 32 KiB of records: checksum u32, length u16, type u8, data, all little-endian. The types
5 to 8 and 11 belong to recycled logs, which no store here has. Met in a log all the same, as garbage behind
a torn tail or by a flipped bit, one of them sends RocksDB's reader into an endless loop (its issue 13333).
Recovery to a point in time would stop there anyway: so the log is cut there, and the rest is set aside.
"""

from __future__ import annotations

import logging
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from penstock.errors import StorageError

log = logging.getLogger("penstock")

SET_ASIDE = "lost"

_BLOCK = 32_768
_HEADER = struct.Struct("<IHB")
_RECYCLED = frozenset((5, 6, 7, 8, 11))


def mend_logs(folder: str | os.PathLike[str]) -> list[Path]:
    """Cut every log of a closed store before a record that RocksDB would hang on; what was set aside."""
    try:
        return [kept for path in _logs(folder) if (kept := _mend(path)) is not None]
    except OSError as error:
        raise StorageError(f"a log of the store in {folder} cannot be read: {error}") from error


def _logs(folder: str | os.PathLike[str]) -> list[Path]:
    """The logs, oldest first: by number, for from a million on it has another digit."""
    logs = (path for path in Path(folder).glob("*.log") if path.stem.isdecimal())
    return sorted(logs, key=lambda path: int(path.stem))


def _mend(path: Path) -> Path | None:
    raw = path.read_bytes()
    at = first_recycled(raw)
    if at is None or _in_use(path.parent):
        return None
    return _cut(path, raw, at)


def _cut(path: Path, raw: bytes, at: int) -> Path:
    kept = path.parent / SET_ASIDE / f"{path.name}.{at}"
    kept.parent.mkdir(exist_ok=True)
    with kept.open("wb") as file:
        file.write(raw[at:])
        file.flush()
        os.fsync(file.fileno())
    with path.open("r+b") as file:
        file.truncate(at)
        os.fsync(file.fileno())
    log.warning("log %s was damaged at byte %d: %d bytes set aside in %s", path, at, len(raw) - at, kept)
    return kept


def cut_logs(folder: str | os.PathLike[str]) -> list[Path]:
    """Cut the logs of a closed store before the first damaged record; what was set aside.

    What follows is cut off too, later logs with it: changes without those before them are worse than neither.
    """
    kept: list[Path] = []
    for path in _logs(folder):
        raw = path.read_bytes()
        at = 0 if kept else first_damaged(raw)
        if at is not None and at < len(raw):
            kept.append(_cut(path, raw, at))
    return kept


def _in_use(folder: Path) -> bool:
    """Whether some process, this one too, has the database open.

    Asked by another process: a process that closes a lock file gives up its own lock on it.
    """
    question = "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'rb+'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    lock = folder / "LOCK"
    if not lock.exists():
        return False
    asked = subprocess.run([sys.executable, "-c", question, lock], capture_output=True, check=False)
    return asked.returncode != 0


def _records(raw: bytes) -> Iterator[tuple[int, int, int, int]]:
    """Start, checksum, length and type of each record, as far as records can be followed."""
    at, unpack, size = 0, _HEADER.unpack_from, _HEADER.size
    while at + size <= len(raw):
        left = _BLOCK - at % _BLOCK
        if left < size:
            at += left
            continue
        checksum, length, kind = unpack(raw, at)
        yield at, checksum, length, kind
        # At the end of a block's records, or at damage, RocksDB goes on with the next block.
        at += left if kind == 0 or length > left - size else size + length


def first_recycled(raw: bytes) -> int | None:
    """Where a record of a recycled log's type starts."""
    return next((at for at, _, _, kind in _records(raw) if kind in _RECYCLED), None)


def first_damaged(raw: bytes) -> int | None:
    """Where a record starts that is not what was written, or not all of it."""
    for at, checksum, length, _ in _records(raw):
        start, end = at + _HEADER.size, at + _HEADER.size + length
        if not any(raw[at:start]):
            continue  # Room that was made and not used.
        if end > len(raw) or length > _BLOCK - start % _BLOCK or checksum != masked_crc(raw[start - 1 : end]):
            return at
    return None


def masked_crc(raw: bytes) -> int:
    """CRC-32C, turned and shifted as RocksDB stores it."""
    crc, table = 0xFFFFFFFF, _CRC_TABLE
    for byte in raw:
        crc = table[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _crc_of_byte(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
    return byte


_CRC_TABLE = tuple(map(_crc_of_byte, range(256)))
