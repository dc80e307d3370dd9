"""Upkeep: the slices of work that a sweep is made of, in turn, so that none starves."""

from __future__ import annotations

import logging
from collections.abc import Callable

from penstock.backends.embedded import history
from penstock.backends.embedded.bulk import Bulk
from penstock.backends.embedded.engine import Engine
from penstock.backends.embedded.sweep import SLICE, SWEEP_ORDER, apply_due
from penstock.backends.embedded.worlds import Worlds
from penstock.errors import StorageCorrupt

log = logging.getLogger("penstock")

#: Queues whose journal and held bodies one round looks at.
QUEUES_PER_ROUND = 16
FRAMES_PER_SLICE = 200


class Upkeep:
    """What time, bulk operations and retention leave to be done in one store."""

    def __init__(self, engine: Engine, bulk: Bulk, worlds: Worlds) -> None:
        self._engine = engine
        self._bulk = bulk
        self._worlds = worlds
        #: Queues that this round of retention has yet to look at.
        self._round: list[str] = []
        self._next_step = 0
        #: Numbers of queues and worlds with a damaged frame: not trimmed until the store is opened again.
        self._damaged: set[int] = set()

    def tidy(self, budget: int) -> int:
        """Up to so many slices; how many were done.

        One slice of each kind of work in turn, going on where the last call stopped: none starves.
        """
        steps: list[Callable[[], int]] = [
            *(lambda kind=kind: int(apply_due(self._engine, kind) > 0) for kind in SWEEP_ORDER),
            lambda: self._bulk.resume(1),
            self._trim,
        ]
        done = idle = 0
        while done < budget and idle < len(steps):
            step = steps[self._next_step]
            # Before it runs: one that fails does not keep the others from their turn.
            self._next_step = (self._next_step + 1) % len(steps)
            worked = step()
            done += worked
            idle = 0 if worked else idle + 1
        return done

    def _trim(self) -> int:
        """One slice of retention, in the next few queues or the worlds; 1 if there was something to do."""
        engine = self._engine
        with engine.lock:
            engine.check_usable()
            if not self._round:
                self._round = list(engine.queues)
            names, self._round = self._round[:QUEUES_PER_ROUND], self._round[QUEUES_PER_ROUND:]
        for at, name in enumerate(names):
            if self._trim_queue(name):
                with engine.lock:
                    self._round = names[at:] + self._round
                return 1
        with engine.lock:
            worlds = [row for row in self._worlds.all() if row[1].retention_s or row[1].max_bytes]
        return int(any(self._trim_world(name, row.number) for name, row in worlds))

    def _trim_queue(self, name: str) -> bool:
        engine = self._engine
        with engine.lock:
            known = engine.queues.get(name)
        if known is None:
            return False
        try:
            with engine.transaction() as txn:
                if name not in engine.queues:
                    return False
                q = engine.queue(name)
                trimmed = 0 if q.qid in self._damaged else history.trim(txn, q, FRAMES_PER_SLICE)
                return trimmed + history.free_held(txn, q, SLICE) > 0
        except StorageCorrupt as error:
            self._keep(known.qid, f"queue {name!r}", error)
            return False

    def _trim_world(self, name: str, number: int) -> bool:
        if number in self._damaged:
            return False
        try:
            with self._engine.transaction() as txn:
                return self._worlds.trim(txn, name, FRAMES_PER_SLICE) > 0
        except StorageCorrupt as error:
            self._keep(number, f"world {name!r}", error)
            return False

    def _keep(self, number: int, what: str, error: StorageCorrupt) -> None:
        """One damaged frame must not keep the other queues and worlds from their turn."""
        if number not in self._damaged:
            log.error("the journal of %s is kept as it is: %s", what, error)
        self._damaged.add(number)
