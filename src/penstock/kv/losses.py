"""What a store has lost, written down beside it until a repair has dealt with it: `lost/NOTES`.

A table that cannot be opened, or a space that was written anew, leaves nothing in the store that says so.
Whoever opens it next must know all the same.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path

from penstock.kv.base import Loss
from penstock.kv.wal import SET_ASIDE

NOTES = "NOTES"
#: Notes that are kept of one space: enough to see what happened.
_PER_SPACE = 20


class Losses:
    """The notes of one folder."""

    def __init__(self, folder: str) -> None:
        self._path = Path(folder, SET_ASIDE, NOTES)
        self.noted = self._read()

    def _read(self) -> list[Loss]:
        try:
            return [Loss(space, what) for space, what in map(json.loads, self._path.read_text().splitlines())]
        except FileNotFoundError:
            return []
        except (ValueError, TypeError) as error:
            # Of any space, for all that is known.
            return [Loss("", f"{self._path}, which says what was lost, cannot be read: {error}")]

    def add(self, losses: Iterable[Loss]) -> None:
        """Durable once this returns."""
        noted = list(self.noted)
        for loss in losses:
            if loss not in noted and sum(one.space == loss.space for one in noted) < _PER_SPACE:
                noted.append(loss)
        if noted != self.noted:
            self._path.parent.mkdir(exist_ok=True)
            write_durably(self._path, "".join(json.dumps(loss) + "\n" for loss in noted).encode())
            self.noted = noted

    def forget(self) -> None:
        self._path.unlink(missing_ok=True)
        self.noted = []


def write_durably(path: Path, raw: bytes) -> None:
    """The whole file or, after a power cut too, the one that was there before."""
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_bytes(raw)
    take_place(unfinished, path)


def take_place(unfinished: Path, path: Path) -> None:
    """What was written becomes the file, once all of it is on the disk."""
    with unfinished.open("rb+") as file:
        os.fsync(file.fileno())
    unfinished.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
