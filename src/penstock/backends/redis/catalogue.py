"""Queues themselves: created, changed, deleted, replaced as a set; each change is one script."""

from __future__ import annotations

import threading
from collections.abc import Callable, Container, Iterable, Mapping, Sequence

import msgspec

from penstock.backends.redis.connecting import Arg
from penstock.backends.redis.engine import (
    BETWEEN,
    CHANGED,
    MORE,
    MOST_CHANGES,
    PATIENCE_S,
    Engine,
    QueueChanged,
    QueueRow,
    restless,
)
from penstock.backends.redis.records import encode_counters, fresh_counters
from penstock.backends.redis.worlds import Worlds
from penstock.errors import InvalidConfig, QueueAlreadyExists, QueueNotFound, StorageError
from penstock.event import SYSTEM_WORLD, Entry
from penstock.settings import QueueSettings

NUMBER_FLAG, GROUP_FLAG = "number:", "group:"

_KINDS = {"c": "queue_created", "u": "queue_updated", "d": "queue_deleted"}

#: What is done ('c', 'u', 'd', 't' that it only counts as changed; 'n', 'v', 'x' to the line of a further
#: group, 'f' to a group that has the own one), to which queue or line, and the queue's row.
Change = tuple[str, str, QueueRow]


class Catalogue:
    """The queues of a store."""

    def __init__(self, engine: Engine, worlds: Worlds) -> None:
        self._engine = engine
        self._worlds = worlds
        self._turn = threading.Lock()

    def settings(self) -> list[QueueSettings]:
        return [row.settings for _, row in sorted(self._engine.all_queues().items())]

    def get(self, name: str) -> QueueSettings | None:
        known = self._engine.load(name)
        return None if known is None else known.settings

    def create(self, settings: QueueSettings) -> None:
        def changes(version: int) -> list[Change]:
            if self._row(settings.name) is not None:
                raise QueueAlreadyExists(settings.name)
            target = settings.dead_letter
            names = {target} if target is not None and self._row(target) is not None else set()
            self._check(settings, None, names)
            return [("c", settings.name, self._new(settings, version))]

        self._change(changes)

    def update(self, settings: QueueSettings, was: QueueSettings) -> bool:
        def changes(version: int) -> list[Change] | None:
            old = self._row(settings.name)
            if old is None:
                raise QueueNotFound(settings.name)
            if old.settings != was:
                return None
            target = settings.dead_letter
            names = {target} if target is not None and self._row(target) is not None else set()
            self._check(settings, old, names)
            return _updated(
                settings.name, old, msgspec.structs.replace(old, changed=version, settings=settings)
            )

        return self._change(changes)

    def delete(self, name: str) -> None:
        def changes(version: int) -> list[Change]:
            rows = self._engine.every_queue()
            if name not in rows:
                raise QueueNotFound(name)
            for other, row in rows.items():
                if row.settings.dead_letter == name and other != name:
                    raise InvalidConfig(
                        f"queue {name!r} is the dead_letter of {other!r}; change that one first"
                    )
            return _deleted(name, rows[name])

        self._change(changes)

    def replace(self, wanted: Iterable[QueueSettings]) -> None:
        by_name = _unique(wanted)

        def changes(version: int) -> list[Change]:
            rows = self._engine.every_queue()
            for settings in by_name.values():
                self._check(settings, rows.get(settings.name), by_name)
            return _differences(rows, by_name, lambda settings: self._new(settings, version), version)

        self._change(changes)

    def declare(self, wanted: Iterable[QueueSettings]) -> None:
        """These exist as they are wanted; what else there is stays."""
        by_name = _unique(wanted)

        def changes(version: int) -> list[Change]:
            rows, damaged = self._engine.rows()
            for name in by_name:
                if name in damaged:
                    raise damaged[name]
            old = {name: row for name, row in rows.items() if name in by_name}
            for settings in by_name.values():
                self._check(settings, old.get(settings.name), {*rows, *by_name})
            return _differences(old, by_name, lambda settings: self._new(settings, version), version)

        self._change(changes)

    def revise(self, name: str, revised: Callable[[QueueRow], QueueRow | None]) -> None:
        """Change what a queue's row has besides its settings; not at all for None."""

        def changes(version: int) -> list[Change] | None:
            old = self._row(name)
            if old is None:
                raise QueueNotFound(name)
            row = revised(old)
            return None if row is None else _updated(name, old, msgspec.structs.replace(row, changed=version))

        self._change(changes)

    def touch(self, name: str, attempts: int = MOST_CHANGES) -> None:
        """A queue counts as changed, and its row is sealed as it should be; no journal tells of that."""
        engine = self._engine
        store, queues = engine.keys.store, engine.keys.queues
        for _ in range(attempts):
            version = int(engine.server.command("HGET", store, "version") or 0)
            raw = engine.server.command("HGET", queues, name.encode())
            if raw is None:
                return
            old = engine.decoded_row(name, raw)
            row = msgspec.structs.replace(old, changed=version + 1)
            args: list[Arg] = [*engine.head(), version, name.encode(), raw, engine.encoded_row(name, row)]
            lines = ["", *(one.name for one in old.groups[1:])]
            counters = [engine.keys.queue(name, group)[0] for group in lines]
            reply = engine.server.run(engine.script("touch"), [store, queues, *counters], args)
            engine.forget(name)
            if reply[0] != CHANGED:
                return
            self._pause()
        raise restless(name)

    def settle(self) -> None:
        """Nothing that was decided before is left to be done: here, nothing ever is."""

    # -- steps

    def _pause(self) -> None:
        if self._engine.closed.wait(PATIENCE_S):
            raise StorageError("the store is closed; open it again")

    def _change(self, changes: Callable[[int], list[Change] | None]) -> bool:
        """Apply what is to be changed; anew if someone else was faster. False if nothing may be."""
        engine, locked = self._engine, 0
        with self._turn:
            while True:
                version = int(engine.server.command("HGET", engine.keys.store, "version") or 0)
                wanted = changes(version + 1)
                if not wanted:
                    return wanted is not None
                try:
                    if self._apply(version, wanted):
                        return True
                except QueueChanged as changed:
                    locked += 1
                    if locked == MOST_CHANGES:
                        raise restless(wanted[0][1].partition(BETWEEN)[0]) from changed
                    engine.closed.wait(PATIENCE_S)
                engine.seals.look()

    def _apply(self, version: int, changes: Sequence[Change]) -> bool:
        """False if someone else was faster; `QueueChanged` while a repair has one of the queues."""
        engine = self._engine
        keys: list[bytes] = [engine.keys.store, engine.keys.queues, *self._worlds.keys(SYSTEM_WORLD)]
        args: list[Arg] = [version, len(changes)]
        fence = engine.seals.fence
        for op, name, row in changes:
            queue, _, group = name.partition(BETWEEN)
            keys += engine.keys.queue(queue, group)
            args += (op, name.encode(), engine.encoded_row(queue, row), counters_of(row, group))
        for op, name, row in changes:
            keys += engine.keys.deleted(name, row.number) if op == "d" else ()
        entries = entries_of(changes)
        args += self._worlds.appending(SYSTEM_WORLD, entries, engine.new_ids(len(entries)))
        if engine.seals.fence != fence:
            return False  # Rows and entries are sealed by the one list that the script compares.
        reply = engine.server.run(engine.script("catalogue"), keys, [*engine.head(), *args])
        engine.forget(*(name for _, name, _ in changes))
        if reply[0] == MORE:
            raise QueueChanged(*(name for _, name, _ in changes))
        return bool(reply[0] != CHANGED)

    def _row(self, name: str) -> QueueRow | None:
        raw = self._engine.server.command("HGET", self._engine.keys.queues, name.encode())
        return None if raw is None else self._engine.decoded_row(name, raw)

    def _new(self, settings: QueueSettings, version: int) -> QueueRow:
        number = int(self._engine.server.command("HINCRBY", self._engine.keys.store, "numbers", 1))
        stream = self._engine.keys.stream_name(settings.name)
        return QueueRow(number, version, settings, self._engine.now_us(), (), stream)

    def _check(self, settings: QueueSettings, old: QueueRow | None, names: Container[str]) -> None:
        if settings.dead_letter is not None and settings.dead_letter not in names:
            raise InvalidConfig(
                f"queue {settings.name!r}: dead_letter {settings.dead_letter!r} does not exist on this "
                "backend; create it first"
            )
        if old is not None and old.settings.fifo != settings.fifo:
            raise InvalidConfig(
                f"queue {settings.name!r}: fifo cannot be changed; create another queue and move to it"
            )


def _updated(name: str, old: QueueRow, row: QueueRow) -> list[Change]:
    """A queue's row is another: its own line first, then those of groups that come, stay and go."""
    before, after = ([one.name for one in groups[1:]] for groups in (old.groups, row.groups))
    new = [("n", f"{name}{BETWEEN}{one}", row) for one in after if one not in before]
    stay = [("v", f"{name}{BETWEEN}{one}", row) for one in after if one in before]
    gone = [("x", f"{name}{BETWEEN}{one}", row) for one in before if one not in after]
    first = [("f", f"{name}{BETWEEN}{one.name}", row) for one in row.groups[:1] if not old.groups]
    return [("u", name, row), *first, *new, *stay, *gone]


def _deleted(name: str, row: QueueRow) -> list[Change]:
    return [("d", name, row), *(("x", f"{name}{BETWEEN}{one.name}", row) for one in row.groups[1:])]


def counters_of(row: QueueRow, group: str = "") -> bytes:
    """Of a new queue, or of a group's line; of one that is changed, what its settings say counts."""
    number = next((one.number for one in row.groups if one.name == group), row.number)
    return encode_counters(fresh_counters(number, row.changed, row.created_us, row.settings))


def entries_of(changes: Iterable[Change]) -> list[Entry]:
    """What the system's world says of these; of a group's line, what became of its queue is told."""
    return [
        Entry(_KINDS[op], msgspec.json.encode(row.settings), [name], _flags(row))
        for op, name, row in changes
        if op in _KINDS
    ]


def _flags(row: QueueRow) -> list[str]:
    """What brings a row back besides its settings: its number, and whose line its own is."""
    return [f"{NUMBER_FLAG}{row.number}", *(f"{GROUP_FLAG}{one.name}" for one in row.groups[:1])]


def _differences(
    rows: Mapping[str, QueueRow],
    wanted: Mapping[str, QueueSettings],
    new: Callable[[QueueSettings], QueueRow],
    version: int,
) -> list[Change]:
    out = [change for name, row in rows.items() if name not in wanted for change in _deleted(name, row)]
    for name, settings in wanted.items():
        old = rows.get(name)
        if old is None:
            out.append(("c", name, new(settings)))
        elif old.settings != settings:
            out += _updated(name, old, msgspec.structs.replace(old, changed=version, settings=settings))
    return out


def _unique(wanted: Iterable[QueueSettings]) -> dict[str, QueueSettings]:
    by_name: dict[str, QueueSettings] = {}
    for settings in wanted:
        if settings.name in by_name:
            raise InvalidConfig(f"queue {settings.name!r} is named twice")
        by_name[settings.name] = settings
    return by_name
