"""Repairs a queue: everything that is derived from its records is built anew, while it is locked."""

from __future__ import annotations

import contextlib
from typing import Any

from penstock.backends.redis.connecting import Arg
from penstock.backends.redis.engine import LEAVING, Engine, Known
from penstock.backends.redis.quarantine import Quarantine
from penstock.backends.redis.records import encode_counters, fresh_counters, lane, level_of
from penstock.codec.body import decode_body
from penstock.errors import PenstockError, StorageCorrupt, StorageError
from penstock.message import DEFAULT_PRIORITY


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
            removed += 0 if q is None else self._line(q)
        return "indexes rebuilt" + (f"; {removed} messages could not be kept" if removed else "")

    def _line(self, q: Known) -> int:
        """How many of its messages could not be kept."""
        # For a queue whose counters are lost; else those that it has stay, but for what is counted.
        fresh = fresh_counters(q.number, q.changed, self._engine.now_us(), q.settings)
        self._step(q, "begin", encode_counters(fresh), int(q.is_view))
        try:
            # Locked from here on: what was changed just before must not be undone when it is unlocked.
            q = self._engine.load(q.address) or q
            return self._rebuild(q)
        except StorageError:
            # What is left undone is found by the next check; a locked queue would serve nobody until then.
            with contextlib.suppress(PenstockError):
                self._step(q, "finish", q.changed)
            raise
        finally:
            self._engine.forget(q.name)

    def _rebuild(self, q: Known) -> int:
        """All steps behind the first; how many messages could not be kept."""
        if q.is_view:
            removed = self._walk(q, "records")
            self._step(q, "finish", q.changed)
            return removed
        # Bodies first: what goes for its body's sake must not be in an index by then. And once more, for
        # those whose records could not be used.
        removed = self._bodies(q)
        removed += self._walk(q, "records")
        self._bodies(q)
        self._walk(q, "dedup")
        self._walk(q, "shares")
        self._step(q, "finish", q.changed)
        return removed

    def _step(self, q: Known, step: str, *args: Arg) -> list[Any]:
        sent = [*self._engine.head(q.group), step, *args]
        reply: list[Any] = self._engine.server.run(self._engine.script("rebuild"), (*q.keys, *q.views), sent)
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
        server = self._engine.server
        cursor, gone, is_counted = b"0", 0, int(all(one.stage != LEAVING for one in q.groups))
        while True:
            _, _, cursor, page = self._step(q, "bodies", cursor, is_counted)
            for raw_id, raw, entry, is_known in page:
                try:
                    body = decode_body(self._engine.opened_body(q, raw_id, raw))
                except StorageCorrupt as error:
                    item = self._quarantine.row(q.name, "bodies", raw_id, str(error), raw)
                    server.command("HSET", self._engine.keys.quarantine, *item)
                    self._step(q, "drop", raw_id, entry)
                    gone += 1
                    continue
                if is_known == b"0":
                    priority = DEFAULT_PRIORITY if q.settings.fifo else body.priority
                    line = lane(level_of(priority), body.fairness_key.encode())
                    self._step(q, "lost", raw_id, line, body.weight, entry, len(raw))
            if cursor == b"0":
                return gone
