"""Upkeep: the slices of work that a sweep is made of, in turn, so that none starves."""

from __future__ import annotations

from collections.abc import Callable

from penstock.backends.embedded import history
from penstock.backends.embedded.bulk import Bulk
from penstock.backends.embedded.engine import Engine
from penstock.backends.embedded.sweep import SLICE, SWEEP_ORDER, apply_due
from penstock.backends.embedded.worlds import Worlds

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
            worked = steps[self._next_step]()
            self._next_step = (self._next_step + 1) % len(steps)
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
            worlds = [world for world, row in self._worlds.all() if row.retention_s or row.max_bytes]
        for world in worlds:
            with engine.transaction() as txn:
                if self._worlds.trim(txn, world, FRAMES_PER_SLICE):
                    return 1
        return 0

    def _trim_queue(self, name: str) -> bool:
        engine = self._engine
        with engine.transaction() as txn:
            if name not in engine.queues:
                return False
            q = engine.queue(name)
            return history.trim(txn, q, FRAMES_PER_SLICE) + history.free_held(txn, q, SLICE) > 0
