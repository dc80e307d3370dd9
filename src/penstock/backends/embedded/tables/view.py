"""An open snapshot: its database, and which queues and worlds it has."""

from __future__ import annotations

import functools
import os
import traceback

import msgspec

from penstock.backends.bulk import Snapshot
from penstock.backends.embedded import keys
from penstock.backends.embedded.admin import decode_queue
from penstock.backends.embedded.encryption import unlock
from penstock.backends.embedded.founding import refuse_newer_format
from penstock.backends.embedded.keys import Meta
from penstock.backends.embedded.rows import Counters, decode_counters, decode_cursor
from penstock.backends.embedded.snapshots import STORE
from penstock.backends.embedded.worlds import World, decode_world
from penstock.config import EncryptionSettings
from penstock.keyring import KeyProvider
from penstock.kv.base import Row, Store
from penstock.kv.rocksdb import RocksStore
from penstock.settings import QueueSettings

#: Each row is read once: what is kept of them is for tables' indexes and filters.
CACHE_CAPACITY_BYTES = 32 * 1024 * 1024


class QueueView(msgspec.Struct, frozen=True):
    """A queue as the snapshot has it. `required_seq`: read by all required cursors, if there are any."""

    name: str
    number: int
    settings: QueueSettings
    counters: Counters
    required_seq: int | None
    created_at_ns: int

    @property
    def first_seq(self) -> int:
        return self.counters.base_seq + 1

    @property
    def last_seq(self) -> int:
        return self.counters.next_seq - 1


class WorldView(msgspec.Struct, frozen=True):
    """A world as the snapshot has it."""

    name: str
    number: int
    first_seq: int
    last_seq: int
    created_at_ns: int = 0


class View:
    """The database of a snapshot, opened for reading."""

    def __init__(self, snapshot: Snapshot, provider: KeyProvider) -> None:
        path = os.path.join(snapshot.place, STORE)
        store = RocksStore.open(path, keys.SPACES, cache_capacity_bytes=CACHE_CAPACITY_BYTES, read_only=True)
        try:
            where = f"the snapshot in {snapshot.place}"
            refuse_newer_format(store, where)
            # Keys are as the store lists them, whatever anyone's settings say now: nothing is written.
            self.kv: Store = unlock(store, EncryptionSettings(enabled=None), provider, where, is_new=False)
        except BaseException as error:
            store.close()
            traceback.clear_frames(error.__traceback__)  # They know handles that keep the database open.
            raise

    def close(self) -> None:
        self.kv.close()

    @functools.cached_property
    def queue_rows(self) -> dict[str, bytes]:
        return {key[1:].decode(errors="replace"): raw for key, raw in self._meta(Meta.QUEUE)}

    @functools.cached_property
    def world_rows(self) -> dict[str, bytes]:
        return {key[1:].decode(errors="replace"): raw for key, raw in self._meta(Meta.WORLD)}

    def _meta(self, kind: Meta, rest: bytes = b"") -> list[Row]:
        prefix = keys.meta(kind, rest)
        return list(self.kv.scan(self.kv.space("meta"), prefix, keys.after_prefix(prefix)))

    def queue(self, name: str) -> QueueView:
        """One that the snapshot has; `StorageCorrupt` if what it says of it does not decode."""
        row = decode_queue(self.queue_rows[name])
        raw = self.kv.get(keys.meta(Meta.COUNTERS, keys.u32(row.qid)), self.kv.space("meta"))
        counters = Counters() if raw is None else decode_counters(raw)
        required_seq = self._required_seq(row.qid)
        return QueueView(name, row.qid, row.settings, counters, required_seq, row.created_at_ns)

    def _required_seq(self, number: int) -> int | None:
        rows = [decode_cursor(raw) for _, raw in self._meta(Meta.CURSOR, keys.u32(number))]
        return min((row.position for row in rows if row.required), default=None)

    def world(self, name: str) -> WorldView:
        """Any: a world comes to be by what is appended to it."""
        raw = self.world_rows.get(name)
        row = World(0) if raw is None else decode_world(raw)
        return WorldView(name, row.number, row.base_seq + 1, row.next_seq - 1)
