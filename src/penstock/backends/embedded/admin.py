"""Queues themselves: create, update, delete, replace the whole set."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable

import msgspec

from penstock.backends.embedded import keys
from penstock.backends.embedded.bulk import start_drop
from penstock.backends.embedded.engine import Engine, Transaction
from penstock.backends.embedded.keys import Meta
from penstock.backends.embedded.numbers import next_number
from penstock.backends.embedded.queue_state import QueueState
from penstock.backends.embedded.rows import packed, unpacked
from penstock.backends.embedded.worlds import SYSTEM_WORLD, Worlds
from penstock.errors import InvalidConfig, QueueAlreadyExists, QueueNotFound
from penstock.event import Entry
from penstock.settings import QueueSettings

#: Settings whose machinery this version does not have: refused, never ignored.
_NOT_YET = ("max_leased", "max_leased_per_key", "compress_over_bytes", "on_enqueue", "on_failure")


class _QueueRow(msgspec.Struct, array_like=True):
    qid: int
    settings: QueueSettings


_decode_queue = msgspec.msgpack.Decoder(_QueueRow).decode


class Admin:
    """The set of queues of one store."""

    def __init__(self, engine: Engine, worlds: Worlds, backend: str) -> None:
        self._engine = engine
        self._worlds = worlds
        self._backend = backend

    def load(self) -> None:
        """Read every queue's settings; their numbers are read when they are first used."""
        engine = self._engine
        prefix = keys.meta(Meta.QUEUE)
        stored = [
            unpacked(raw, _decode_queue, "queue")
            for _, raw in engine.kv.scan(engine.meta, prefix, keys.after_prefix(prefix))
        ]
        queues = [
            engine.by_qid.get(row.qid) or QueueState(row.qid, row.settings, engine.lock) for row in stored
        ]
        for q, row in zip(queues, stored, strict=True):
            q.settings = row.settings
        # As a whole: an interrupt finds all of the old ones or all of the new ones.
        engine.queues, engine.by_qid = {q.name: q for q in queues}, {q.qid: q for q in queues}

    def change(self, change: Callable[[], None]) -> None:
        """Create, update, delete or replace; after an interrupt, what is known is what is stored."""
        with self._engine.lock:
            try:
                change()
            except Exception:
                raise
            except BaseException:
                self._engine.read_anew(self.load)
                raise

    def settings(self) -> list[QueueSettings]:
        with self._engine.lock:
            self._engine.check_usable()
            return [q.settings for _, q in sorted(self._engine.queues.items())]

    def get(self, name: str) -> QueueSettings | None:
        with self._engine.lock:
            self._engine.check_usable()
            q = self._engine.queues.get(name) if isinstance(name, str) else None
            return None if q is None else q.settings

    def create(self, settings: QueueSettings) -> None:
        engine = self._engine
        with engine.lock:
            engine.check_usable()
            if settings.name in engine.queues:
                raise QueueAlreadyExists(settings.name)
            self._check(settings, engine.queues)
            with engine.transaction() as txn:
                created = self._create(txn, settings)
                self._note(txn, ("queue_created", settings))
            self._adopt(created)

    def update(self, settings: QueueSettings) -> None:
        engine = self._engine
        with engine.lock:
            engine.check_usable()
            if settings.name not in engine.queues:
                raise QueueNotFound(settings.name)
            self._check(settings, engine.queues)
            with engine.transaction() as txn:
                self._put(txn, engine.queues[settings.name].qid, settings)
                self._note(txn, ("queue_updated", settings))
            engine.queues[settings.name].settings = settings

    def delete(self, name: str) -> None:
        """The queue is gone at once; its rows go in slices."""
        engine = self._engine
        with engine.lock:
            engine.check_usable()
            if name not in engine.queues:
                raise QueueNotFound(name)
            for other in engine.queues.values():
                if other.settings.dead_letter == name and other.name != name:
                    raise InvalidConfig(
                        f"queue {name!r} is the dead_letter of {other.name!r}; change that one first"
                    )
            with engine.transaction() as txn:
                self._delete(txn, name)
                self._note(txn, ("queue_deleted", engine.queues[name].settings))
            self._disown(name)

    def replace(self, wanted: Iterable[QueueSettings]) -> None:
        """Exactly these queues exist afterwards: made, changed and deleted in one atomic write."""
        engine = self._engine
        by_name = _unique(wanted)
        with engine.lock:
            names = set(by_name)
            for settings in by_name.values():
                self._check(settings, names)
            surplus = [name for name in engine.queues if name not in by_name]
            changes = [("queue_deleted", engine.queues[name].settings) for name in surplus]
            created = []
            with engine.transaction() as txn:
                for name in surplus:
                    self._delete(txn, name)
                for settings in by_name.values():
                    old = engine.queues.get(settings.name)
                    if old is None:
                        created.append(self._create(txn, settings))
                        changes.append(("queue_created", settings))
                    elif old.settings != settings:
                        self._put(txn, old.qid, settings)
                        changes.append(("queue_updated", settings))
                self._note(txn, *changes)
            for name in surplus:
                self._disown(name)
            for q in created:
                self._adopt(q)
            for settings in by_name.values():
                engine.queues[settings.name].settings = settings

    # -- steps ----------------------------------------------------------------------------------

    def _check(self, settings: QueueSettings, names: Container[str]) -> None:
        for key in _NOT_YET:
            if getattr(settings, key) is not None:
                raise InvalidConfig(
                    f"queue {settings.name!r}: {key} is not available on {self._backend} in this version; "
                    "leave it out"
                )
        if settings.dead_letter is not None and settings.dead_letter not in names:
            raise InvalidConfig(
                f"queue {settings.name!r}: dead_letter {settings.dead_letter!r} does not exist on this "
                "backend; create it first"
            )
        old = self._engine.queues.get(settings.name)
        if old is not None and old.settings.fifo != settings.fifo:
            raise InvalidConfig(
                f"queue {settings.name!r}: fifo cannot be changed; create another queue and move to it"
            )

    def _create(self, txn: Transaction, settings: QueueSettings) -> QueueState:
        q = QueueState(next_number(txn), settings, self._engine.lock)
        self._put(txn, q.qid, settings)
        return q

    def _delete(self, txn: Transaction, name: str) -> None:
        q = self._engine.queues[name]
        txn.delete(keys.meta(Meta.QUEUE, name.encode()), self._engine.meta)
        txn.delete(keys.meta(Meta.COUNTERS, q.prefix), self._engine.meta)
        start_drop(txn, q.qid)

    def _put(self, txn: Transaction, qid: int, settings: QueueSettings) -> None:
        txn.changed = True
        key = keys.meta(Meta.QUEUE, settings.name.encode())
        txn.put(key, packed(_QueueRow(qid, settings)), self._engine.meta)

    def _note(self, txn: Transaction, *changes: tuple[str, QueueSettings]) -> None:
        """All of a transaction's changes at once: a second append in it would not see the first."""
        entries = [Entry(kind, msgspec.json.encode(settings), [settings.name]) for kind, settings in changes]
        self._worlds.append_in(txn, SYSTEM_WORLD, entries)

    def _adopt(self, q: QueueState) -> None:
        self._engine.queues[q.name] = q
        self._engine.by_qid[q.qid] = q

    def _disown(self, name: str) -> None:
        q = self._engine.queues.pop(name)
        del self._engine.by_qid[q.qid]
        q.arrived.notify_all()


def _unique(wanted: Iterable[QueueSettings]) -> dict[str, QueueSettings]:
    by_name: dict[str, QueueSettings] = {}
    for settings in wanted:
        if settings.name in by_name:
            raise InvalidConfig(f"queue {settings.name!r} is named twice")
        by_name[settings.name] = settings
    return by_name
