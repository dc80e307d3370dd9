"""Upkeep: the slices of work that a sweep is made of, in turn, so that none starves."""

from __future__ import annotations

import logging
from collections.abc import Callable

from penstock.backends.embedded import history
from penstock.backends.embedded.bulk import Bulk
from penstock.backends.embedded.engine import Engine
from penstock.backends.embedded.failures import Failures
from penstock.backends.embedded.loads import Loads
from penstock.backends.embedded.rekey import Rekey
from penstock.backends.embedded.snapshots import Snapshots
from penstock.backends.embedded.sweep import SLICE, SWEEP_ORDER, apply_due
from penstock.backends.embedded.worlds import Worlds
from penstock.errors import is_of_the_store

log = logging.getLogger("penstock")

#: Queues whose journal and held bodies one round looks at.
QUEUES_PER_ROUND = 16
FRAMES_PER_SLICE = 200


class Upkeep:
    """What time, bulk operations and retention leave to be done in one store."""

    def __init__(
        self,
        engine: Engine,
        failures: Failures,
        bulk: Bulk,
        worlds: Worlds,
        rekey: Rekey,
        snapshots: Snapshots,
        loads: Loads,
    ) -> None:
        self._engine = engine
        self._scripted = failures
        self._bulk = bulk
        self._worlds = worlds
        self._rekey = rekey
        self._snapshots = snapshots
        self._loads = loads
        #: Queues that this round of retention has yet to look at.
        self._round: list[str] = []
        self._next_step = 0
        #: What is wrong with journals that are not trimmed until the store is opened again, by number.
        self._damaged_queues: dict[int, str] = {}
        self._damaged_worlds: dict[int, str] = {}
        #: Why a kind of work failed when it last had its turn.
        self._failures: dict[int, str] = {}

    def forget_damage(self) -> None:
        """After a repair: what could not be done is tried again."""
        self._loads.forget_damage()
        self._damaged_queues.clear()
        self._damaged_worlds.clear()

    def reasons(self) -> list[str]:
        """What of the upkeep does not go on."""
        # Copies: the housekeeper may be adding to them.
        damaged, failures, worlds = (
            dict(self._damaged_queues),
            dict(self._failures),
            dict(self._damaged_worlds),
        )
        queues = [why for number, why in damaged.items() if number in self._engine.by_qid]
        jobs = [*self._bulk.given_up, *self._rekey.given_up, *self._loads.given_up]
        return [*failures.values(), *queues, *worlds.values(), *jobs]

    def tidy(self, budget: int) -> int:
        """Up to so many slices; how many were done.

        One slice of each kind of work in turn, going on where the last call stopped: none starves. One
        that fails has no further turn in this call, which raises its error when the others are done;
        where the store itself fails, at once.
        """
        steps: list[Callable[[], int]] = [
            *(lambda kind=kind: int(apply_due(self._engine, kind) > 0) for kind in SWEEP_ORDER),
            lambda: int(bool(self._engine.undecided) and self._scripted.end_leases() > 0),
            lambda: self._bulk.resume(1),
            self._loads.resume,
            self._loads.clear,
            self._trim,
            self._rekey.slice,
            self._snapshots.sweep,
        ]
        done = idle = 0
        failed: dict[int, Exception] = {}
        while done < budget and idle < len(steps):
            at, worked = self._next_step, 0
            self._next_step = (at + 1) % len(steps)
            if at not in failed:
                try:
                    worked = steps[at]()
                    self._failures.pop(at, None)
                except Exception as error:  # noqa: BLE001 (raised below)
                    failed[at] = error
                    self._failures[at] = f"housekeeping failed: {type(error).__name__}: {error}"
                    if is_of_the_store(error):
                        break
            done += worked
            idle = 0 if worked else idle + 1
        if failed:
            try:
                raise next(iter(failed.values()))
            finally:
                failed.clear()  # The error knows this frame: both would stay until the next collection.
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
            with engine.lock, engine.transaction() as txn:
                if name not in engine.queues:
                    return False
                q = engine.queue(name)
                trimmed = 0 if q.qid in self._damaged_queues else history.trim(txn, q, FRAMES_PER_SLICE)
                return trimmed + history.free_held(txn, q, SLICE) > 0
        except Exception as error:  # noqa: BLE001 (raised, or logged)
            return self._keep(self._damaged_queues, known.qid, f"queue {name!r}", error)

    def _trim_world(self, name: str, number: int) -> bool:
        if number in self._damaged_worlds:
            return False
        try:
            with self._engine.lock, self._engine.transaction() as txn:
                return self._worlds.trim(txn, name, FRAMES_PER_SLICE) > 0
        except Exception as error:  # noqa: BLE001 (raised, or logged)
            return self._keep(self._damaged_worlds, number, f"world {name!r}", error)

    def _keep(self, damaged: dict[int, str], number: int, what: str, error: Exception) -> bool:
        """One damaged frame must not keep the other queues and worlds from their turn."""
        if is_of_the_store(error):
            raise error
        if number not in damaged:
            damaged[number] = f"the journal of {what} is kept as it is: {error}"
            log.error("%s", damaged[number])
        return False
