"""Repairs a queue: everything that is derived from its records is built anew, while it is locked."""

from __future__ import annotations

import logging
import os
from functools import partial
from typing import Any

from penstock.backends.redis.connecting import Arg, Server, pairs
from penstock.backends.redis.engine import CHANGED, Engine, Known
from penstock.backends.redis.profiles import parse_info
from penstock.backends.redis.quarantine import Quarantine
from penstock.backends.redis.records import encode_counters, fresh_counters, lane, level_of
from penstock.backends.redis.scripts import script
from penstock.codec.body import decode_body
from penstock.errors import BackendUnavailable, StorageCorrupt, StorageError, Unauthorized
from penstock.message import DEFAULT_PRIORITY

log = logging.getLogger("penstock")


def runs_of(server: Server) -> list[str]:
    """Which runs of its servers these are; nothing where a user may not ask."""
    try:
        return [parse_info(one).get("run_id", "") for one in server.everywhere("INFO", "server")]
    except Unauthorized:
        return []


class Repairing:
    """Repairs the queues of one store."""

    def __init__(self, engine: Engine, quarantine: Quarantine) -> None:
        self._engine = engine
        self._quarantine = quarantine

    def repair(self, name: str) -> str:
        """What was done."""
        q = self._engine.load(name)
        if q is None:
            return "gone meanwhile"
        # For a queue whose counters are lost; else those that it has stay, but for what is counted.
        fresh = fresh_counters(q.number, q.changed, self._engine.now_us(), q.settings)
        lock = -1 - int.from_bytes(os.urandom(6), "big")
        began = runs_of(self._engine.server)
        begin = partial(self._step, q, lock, "begin", encode_counters(fresh))
        begin()
        try:
            # Locked from here on: what was changed just before must not be undone when it is unlocked.
            q = self._engine.load(name) or q
            removed = self._rebuild(q, lock)
            while (runs := runs_of(self._engine.server)) != began:
                # A place in a hash is of the process that gave it: another one would pass over some.
                began = runs
                begin()
                removed += self._rebuild(q, lock)
            self._step(q, lock, "finish", q.changed)
        except StorageError as error:
            # Half of an index would hand out some and hide the rest: it stays locked until it is whole.
            log.error("the repair of queue %r failed; it is locked until one succeeds: %s", name, error)
            raise
        finally:
            self._engine.forget(name)
        return "indexes rebuilt" + (f"; {removed} messages could not be kept" if removed else "")

    def _rebuild(self, q: Known, lock: int) -> int:
        """All steps between the first and the last; how many messages could not be kept."""
        # Bodies first: what goes for its body's sake must not be in an index by then. And once more, for
        # those whose records could not be used.
        removed = self._bodies(q, lock)
        removed += self._walk(q, lock, "records")
        self._bodies(q, lock)
        self._walk(q, lock, "dedup")
        return removed

    def _step(self, q: Known, lock: int, step: str, *args: Arg) -> list[Any]:
        sent = [*self._engine.head(), step, *args, lock]
        reply: list[Any] = self._engine.server.run(script("rebuild"), q.keys, sent)
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
        server, bodies, states = self._engine.server, q.keys[1], q.keys[2]
        cursor, gone = 0, 0
        while True:
            cursor, page = server.command("HSCAN", bodies, cursor, "COUNT", 200)
            for raw_id, raw in pairs(page):
                try:
                    body = decode_body(self._engine.opened_body(q, raw_id, raw))
                except StorageCorrupt as error:
                    item = self._quarantine.row(q.name, "bodies", raw_id, str(error), raw)
                    server.command("HSET", self._engine.keys.quarantine, *item)
                    self._step(q, lock, "drop", raw_id)
                    gone += 1
                    continue
                if not server.command("HEXISTS", states, raw_id):
                    priority = DEFAULT_PRIORITY if q.settings.fifo else body.priority
                    line = lane(level_of(priority), body.fairness_key.encode())
                    self._step(q, lock, "lost", raw_id, line, body.weight)
            if int(cursor) == 0:
                return gone
