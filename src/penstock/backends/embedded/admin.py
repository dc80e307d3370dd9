"""Queues themselves: create, update, delete, replace the whole set."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import TypeVar

import msgspec

from penstock.backends.embedded import keys
from penstock.backends.embedded.bulk import start_drop
from penstock.backends.embedded.engine import Engine, Transaction
from penstock.backends.embedded.history import open_archive_cursors
from penstock.backends.embedded.keys import Meta
from penstock.backends.embedded.numbers import next_number
from penstock.backends.embedded.queue_state import QueueState
from penstock.backends.embedded.rows import packed, unpacked
from penstock.backends.embedded.sweep import apply_waiting
from penstock.backends.embedded.worlds import SYSTEM_WORLD, Worlds
from penstock.errors import InvalidConfig, QueueAlreadyExists, QueueNotFound, StorageCorrupt
from penstock.event import Entry
from penstock.settings import QueueSettings, queue_settings

T = TypeVar("T")

#: Before the number of a queue in the flags of a system entry: what a lost row is made anew from.
NUMBER_FLAG = "number:"


class QueueRow(msgspec.Struct, array_like=True):
    """A queue's number and settings, and when it was made; 0: that is not known."""

    qid: int
    settings: QueueSettings
    created_at_ns: int = 0


_decode_queue = msgspec.msgpack.Decoder(QueueRow).decode


def decode_queue(raw: bytes) -> QueueRow:
    row = unpacked(raw, _decode_queue, "queue")
    values = msgspec.structs.asdict(row.settings)
    try:
        queue_settings(values.pop("name"), values)
    except InvalidConfig as error:
        raise StorageCorrupt(f"queue row does not decode: {error}") from error
    return row


class Admin:
    """The set of queues of one store."""

    def __init__(self, engine: Engine, worlds: Worlds) -> None:
        self._engine = engine
        self._worlds = worlds

    def load(self) -> None:
        """Read every queue's settings; their numbers are read when they are first used.

        A queue whose row is damaged is set apart: the others go on. Queues that are known already, before
        a repair that is, stay the same objects: someone may wait on them.
        """
        engine = self._engine
        engine.damaged.clear()
        queues: list[QueueState] = []
        prefix = keys.meta(Meta.QUEUE)
        for key, raw in engine.kv.scan(engine.meta, prefix, keys.after_prefix(prefix)):
            try:
                row = decode_queue(raw)
            except StorageCorrupt as error:
                engine.note_damage(key[1:].decode(errors="replace"), error)
                continue
            q = engine.by_qid.get(row.qid) or QueueState(row.qid, row.settings, engine.lock)
            q.settings, q.created_at_ns = row.settings, row.created_at_ns
            q.unload()
            queues.append(q)
        # As a whole: an interrupt finds all of the old ones or all of the new ones.
        engine.queues, engine.by_qid = {q.name: q for q in queues}, {q.qid: q for q in queues}

    def change(self, change: Callable[[], T]) -> T:
        """Create, update, delete or replace; after an interrupt, what is known is what is stored."""
        with self._engine.lock:
            try:
                return change()
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
        # Without the lock: every call of a server asks this, and must not wait for those that write.
        self._engine.check_usable()
        q = self._engine.queues.get(name) if isinstance(name, str) else None
        return None if q is None else q.settings

    def create(self, settings: QueueSettings) -> None:
        engine = self._engine
        with engine.lock:
            engine.check_usable()
            if settings.name in engine.queues:
                raise QueueAlreadyExists(settings.name)
            engine.check_sound(settings.name)
            self._check(settings, engine.queues)
            with engine.transaction() as txn:
                created = self._create(txn, settings)
                self._note(txn, ("queue_created", created))
                txn.answered(None)
            self._adopt(created)

    def update(self, settings: QueueSettings, was: QueueSettings) -> bool:
        engine = self._engine
        with engine.lock:
            engine.check_usable()
            if settings.name not in engine.queues:
                raise QueueNotFound(settings.name)
            if engine.queues[settings.name].settings != was:
                return False
            self._check(settings, engine.queues)
            self._end_delays([settings])
            with engine.transaction() as txn:
                q = engine.queues[settings.name]
                self._put(txn, q, settings)
                self._note(txn, ("queue_updated", QueueState(q.qid, settings, engine.lock)))
                txn.answered(True)
            self._change(q, settings)
            return True

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
                self._note(txn, ("queue_deleted", engine.queues[name]))
                txn.answered(None)
            self._disown(name)

    def replace(self, wanted: Iterable[QueueSettings]) -> None:
        """Exactly these queues exist afterwards: made, changed and deleted in one atomic write."""
        with self._engine.lock:
            by_name = self._sound(wanted)
            self._apply(by_name, [name for name in self._engine.queues if name not in by_name])

    def declare(self, wanted: Iterable[QueueSettings]) -> None:
        """These exist as they are wanted, made and changed in one atomic write; what else there is stays."""
        with self._engine.lock:
            self._apply(self._sound(wanted), [])

    def _sound(self, wanted: Iterable[QueueSettings]) -> dict[str, QueueSettings]:
        """What is damaged stays as it is, until a repair has looked at it; the others are served."""
        damaged = self._engine.damaged
        return {name: one for name, one in _unique(wanted).items() if name not in damaged}

    def _apply(self, by_name: Mapping[str, QueueSettings], surplus: Sequence[str]) -> None:
        """Make and change these, and delete those."""
        engine = self._engine
        with engine.lock:
            names = {*engine.queues, *by_name}.difference(surplus)
            for settings in by_name.values():
                self._check(settings, names)
            self._end_delays(by_name.values())
            changes = [("queue_deleted", engine.queues[name]) for name in surplus]
            created = []
            with engine.transaction() as txn:
                for name in surplus:
                    self._delete(txn, name)
                for settings in by_name.values():
                    old = engine.queues.get(settings.name)
                    if old is None:
                        created.append(self._create(txn, settings))
                        changes.append(("queue_created", created[-1]))
                    elif old.settings != settings:
                        self._put(txn, old, settings)
                        changes.append(("queue_updated", QueueState(old.qid, settings, engine.lock)))
                self._note(txn, *changes)
                txn.answered(None)
            for name in surplus:
                self._disown(name)
            for q in created:
                self._adopt(q)
            for settings in by_name.values():
                self._change(engine.queues[settings.name], settings)

    # -- steps ----------------------------------------------------------------------------------

    def _check(self, settings: QueueSettings, names: Container[str]) -> None:
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

    def _end_delays(self, wanted: Iterable[QueueSettings]) -> None:
        """Before a queue's delay changes: what is due by the old one is ready, as for every reader."""
        queues = self._engine.queues
        if any(one.name in queues and queues[one.name].settings.delay_s != one.delay_s for one in wanted):
            apply_waiting(self._engine)

    def _change(self, q: QueueState, settings: QueueSettings) -> None:
        differs = settings.delay_s != q.settings.delay_s
        q.change(settings)
        if differs:  # Those that wait are due at other times.
            self._engine.lines.note(q.qid, 0)

    def _create(self, txn: Transaction, settings: QueueSettings) -> QueueState:
        engine = self._engine
        engine.check_catalogue()
        q = QueueState(next_number(txn), settings, engine.lock, engine.clock.now_ns())
        self._put(txn, q, settings)
        open_archive_cursors(txn, q)
        return q

    def _delete(self, txn: Transaction, name: str) -> None:
        q = self._engine.queues[name]
        txn.delete(keys.meta(Meta.QUEUE, name.encode()), self._engine.meta)
        txn.delete(keys.meta(Meta.COUNTERS, q.prefix), self._engine.meta)
        start_drop(txn, q.qid)

    def _put(self, txn: Transaction, q: QueueState, settings: QueueSettings) -> None:
        txn.changed = True
        key = keys.meta(Meta.QUEUE, settings.name.encode())
        txn.put(key, packed(QueueRow(q.qid, settings, q.created_at_ns)), self._engine.meta)

    def _note(self, txn: Transaction, *changes: tuple[str, QueueState]) -> None:
        """All of a transaction's changes at once: a second append in it would not see the first."""
        entries = [
            Entry(kind, msgspec.json.encode(q.settings), [q.name], [f"{NUMBER_FLAG}{q.qid}"])
            for kind, q in changes
        ]
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
