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

_PREFIX = "MANIFEST-"

#: The number in a list's name, and its length. The numbers rise, and a list only ever grows. Names are not
#: compared: from a million on they have another digit.
Seen = tuple[int, int]


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
                return _number(name), int(length)
        return None

    def _now(self) -> Seen | None:
        with contextlib.suppress(OSError, ValueError):
            name = (self._folder / "CURRENT").read_text("ascii").strip()
            return _number(name), (self._folder / name).stat().st_size
        return None

    def verify(self) -> None:
        """Raise `StorageCorrupt` if the store has less than it had."""
        now = self._now()
        if self._seen is None or now is None or now >= self._seen:
            return
        (number, length), (seen_number, seen_length) = now, self._seen
        raise StorageCorrupt(
            f"the store in {self._folder} is damaged: its list of tables was {_name(seen_number)} of "
            f"{seen_length} bytes and is {_name(number)} of {length}: restore a backup (if this is one, "
            f"delete {self._path})"
        )

    def note(self) -> None:
        """Call it as often as you like: it writes only what is new."""
        now = self._now()
        if now is None or now == self._seen:
            return
        unfinished = self._path.with_suffix(".unfinished")
        with contextlib.suppress(OSError):
            # Not to claim more than a power cut leaves.
            name = _name(now[0])
            with (self._folder / name).open("rb") as manifest:
                os.fsync(manifest.fileno())
            unfinished.write_text(f"{name} {now[1]} {_checksum(name, now[1])}\n", "ascii")
            unfinished.replace(self._path)
            self._seen = now


def _number(name: str) -> int:
    return int(name.removeprefix(_PREFIX))


def _name(number: int) -> str:
    return f"{_PREFIX}{number:06}"


def _checksum(name: str, length: int) -> str:
    return f"{crc32(f'{name} {length}'.encode()):08x}"
