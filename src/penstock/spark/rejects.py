"""What could not be read and was set aside: lines of JSON, in one file however often a task runs."""

from __future__ import annotations

import hashlib
import logging
import os
from pathlib import Path

import msgspec

from penstock.backends.bulk import BulkPartition, BulkRequest, Damage, Snapshot
from penstock.errors import InvalidConfig

log = logging.getLogger("penstock")


class Rejects:
    """Those of one task; a second attempt at the same work replaces what the first has written."""

    def __init__(self, folder: str, snapshot: Snapshot, work: BulkRequest | BulkPartition) -> None:
        # Several batches of a stream read from one snapshot: what each of them reads tells them apart.
        which = hashlib.blake2b(msgspec.msgpack.encode(work), digest_size=8).hexdigest()
        self._file = Path(folder, f"{snapshot.id}-{which}.jsonl")
        self._found: list[Damage] = []

    def __call__(self, damage: Damage) -> None:
        self._found.append(damage)

    def write(self) -> None:
        """Whole or not at all; nothing, where nothing was damaged."""
        if not self._found:
            return
        unfinished = self._file.with_name(f".{self._file.name}.{os.getpid()}")
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            unfinished.write_bytes(b"".join(msgspec.json.encode(one) + b"\n" for one in self._found))
            unfinished.replace(self._file)
        except OSError as error:
            raise InvalidConfig(
                f"option rejectsPath: {self._file} cannot be written: {error.strerror}"
            ) from error
        rows = sum(damage.rows for damage in self._found)
        log.warning("set aside rows=%d places=%d file=%s", rows, len(self._found), self._file)
