"""Changes of queues on a cluster, where queues are many places: planned, made, and forgotten.

1. `plan`: what is to be done is written down in the store's own slot, if the catalogue is as it was.
2. Queues that are to be made have their counters: nobody sees them yet.
3. `commit`: all rows of the catalogue change at one moment, with the record of it in the system's world.
4. Changed queues get their settings, and the keys of deleted ones go.
5. `planned`: the plan is forgotten.

A plan that is written down is carried out, by whoever comes upon it; every step may be done twice. A step on
a queue that comes late changes nothing: numbers of queues and of settings only grow.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence

import msgspec

from penstock.backends.redis.catalogue import Catalogue, Change, counters_of, entries_of
from penstock.backends.redis.connecting import Arg
from penstock.backends.redis.engine import (
    BETWEEN,
    CHANGED,
    MORE,
    MOST_CHANGES,
    NOT_FOUND,
    PATIENCE_S,
    Engine,
    QueueChanged,
    restless,
)
from penstock.backends.redis.records import decode_counters
from penstock.backends.redis.worlds import Worlds
from penstock.errors import BackendUnavailable, StorageCorrupt
from penstock.event import SYSTEM_WORLD

log = logging.getLogger("penstock")

_VERSION = b"\x01"


class Plan(msgspec.Struct, array_like=True, frozen=True):
    """What is to be done, and the ids of what the system's world will say of it."""

    #: As in the catalogue: rows with scripts are sealed. Those of lines have none.
    changes: list[tuple[str, str, bytes]]
    entry_ids: list[bytes]


_decode = msgspec.msgpack.Decoder(Plan).decode


def decode_plan(raw: bytes) -> Plan:
    try:
        if raw[:1] != _VERSION:
            raise StorageCorrupt(f"plan has version {raw[:1].hex()}; this Penstock reads 01")
        return _decode(raw[1:])
    except msgspec.DecodeError as error:
        raise StorageCorrupt(f"plan does not decode: {error}") from error


class PlannedCatalogue(Catalogue):
    """The queues of a store on a cluster."""

    def __init__(self, engine: Engine, worlds: Worlds) -> None:
        super().__init__(engine, worlds)
        engine.go_on = self.resume
        self.resume()

    def resume(self) -> None:
        """Carry out what someone else has planned, if there is something."""
        raw = self._engine.server.command("GET", self._engine.keys.plan)
        if raw is None:
            return
        try:
            self._carry_out(raw)
        except QueueChanged:
            return  # A repair has one of them; who comes by when it has ended goes on.
        except StorageCorrupt as error:
            # Queues go on as they are; who wants to change them is told.
            log.error("changes of queues that were planned cannot be made: %s", error)

    def settle(self) -> None:
        for _ in range(MOST_CHANGES):
            self.resume()
            if self._engine.server.command("GET", self._engine.keys.plan) is None:
                return
            self._pause()
        raise BackendUnavailable("changes of queues that were decided wait for a repair; try again")

    def touch(self, name: str, attempts: int = MOST_CHANGES) -> None:
        for _ in range(attempts):
            if not self._is_locked(name):
                self._change(lambda version: self._touched(name, version))
                return
            self._pause()  # Nothing is decided that others would have to wait for.
        raise restless(name)

    def _touched(self, name: str, version: int) -> list[Change] | None:
        old = self._row(name)
        if old is None:
            return None
        row = msgspec.structs.replace(old, changed=version)
        return [("t", name, row), *(("v", f"{name}{BETWEEN}{one.name}", row) for one in old.groups[1:])]

    def _is_locked(self, name: str) -> bool:
        """Whether a repair has one of its lines."""
        row = self._row(name)
        for group in ["", *(one.name for one in row.groups[1:])] if row is not None else ():
            raw = self._engine.server.command("GET", self._engine.keys.queue(name, group)[0])
            with contextlib.suppress(StorageCorrupt):  # Those are for a repair to make anew, as the row says.
                if raw is not None and decode_counters(raw).settings < 0:
                    return True
        return False

    def _apply(self, version: int, changes: Sequence[Change]) -> bool:
        engine = self._engine
        for op, name, _ in changes:
            # What is decided is not taken back, and would hold up all others for as long.
            if op == "u" and self._is_locked(name):
                raise QueueChanged(name)
        ids = engine.new_ids(max(1, len(entries_of(changes))))
        fence = engine.seals.fence
        rows = [
            (op, name, b"" if BETWEEN in name else engine.encoded_row(name, row)) for op, name, row in changes
        ]
        raw = _VERSION + msgspec.msgpack.encode(Plan(rows, ids))
        keys = [engine.keys.store, engine.keys.entries, engine.keys.plan]
        args: list[Arg] = [*engine.head(), version, raw, ids[0], fence]
        reply = engine.server.run(engine.script("plan"), keys, args)
        if reply[0] == MORE:
            self._until_made(reply[1])
        elif reply[0] != CHANGED:
            self._until_made(raw)
            return True
        return False

    def _until_made(self, raw: bytes) -> None:
        """Wait for a repair that holds a plan up; should that last, others make it when it has ended."""
        for attempt in range(MOST_CHANGES):
            try:
                self._carry_out(raw)
                return
            except QueueChanged as changed:
                if attempt == MOST_CHANGES - 1:
                    raise restless(str(changed.args[0])) from changed
                self._engine.closed.wait(PATIENCE_S)

    def _carry_out(self, raw: bytes) -> None:
        plan = decode_plan(raw)
        rows = [one for one in plan.changes if BETWEEN not in one[1]]
        changes = [(op, name, self._engine.decoded_row(name, row)) for op, name, row in rows]
        lines: dict[str, list[tuple[str, str]]] = {}
        for op, address, _ in plan.changes:
            name, between, group = address.partition(BETWEEN)
            if between:
                lines.setdefault(name, []).append((op, group))
        for change in changes:
            if change[0] == "c":
                self._make(change)
        if self._commit(raw, rows, plan.entry_ids, changes):
            for change in changes:
                if change[0] != "c":
                    self._make(change, lines.get(change[1], ()))
            self._engine.server.run(
                self._engine.script("planned"), [self._engine.keys.plan], [*self._engine.head(), raw]
            )
        else:
            self._take_back(changes)
        self._engine.forget(*(name for _, name, _ in changes))

    def _make(self, change: Change, lines: Sequence[tuple[str, str]] = ()) -> None:
        """One change, at the queue itself, with what becomes of the lines of its further groups."""
        op, name, row = change
        op = "u" if op == "t" else op
        args: list[Arg] = [*self._engine.head(), op, counters_of(row)]
        keys = self._engine.keys.queue(name)
        if op == "d":
            keys += self._engine.keys.deleted(name, row.number)
        for line_op, group in lines:
            keys += self._engine.keys.queue(name, group)
            args += (line_op, group.encode(), counters_of(row, group))
        if self._engine.server.run(self._engine.script("change"), keys, args)[0] == CHANGED:
            raise QueueChanged(name)

    def _commit(
        self,
        raw: bytes,
        stored: Sequence[tuple[str, str, bytes]],
        entry_ids: list[bytes],
        changes: Sequence[Change],
    ) -> bool:
        """False if the plan is carried out already."""
        engine = self._engine
        keys = [engine.keys.store, engine.keys.queues, *self._worlds.keys(SYSTEM_WORLD), engine.keys.plan]
        rows: list[Arg] = [raw, len(stored)]
        for op, name, row in stored:
            rows += (op, name.encode(), row)
        entries = entries_of(changes)
        while True:
            appending = self._worlds.appending(SYSTEM_WORLD, entries, entry_ids)
            reply = engine.server.run(engine.script("commit"), keys, [*engine.head(), *rows, *appending])
            if reply[0] != CHANGED:
                return bool(reply[0] != NOT_FOUND)
            engine.seals.look()

    def _take_back(self, changes: Sequence[Change]) -> None:
        """Whoever was held up may have made a queue that others have made and deleted meanwhile."""
        for op, name, row in changes:
            now = self._row(name) if op == "c" else row
            if now is None or now.number != row.number:
                self._make(("d", name, row))
