"""Repairs a queue: everything that is derived from its records is built anew, while it is locked."""

from __future__ import annotations

import contextlib
from typing import Any

from penstock.backends.redis.connecting import Arg, pairs
from penstock.backends.redis.engine import Engine, Known
from penstock.backends.redis.quarantine import Quarantine
from penstock.backends.redis.records import encode_counters, fresh_counters, lane, level_of
from penstock.backends.redis.scripts import script
from penstock.codec.body import decode_body
from penstock.errors import PenstockError, StorageCorrupt, StorageError
from penstock.message import DEFAULT_PRIORITY


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
        self._step(q, "begin", encode_counters(fresh))
        try:
            # Locked from here on: what was changed just before must not be undone when it is unlocked.
            q = self._engine.load(name) or q
            removed = self._rebuild(q)
        except StorageError:
            # What is left undone is found by the next check; a locked queue would serve nobody until then.
            with contextlib.suppress(PenstockError):
                self._step(q, "finish", q.changed)
            raise
        finally:
            self._engine.forget(name)
        return "indexes rebuilt" + (f"; {removed} messages could not be kept" if removed else "")

    def _rebuild(self, q: Known) -> int:
        """All steps behind the first; how many messages could not be kept."""
        # Bodies first: what goes for its body's sake must not be in an index by then. And once more, for
        # those whose records could not be used.
        removed = self._bodies(q)
        removed += self._walk(q, "records")
        self._bodies(q)
        self._walk(q, "dedup")
        self._step(q, "finish", q.changed)
        return removed

    def _step(self, q: Known, step: str, *args: Arg) -> list[Any]:
        sent = [*self._engine.head(), step, *args]
        reply: list[Any] = self._engine.server.run(script("rebuild"), q.keys, sent)
        return reply

    def _walk(self, q: Known, step: str) -> int:
        cursor, gone = b"0", 0
        while True:
            _, _, cursor, ids = self._step(q, step, cursor)
            gone += len(ids)
            if cursor == b"0":
                return gone

    def _bodies(self, q: Known) -> int:
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
                    self._step(q, "drop", raw_id)
                    gone += 1
                    continue
                if not server.command("HEXISTS", states, raw_id):
                    priority = DEFAULT_PRIORITY if q.settings.fifo else body.priority
                    line = lane(level_of(priority), body.fairness_key.encode())
                    self._step(q, "lost", raw_id, line, body.weight)
            if int(cursor) == 0:
                return gone
