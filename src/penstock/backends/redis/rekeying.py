"""Rekeying: everything secret is sealed once more with the active key, in slices, beside the traffic.

How far it is stands in the store, so that any process goes on with it after a crash. Every value is replaced
only if it still is what was read. First all queues count as changed: whoever has the store open reads the
list of keys before it stores anything more, so that nothing comes after that is sealed otherwise.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from penstock.backends.base import Progress, RekeyReport
from penstock.backends.redis.catalogue import Catalogue
from penstock.backends.redis.connecting import Arg, pairs
from penstock.backends.redis.copying import Copying, Interrupted
from penstock.backends.redis.engine import (
    BETWEEN,
    CHANGED,
    PATIENCE_S,
    Engine,
    Known,
    QueueRow,
)
from penstock.backends.redis.finishing import Finishing
from penstock.backends.redis.keys import BODIES as BODIES_KEY
from penstock.backends.redis.keys import DEPARTURES
from penstock.backends.redis.keys import STATES as STATES_KEY
from penstock.backends.redis.renewing import Renewing
from penstock.backends.redis.runs import Runs, runs_of
from penstock.backends.redis.scripts import script
from penstock.backends.redis.seals import QUARANTINE, SECRET, SECRET_FIELD, VALUES
from penstock.backends.redis.snapshots import Snapshots
from penstock.backends.redis.worlds import Worlds
from penstock.backends.redis.writing import Writing
from penstock.backends.unlocking import PLAIN, KeysRow
from penstock.codec.sealed import key_id_of
from penstock.errors import (
    BackendUnavailable,
    InvalidConfig,
    KeyMissing,
    QueueNotFound,
    StorageCorrupt,
    StorageError,
    StorageFull,
    Unauthorized,
)

log = logging.getLogger("penstock")

REKEY_FIELD = b"rekey"
ROW_VERSION = b"\x01"
VALUES_PER_SLICE = 100
#: How long a process that stalls keeps others from going on with it.
HELD_MS = 10_000
#: What is waited for in the end is told once for so many looks at it.
TELL_EVERY = 200

#: The parts, in their order. Those of queues and worlds go through them by name.
(_SECRET, _VALUES, _QUARANTINE, _TOUCH, _WRITES, _BODIES) = range(6)
(_RECORDS, _JOURNALS, _WORLDS, _KEPT, _LOGS, _END) = range(6, 12)

#: field, value -> value as it should be
_Renew = Callable[[bytes, bytes], bytes]
#: fields with digest and new value -> b"1" or b"0" of each
_Replace = Callable[[list[Arg]], bytes]


class RekeyRow(msgspec.Struct, array_like=True):
    """How far a rekeying is, and what it has found: part, name of queue or world, place in it."""

    target: str
    part: int = 0
    name: str = ""
    cursor: bytes = b"0"
    records: int = 0
    rewritten: int = 0
    unreadable: dict[str, int] = {}
    #: The runs of the servers that it is all about: others have another order, and may have lost the last.
    run_id: str = ""
    #: Bodies in streams that are sealed otherwise, by key.
    left: dict[str, int] = {}
    #: Which one it is: it has another with each beginning.
    id: bytes = b""


_decode = msgspec.msgpack.Decoder(RekeyRow).decode


class Rekeying:
    """The rekeying of one store."""

    def __init__(
        self,
        engine: Engine,
        worlds: Worlds,
        catalogue: Catalogue,
        snapshots: Snapshots,
        writing: Writing,
    ) -> None:
        self._engine = engine
        self._catalogue = catalogue
        self._snapshots = snapshots
        self._writing = writing
        self._finishing = Finishing(engine.server)
        self._copying = Copying(engine, worlds, self._go_on)
        self._me = os.urandom(16)
        #: How often it has looked whether the end has come.
        self._waited = 0
        #: Why it does not go on by itself.
        self.given_up: list[str] = []

    def tell_others(self) -> None:
        """Where this opening has brought a key, whoever has the store open uses it from its next call on."""
        if self._engine.seals.brought_key:
            for name in self._engine.all_queues():
                # One that a repair has locked, or that is damaged, is told when everything is sealed anew.
                with contextlib.suppress(BackendUnavailable, StorageCorrupt):
                    self._catalogue.touch(name, attempts=5)

    def others(self) -> list[str]:
        """What else values may be sealed with, "" for not at all."""
        row = self._engine.seals.row
        return [] if row is None else sorted({*row.verifiers} - {row.active})

    def run(self, progress: Progress | None = None) -> RekeyReport:
        """Start, or take up what was started, and go on to the end."""
        self.given_up = []
        self._engine.seals.look()
        row = self._read()
        if row is None:
            if not self.others():
                return RekeyReport()
            row = RekeyRow(self._engine.seals.active or PLAIN, id=os.urandom(8))
            self._note(row, begin=True)
        total = self._total() if progress is not None else 0
        last = row
        while (row := self._read()) is not None:
            last = row
            if not self._hold():
                self._pause()
                continue
            if row.part >= _LOGS and progress is not None:
                progress("compact", 0, 1)
            self._step(row)
            if progress is not None:
                progress("rekey", row.records, max(total, row.records))
        if progress is not None:
            progress("compact", 1, 1)
        return RekeyReport(last.records, last.rewritten, sum(last.unreadable.values()))

    def slice(self) -> int:
        """One slice of what is under way, for housekeeping; 1 if there was something to do."""
        row = None if self.given_up else self._read()
        if row is None or not self._hold():
            return 0
        try:
            self._step(row)
        except (KeyMissing, StorageFull):
            raise  # The store's trouble or the server's: it goes on once that is over.
        except (StorageError, Unauthorized, InvalidConfig) as error:
            if error.retryable:
                raise  # A new password is on its way.
            # Not tried again and again: it stays as it is until somebody has seen to it.
            self.given_up = [f"rekeying has stopped until it is called for again: {error}"]
            log.error("%s", self.given_up[0])
            return 0
        return 1

    # -- where it is

    def _read(self) -> RekeyRow | None:
        raw = self._engine.server.command("HGET", self._engine.keys.store, REKEY_FIELD)
        try:
            return None if raw is None else _decode(raw[1:])
        except msgspec.DecodeError as error:
            raise StorageCorrupt(f"position of a rekeying does not decode: {error}") from error

    def _note(self, row: RekeyRow, *, begin: bool = False) -> None:
        engine = self._engine
        raw = ROW_VERSION + msgspec.msgpack.encode(row)
        args: list[Arg] = [*engine.head(), engine.seals.fence, raw, int(begin)]
        if engine.server.run(script("rekey"), [engine.keys.store], args)[0] == CHANGED:
            engine.seals.look()

    def _hold(self) -> bool:
        """Whether it is for this process to go on with it: two would be in each other's way."""
        server, key = self._engine.server, self._engine.keys.rekeyer
        if server.command("SET", key, self._me, "NX", "PX", HELD_MS):
            return True
        return bool(server.command("GET", key) == self._me and server.command("PEXPIRE", key, HELD_MS))

    def _go_on(self) -> None:
        if self._engine.closed.is_set():
            raise StorageError("the store is closed; open it again")
        if not self._hold():
            raise Interrupted

    def _pause(self) -> None:
        if self._engine.closed.wait(PATIENCE_S):
            raise StorageError("the store is closed; open it again")

    # -- steps

    def _step(self, row: RekeyRow) -> None:
        """One slice, and where the next one goes on."""
        seals = self._engine.seals
        seals.look()
        runs = runs_of(self._engine.server)
        if row.run_id != runs.text:
            # From the beginning: a place in a hash is of the process that gave it.
            self._note(RekeyRow(row.target, rewritten=row.rewritten, run_id=runs.text, id=os.urandom(8)))
            return
        if row.part >= _LOGS:
            if not self._end(row, runs):
                self._pause()
            return
        renewing = Renewing(self._engine)
        try:
            ended = self._part(row, renewing)
        except Interrupted:
            self._pause()
            return
        known = seals.row.verifiers if seals.row is not None else {}
        for key_id, count in renewing.unreadable.items():
            # An id that the store does not list is part of the damage.
            key_id = key_id if key_id in known else PLAIN
            row.unreadable[key_id] = row.unreadable.get(key_id, 0) + count
        if ended:
            row.part, row.name, row.cursor = row.part + 1, "", b"0"
        self._note(row)

    def _part(self, row: RekeyRow, renewing: Renewing) -> bool:
        """A slice of a part; whether that was the last."""
        keys = self._engine.keys
        if row.part == _SECRET:
            return self._secret(renewing)
        if row.part == _VALUES:
            return self._own(row, keys.state, lambda name, raw: renewing.value(VALUES, name, raw))
        if row.part == _QUARANTINE:
            return self._own(row, keys.quarantine, lambda name, raw: renewing.value(QUARANTINE, name, raw))
        if row.part == _WORLDS:
            names = [name.decode() for name in self._engine.server.command("HKEYS", keys.worlds)]
            return self._named(row, names, lambda name: self._count(row, self._copying.world(name, renewing)))
        if row.part == _WRITES:
            return self._writing.finish_others()
        if row.part == _KEPT:
            return self._kept(row)
        if row.part == _TOUCH and not row.name:
            self._catalogue.settle()  # What was decided under another list of keys may make further queues.
        names = [line for name, one in self._engine.every_queue().items() for line in _lines(name, one)]
        return self._named(row, names, lambda name: self._queue(row, name, renewing))

    def _named(self, row: RekeyRow, names: Sequence[str], act: Callable[[str], bool]) -> bool:
        """A slice of the one that it is at, or of the next by name."""
        if row.cursor == b"0":
            row.name = min((name for name in names if name > row.name), default="")
        if not row.name:
            return True
        try:
            if act(row.name):
                row.cursor = b"0"
        except QueueNotFound:  # Deleted meanwhile.
            row.cursor = b"0"
        return False

    def _queue(self, row: RekeyRow, name: str, renewing: Renewing) -> bool:
        """A slice of a queue; whether it was the last."""
        engine = self._engine
        if row.part == _TOUCH:
            if BETWEEN not in name:
                self._catalogue.touch(name)
            return engine.with_queue(name, lambda q: self._departures(row, q, renewing))
        if row.part == _BODIES and BETWEEN in name:
            return True  # Of its queue.
        if row.part == _BODIES and engine.keys.store_kind == "stream":
            return engine.with_queue(name, lambda q: self._entries(row, q))
        if row.part == _JOURNALS:
            counted = engine.with_queue(name, lambda q: self._copying.journal(q, renewing))
            return self._count(row, counted)
        place, renew = (BODIES_KEY, renewing.body) if row.part == _BODIES else (STATES_KEY, renewing.record)

        def act(q: Known) -> bool:
            part = "m" if row.part == _BODIES else "s"
            return self._hash(
                row,
                q.keys[place],
                lambda raw_id, raw: renew(q, raw_id, raw),
                lambda args: bytes(engine.run("reseal", [q], part, *args)[2]),
            )

        return engine.with_queue(name, act)

    def _departures(self, row: RekeyRow, q: Known, renewing: Renewing) -> bool:
        """What was written down of transfers on a cluster; what comes behind the touch is as it should be."""
        key = q.keys[DEPARTURES]
        for transfer, raw in pairs(self._engine.server.command("HGETALL", key)):
            new = renewing.departure(q, raw)
            row.records += 1
            if new is not raw:
                answer = self._engine.run("reseal", [q], "v", transfer, _digest(raw), new)[2]
                row.rewritten += answer.count(b"1")  # Else it is over.
        return True

    def _entries(self, row: RekeyRow, q: Known) -> bool:
        """A slice of a stream. What is in one is never rewritten: keys that it still needs are kept."""
        start = b"-" if row.cursor == b"0" else b"(" + row.cursor
        page = self._engine.server.command(
            "XRANGE", q.keys[BODIES_KEY], start, "+", "COUNT", VALUES_PER_SLICE
        )
        active = self._engine.seals.active
        for _, fields in page:
            flat = fields if isinstance(fields, list) else [one for pair in fields.items() for one in pair]
            key_id = key_id_of(flat[3]) if len(flat) == 4 else None
            if key_id != active:
                row.left[key_id or PLAIN] = row.left.get(key_id or PLAIN, 0) + 1
        row.records += len(page)
        row.cursor = page[-1][0] if len(page) == VALUES_PER_SLICE else b"0"
        return row.cursor == b"0"

    def _count(self, row: RekeyRow, counted: tuple[int, int]) -> bool:
        row.records += counted[0]
        row.rewritten += counted[1]
        return True

    def _secret(self, renewing: Renewing) -> bool:
        store = self._engine.keys.store
        raw = self._engine.server.command("HGET", store, SECRET_FIELD)
        if raw is not None:
            new = renewing.value(SECRET, b"", raw)
            if new is not raw:
                self._replace_own(store, [SECRET_FIELD, _digest(raw), new])
        return True

    def _own(self, row: RekeyRow, key: bytes, renew: _Renew) -> bool:
        return self._hash(row, key, renew, lambda args: self._replace_own(key, args))

    def _replace_own(self, key: bytes, args: list[Arg]) -> bytes:
        engine = self._engine
        sent = [*engine.head(), engine.seals.fence, *args]
        reply = engine.server.run(script("reseal_own"), [engine.keys.store, key], sent)
        if reply[0] == CHANGED:
            raise Interrupted
        return bytes(reply[2])

    def _hash(self, row: RekeyRow, key: bytes, renew: _Renew, replace: _Replace) -> bool:
        """A slice of a hash; whether it was the last. What was changed meanwhile is looked at again."""
        server = self._engine.server
        cursor, page = server.command("HSCAN", key, row.cursor, "COUNT", VALUES_PER_SLICE)
        some: list[tuple[bytes, bytes]] = list(pairs(page))
        row.records += len(some)
        while some:
            new = [(field, raw, renewed) for field, raw in some if (renewed := renew(field, raw)) is not raw]
            if not new:
                break
            args: list[Arg] = [one for field, raw, value in new for one in (field, _digest(raw), value)]
            answers = replace(args)
            row.rewritten += answers.count(b"1")
            left = [one[0] for one, answer in zip(new, answers, strict=True) if answer != ord("1")]
            found: list[Any] = server.command("HMGET", key, *left) if left else []
            some = [(field, raw) for field, raw in zip(left, found, strict=True) if raw is not None]
        row.cursor = bytes(cursor)
        return row.cursor == b"0"

    def _kept(self, row: RekeyRow) -> bool:
        """What is in no queue and not sealed anew goes: staged rows, snapshots that were taken before."""
        if row.cursor == b"0":
            self._writing.forget_others()
            row.cursor = b"%d" % self._snapshots.last_number()
        if not self._snapshots.has_ended(int(row.cursor)):
            self._wait_for("a snapshot that was taken before may be read")
            self._pause()
            return False
        return True

    def _wait_for(self, why: str) -> None:
        self._waited += 1
        if self._waited % TELL_EVERY == 0:
            log.warning("all is rekeyed, but the old keys are kept as long as %s", why)

    def _total(self) -> int:
        """About how many values there are."""
        server, keys = self._engine.server, self._engine.keys
        hashes = [keys.state, keys.quarantine]
        for name in self._engine.all_queues():
            of_queue = keys.queue(name)
            hashes += [of_queue[STATES_KEY], of_queue[STATES_KEY]]  # As many bodies as records.
        return sum(int(server.command("HLEN", key)) for key in hashes)

    def _end(self, row: RekeyRow, runs: Runs) -> bool:
        """Everything is sealed with the active key: logs forget what was, and the keys go. False to wait."""
        if row.part == _LOGS:
            if not self._finishing.forget_logs():
                return False
            row.part = _END
            self._note(row)
            return True
        server = self._engine.server
        why = "slots are on their way" if runs.is_moving else self._finishing.waits_for(row.id)
        if why:
            self._wait_for(why)
            return False
        # Looked at behind that: a server that came meanwhile may lack the last.
        if runs_of(server) == runs:
            self._let_go(row, runs.ids[server.node_of(self._engine.keys.store)])
        return True

    def _let_go(self, row: RekeyRow, run_id: str) -> None:
        seals = self._engine.seals
        if seals.row is None:
            return
        kept = {seals.row.active, *row.unreadable, *row.left}
        left = KeysRow(row.target, {i: v for i, v in seals.row.verifiers.items() if i in kept})
        if not seals.let_go(None if left.verifiers == {PLAIN: b""} else left, run_id):
            return  # Somebody has brought another key, or was faster; or the server is another.
        log.info("rekeyed to=%s records=%d rewritten=%d", row.target or "plain", row.records, row.rewritten)
        if row.left:
            count = sum(row.left.values())
            log.warning("%d bodies in streams stay sealed as they are; rekey again once they are gone", count)
        if row.unreadable:
            count = sum(row.unreadable.values())
            log.error("%d records do not open and were left as they are; run check", count)


def _lines(name: str, row: QueueRow) -> list[str]:
    """A queue, and the lines of its further groups."""
    return [name, *(name + BETWEEN + one.name for one in row.groups[1:])]


def _digest(raw: bytes) -> bytes:
    return hashlib.sha1(raw, usedforsecurity=False).hexdigest().encode()
