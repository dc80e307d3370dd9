"""The rows of `meta`: which queues and worlds there are, and whether each row is one that can be."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

from penstock.backends.embedded import keys
from penstock.backends.embedded.admin import decode_queue
from penstock.backends.embedded.buckets import decode_throttle
from penstock.backends.embedded.checking.findings import Finding, Findings
from penstock.backends.embedded.checking.recount import recount, stored_counters
from penstock.backends.embedded.checking.view import View
from penstock.backends.embedded.keys import Due, Meta
from penstock.backends.embedded.load_rows import LOAD_KEY_BYTES, decode_load, decode_progress, decode_txn
from penstock.backends.embedded.quarantine import decode_kept
from penstock.backends.embedded.queue_state import QueueState
from penstock.backends.embedded.rows import (
    MARK,
    Counters,
    CursorRow,
    decode_cursor,
    decode_job,
)
from penstock.backends.embedded.worlds import SYSTEM_WORLD, World, decode_world
from penstock.errors import StorageCorrupt
from penstock.kv.base import Row

_KINDS = frozenset(Meta)


class Catalogue:
    """What the store says that it has."""

    def __init__(self, view: View, findings: Findings) -> None:
        self._view = view
        self._findings = findings
        #: By number. They have settings and counters, and nothing else that is loaded.
        self.queues: dict[int, QueueState] = {}
        self.worlds: dict[str, World] = {}
        self.cursors: list[tuple[int, bytes, CursorRow]] = []
        #: Numbers of deleted queues whose rows are still going.
        self.dropping: set[int] = set()
        #: Numbers of queues whose rows are damaged, where that much can be read.
        self.damaged: set[int] = set()
        self._next_number = 1
        self._highest = 0
        self._lock = threading.RLock()
        self._read()

    def _read(self) -> None:
        view = self._view
        readers: dict[int, Callable[[Row], None]] = {
            Meta.QUEUE: self._queue,
            Meta.WORLD: self._world,
            Meta.CURSOR: self._cursor,
            Meta.JOB: self._job,
            Meta.DUE_HINT: self._due_hint,
            Meta.NEXT_NUMBER: self._number,
            Meta.QUARANTINE: self._kept,
            Meta.USER_STATE: self._marked,
            Meta.THROTTLE: self._throttle,
            Meta.LOAD: self._load,
            Meta.TXN: self._txn,
        }
        for row in view.rows("meta", b"", None):
            kind = row[0][0] if row[0] else -1
            if kind not in _KINDS:
                self._say("row_unknown", "a row of a kind that this Penstock does not know", row)
            elif kind in readers:
                try:
                    readers[kind](row)
                except StorageCorrupt as error:
                    self._say("row_damaged", str(error), row)
        for qid, q in self.queues.items():
            q.counters = self._counters(qid, q)
        if self._next_number <= self._highest:
            what = f"the next number is {self._next_number}, but {self._highest} is in use"
            self._findings.add(Finding("next_number", what, "", "meta", self._highest))

    @property
    def numbers(self) -> set[int]:
        """Numbers that rows of queues may have."""
        return {*self.queues, *self.dropping, *self.damaged}

    def name_of(self, number: int) -> str:
        q = self.queues.get(number)
        return str(number) if q is None else q.name

    def _say(self, kind: str, what: str, row: Row, queue: str = "", number: int = 0) -> None:
        self._findings.row(kind, what, queue, number, "meta", row[0])

    def _queue(self, row: Row) -> None:
        key, raw = row
        name = key[1:].decode(errors="replace")
        try:
            queue = decode_queue(raw)
            if queue.settings.name.encode() != key[1:]:
                raise StorageCorrupt("queue row does not decode: it has the name of another")
            if queue.qid in self.queues or not 0 < queue.qid < 1 << 32:
                raise StorageCorrupt(f"queue row does not decode: number {queue.qid} is another's")
        except StorageCorrupt as error:
            self._say("queue_damaged", str(error), row, name)
            return
        self.queues[queue.qid] = QueueState(queue.qid, queue.settings, self._lock)
        self._highest = max(self._highest, queue.qid)

    def _counters(self, qid: int, q: QueueState) -> Counters:
        try:
            return stored_counters(self._view, q)
        except StorageCorrupt as error:
            key = keys.meta(Meta.COUNTERS, q.prefix)
            self._say("counters_damaged", str(error), (key, b""), q.name, qid)
            return recount(self._view, q)

    def _world(self, row: Row) -> None:
        name = row[0][1:].decode(errors="replace")
        try:
            world = decode_world(row[1])
            if not 0 <= world.base_seq < world.next_seq or not 0 < world.number < 1 << 32:
                raise StorageCorrupt("world row does not decode: its numbers cannot be")
            if world.number in self.queues or self._has_owner(world.number, name):
                raise StorageCorrupt(f"world row does not decode: number {world.number} is another's")
            if name.encode() != row[0][1:] or not name:
                raise StorageCorrupt("world row does not decode: its name is not UTF-8")
        except StorageCorrupt as error:
            self._say("world_damaged", str(error), row, name)
            return
        self.worlds[name] = world
        self._highest = max(self._highest, world.number)

    def _has_owner(self, number: int, name: str) -> bool:
        """Whether a number is another world's; the system journal's is its own, whoever comes first."""
        if name == SYSTEM_WORLD:
            return False
        raw = self._view.get("meta", keys.meta(Meta.WORLD, SYSTEM_WORLD.encode()))
        with contextlib.suppress(StorageCorrupt):
            if raw is not None and decode_world(raw).number == number:
                return True
        return any(world.number == number for world in self.worlds.values())

    def _cursor(self, row: Row) -> None:
        number = int.from_bytes(row[0][1:5], "big")
        try:
            self.cursors.append((number, row[0], decode_cursor(row[1])))
        except StorageCorrupt as error:
            self._say("cursor_damaged", str(error), row, self.name_of(number), number)

    def _job(self, row: Row) -> None:
        if len(row[0]) != 5:
            return
        job = decode_job(row[1])
        self._highest = max(self._highest, int.from_bytes(row[0][1:5], "big"), job.qid)
        if job.what == "drop":
            self.dropping.add(job.qid)

    def _load(self, row: Row) -> None:
        if len(row[0]) == LOAD_KEY_BYTES:
            decode_load(row[1])
        else:
            decode_progress(row[1])
        self._highest = max(self._highest, int.from_bytes(row[0][1:5], "big"))

    def _txn(self, row: Row) -> None:
        decode_txn(row[1])

    def _throttle(self, row: Row) -> None:
        try:
            decode_throttle(row[1])
            row[0][1:].decode()
        except (StorageCorrupt, UnicodeDecodeError) as error:
            self._say("throttle_damaged", str(error), row)

    def _due_hint(self, row: Row) -> None:
        if len(row[0]) != 2 or row[0][1] not in frozenset(Due) or len(row[1]) != 9:
            raise StorageCorrupt("due hint does not decode")

    def _number(self, row: Row) -> None:
        if len(row[1]) != 5:
            raise StorageCorrupt("next number does not decode")
        self._next_number = int.from_bytes(row[1][1:], "big")

    def _kept(self, row: Row) -> None:
        decode_kept(row[1])

    def _marked(self, row: Row) -> None:
        if row[1][:1] != MARK:
            raise StorageCorrupt(f"row has version {row[1][:1].hex()}; this Penstock reads 01")
