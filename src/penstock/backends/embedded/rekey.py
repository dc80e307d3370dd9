"""Rekeying: everything secret is sealed once more with the active key, in slices, beside the traffic.

How far it is stands in the store, so that it goes on after a crash; upkeep does slices of it too. At the
end the files are compacted, for they still hold what was overwritten, and the keys of old are let go.
"""

from __future__ import annotations

import logging
import threading

from penstock.backends.base import Progress, RekeyReport
from penstock.backends.embedded import keys
from penstock.backends.embedded.encryption import RULES, RekeyRow, read_keys, read_rekey
from penstock.backends.embedded.engine import Engine
from penstock.backends.embedded.keys import Meta
from penstock.backends.embedded.rows import packed
from penstock.backends.unlocking import PLAIN, KeysRow
from penstock.errors import StorageCorrupt
from penstock.kv.sealed import SealedStore

log = logging.getLogger("penstock")

ROWS_PER_SLICE = 500
BYTES_PER_SLICE = 1 << 20

_SPACES = tuple(RULES)


class Rekey:
    """The rekeying of one store, if it has sealed records or had some."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._kv = engine.kv if isinstance(engine.kv, SealedStore) else None
        self._keys = read_keys(engine.kv)
        self._under_way = self._kv is not None and read_rekey(engine.kv) is not None
        #: Why it does not go on by itself.
        self.given_up: list[str] = []
        self._completing = threading.Lock()
        self._last = RekeyReport()

    @property
    def active(self) -> str | None:
        """The key that new records are sealed with."""
        return None if self._kv is None else self._kv.active

    def others(self) -> list[str]:
        """What else records may be sealed with, "" for not at all."""
        return [] if self._keys is None else sorted({*self._verifiers()} - {self._keys.active})

    def _verifiers(self) -> dict[str, bytes]:
        return {} if self._keys is None else self._keys.verifiers

    def run(self, progress: Progress | None = None) -> RekeyReport:
        """Start, or take up what was started, and go on to the end."""
        self._engine.check_usable()
        if not self._start():
            return RekeyReport()
        while (row := self._slice()) is not None and row.space < len(_SPACES):
            if progress is not None:
                progress("rekey", row.done_bytes, row.total_bytes)
        if progress is not None:
            progress("compact", 0, 1)
        with self._completing:
            self._complete()
        if progress is not None:
            progress("compact", 1, 1)
        return self._last

    def slice(self) -> int:
        """One slice of what is under way, for upkeep; 1 if there was something to do."""
        if not self._under_way or self.given_up:
            return 0
        try:
            row = self._slice()
            if row is not None and row.space < len(_SPACES):
                return 1
            if not self._completing.acquire(blocking=False):
                return 0
            try:
                self._complete()
            finally:
                self._completing.release()
        except StorageCorrupt as error:
            # Not tried again and again: it stays as it is until somebody has seen to it.
            self.given_up = [f"rekeying has stopped until it is called for again: {error}"]
            log.error("%s", self.given_up[0])
            return 0
        return 1

    def _start(self) -> bool:
        """Whether there is something to do; it is written down that it shall be done."""
        engine = self._engine
        with engine.lock:
            self.given_up = []
            if self._kv is None or self._under_way or not self.others():
                return self._under_way
            with engine.transaction() as txn:
                txn.changed = True
                row = RekeyRow(self.active or PLAIN, total_bytes=self._kv.approximate_size())
                txn.put(keys.meta(Meta.REKEY), packed(row), engine.meta)
            self._under_way = True
            return True

    def _slice(self) -> RekeyRow | None:
        """Some rows from where the last slice stopped, in one atomic write with the new position."""
        engine = self._engine
        with engine.lock, engine.transaction() as txn:
            row = read_rekey(engine.kv)
            if row is None or self._kv is None:
                return None
            if row.space >= len(_SPACES):
                return row
            space = self._kv.space(_SPACES[row.space])
            done = self._kv.renew(txn.batch, space, row.position, ROWS_PER_SLICE, BYTES_PER_SLICE)
            row.records += done.records
            row.rewritten += done.rewritten
            row.done_bytes += done.size_bytes
            row.total_bytes = max(row.total_bytes, row.done_bytes)
            for key_id in done.unreadable:
                # An id that the store does not list is part of the damage.
                key_id = key_id if key_id in self._verifiers() else PLAIN
                row.unreadable[key_id] = row.unreadable.get(key_id, 0) + 1
            if done.position is None:
                row.space, row.position = row.space + 1, b""
            else:
                row.position = done.position
            txn.changed = True
            txn.put(keys.meta(Meta.REKEY), packed(row), engine.meta)
            return row

    def _complete(self) -> None:
        """Everything is sealed with the active key: let the files forget what was, and the keys go."""
        engine = self._engine
        if not self._under_way or self._kv is None:
            return  # Another thread has done it.
        # Without the engine's lock: it may take long, and changes nothing that anyone sees.
        self._kv.compact()
        with engine.lock, engine.transaction() as txn:
            row = read_rekey(engine.kv)
            if row is None or self._keys is None:
                return
            kept = {self._keys.active, *row.unreadable}
            left = KeysRow(row.target, {i: v for i, v in self._verifiers().items() if i in kept})
            txn.changed = True
            if left.verifiers == {PLAIN: b""}:
                txn.delete(keys.meta(Meta.KEYS), engine.meta)
            else:
                txn.put(keys.meta(Meta.KEYS), packed(left), engine.meta)
            txn.delete(keys.meta(Meta.REKEY), engine.meta)
        # In every mode: whoever is told that a key is no longer needed may throw it away.
        engine.sync()
        self._keys, self._under_way = left, False
        self._kv.takes_plain = PLAIN in left.verifiers
        self._last = RekeyReport(row.records, row.rewritten, sum(row.unreadable.values()))
        log.info("rekeyed to=%s records=%d rewritten=%d", row.target or "plain", row.records, row.rewritten)
        if row.unreadable:
            log.error("%d records do not open and were left as they are; run check", self._last.unreadable)
