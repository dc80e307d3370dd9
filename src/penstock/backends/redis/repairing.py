"""Repairs a queue: everything that is derived from its records is built anew, while it is locked."""

from __future__ import annotations

import logging
import os
from functools import partial
from typing import Any

from penstock.backends.redis.connecting import Arg
from penstock.backends.redis.engine import CHANGED, NOT_FOUND, Engine, Known
from penstock.backends.redis.quarantine import Quarantine
from penstock.backends.redis.records import encode_counters, fresh_counters, lane, level_of
from penstock.backends.redis.runs import runs_if_told, settled_runs
from penstock.codec.body import decode_body
from penstock.errors import BackendUnavailable, QueueNotFound, StorageCorrupt, StorageError
from penstock.message import DEFAULT_PRIORITY

log = logging.getLogger("penstock")

RAW_ID_BYTES = 16


class Repairing:
    """Repairs the queues of one store."""

    def __init__(self, engine: Engine, quarantine: Quarantine) -> None:
        self._engine = engine
        self._quarantine = quarantine

    def repair(self, name: str) -> str:
        """What was done. The own line last: lines are counted in it."""
        own = self._engine.load(name)
        if own is None:
            return "gone meanwhile"
        removed = 0
        for address in (*own.further_lines, name):
            self._engine.forget(name)
            q = self._engine.load(address)
            try:
                removed += 0 if q is None else self._line(q)
            except QueueNotFound:
                return "gone meanwhile"
        return "indexes rebuilt" + (f"; {removed} messages could not be kept" if removed else "")

    def _line(self, q: Known) -> int:
        """How many of its messages could not be kept."""
        # For a queue whose counters are lost; else those that it has stay, but for what is counted.
        fresh = fresh_counters(q.number, q.changed, self._engine.now_us(), q.settings)
        lock = -1 - int.from_bytes(os.urandom(6), "big")
        server = self._engine.server
        began = runs_if_told(server)
        begin = partial(self._step, q, lock, "begin", encode_counters(fresh), int(q.is_view))
        before = begin()[4]
        try:
            # Locked from here on: what was changed just before must not be undone when it is unlocked.
            q = self._engine.load(q.address) or q
            removed = self._rebuild(q, lock)
            while (runs := settled_runs(server, q.keys[0], self._engine.closed)) != began:
                # A place in a hash is of the process that gave it: another one would pass over some.
                began = runs
                begin()
                removed += self._rebuild(q, lock)
            # As it was, if somebody planned a change of a cluster's queues: that is made when this has ended.
            is_planned = before >= 0 and server.command("EXISTS", self._engine.keys.plan)
            self._step(q, lock, "finish", before if is_planned else q.changed)
        except StorageError as error:
            # Half of an index would hand out some and hide the rest: it stays locked until it is whole.
            log.error("the repair of queue %r failed; it is locked until one succeeds: %s", q.name, error)
            raise
        finally:
            self._engine.forget(q.name)
        return removed

    def _rebuild(self, q: Known, lock: int) -> int:
        """All steps between the first and the last; how many messages could not be kept."""
        if q.is_view:
            return self._walk(q, lock, "records")
        # Bodies first: what goes for its body's sake must not be in an index by then. And once more, for
        # those whose records could not be used.
        removed = self._bodies(q, lock)
        removed += self._walk(q, lock, "records")
        self._bodies(q, lock)
        self._walk(q, lock, "dedup")
        self._walk(q, lock, "shares")
        return removed

    def _step(self, q: Known, lock: int, step: str, *args: Arg) -> list[Any]:
        sent = [*self._engine.head(q.group), step, *args, lock]
        reply: list[Any] = self._engine.server.run(
            self._engine.script("rebuild"), (*q.keys, *q.views, *q.leaving), sent
        )
        if reply[0] == NOT_FOUND:
            raise QueueNotFound(q.name)
        if reply[0] == CHANGED:
            raise BackendUnavailable(f"another repair of queue {q.name!r} has begun; this one has ended")
        return reply

    def _walk(self, q: Known, lock: int, step: str) -> int:
        cursor, gone = b"0", 0
        while True:
            _, _, cursor, ids = self._step(q, lock, step, cursor)
            gone += len(ids)
            if cursor == b"0":
                return gone

    def _bodies(self, q: Known, lock: int) -> int:
        """Bodies without a record are ready again; those that do not decode go to quarantine."""
        server = self._engine.server
        cursor, gone = b"0", 0
        while True:
            _, _, cursor, page = self._step(q, lock, "bodies", cursor)
            for raw_id, raw, entry, is_known in page:
                try:
                    if len(raw_id) != RAW_ID_BYTES:
                        raise StorageCorrupt(f"entry {entry.decode()} has no id of a message")
                    body = decode_body(self._engine.opened_body(q, raw_id, raw))
                except StorageCorrupt as error:
                    item = self._quarantine.row(q.name, "bodies", raw_id, str(error), raw)
                    server.command("HSET", self._engine.keys.quarantine, *item)
                    self._step(q, lock, "drop", raw_id, entry)
                    gone += 1
                    continue
                if is_known == b"0":
                    priority = DEFAULT_PRIORITY if q.settings.fifo else body.priority
                    line = lane(level_of(priority), body.fairness_key.encode())
                    self._step(q, lock, "lost", raw_id, line, body.weight, entry, len(raw))
            if cursor == b"0":
                return gone
