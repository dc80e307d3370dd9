"""How long the list of a store's tables has been seen to be: the file `WITNESS`.

To RocksDB, a `MANIFEST-*` that was cut short is an older list: it takes what is in it for all there is, and
deletes the tables that it does not name. So its length is written down whenever it has grown, and compared
before the database is opened.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from zlib import crc32

from penstock.errors import StorageCorrupt

WITNESS = "WITNESS"

#: A list of tables and its length: the lists have rising numbers in their names, and only ever grow.
Seen = tuple[str, int]


class Witness:
    """What is known of one folder's list of tables."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self._path = self._folder / WITNESS
        self._seen = self._read()

    def _read(self) -> Seen | None:
        """None where there is none to be trusted: it is of use, but nothing hangs on it."""
        with contextlib.suppress(OSError, ValueError):
            name, length, checksum = self._path.read_text("ascii").split()
            if checksum == _checksum(name, int(length)):
                return name, int(length)
        return None

    def _now(self) -> Seen | None:
        with contextlib.suppress(OSError, ValueError):
            name = (self._folder / "CURRENT").read_text("ascii").strip()
            return name, (self._folder / name).stat().st_size
        return None

    def verify(self) -> None:
        """Raise `StorageCorrupt` if the store has less than it had."""
        now = self._now()
        if self._seen is None or now is None or now >= self._seen:
            return
        (name, length), (seen_name, seen_length) = now, self._seen
        raise StorageCorrupt(
            f"the store in {self._folder} is damaged: its list of tables was {seen_name} of {seen_length} "
            f"bytes and is {name} of {length}: restore a backup (if this is one, delete {self._path})"
        )

    def note(self) -> None:
        """Call it as often as you like: it writes only what is new."""
        now = self._now()
        if now is None or now == self._seen:
            return
        unfinished = self._path.with_suffix(".unfinished")
        with contextlib.suppress(OSError):
            # Not to claim more than a power cut leaves.
            with (self._folder / now[0]).open("rb") as manifest:
                os.fsync(manifest.fileno())
            unfinished.write_text(f"{now[0]} {now[1]} {_checksum(*now)}\n", "ascii")
            unfinished.replace(self._path)
            self._seen = now


def _checksum(name: str, length: int) -> str:
    return f"{crc32(f'{name} {length}'.encode()):08x}"
