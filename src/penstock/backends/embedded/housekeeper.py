"""The thread that syncs and sweeps beside the traffic, where no clock was injected."""

from __future__ import annotations

import logging
import threading
from typing import Protocol

from penstock.backends.embedded.engine import Engine
from penstock.backends.embedded.upkeep import Upkeep

log = logging.getLogger("penstock")

SWEEP_EVERY_S = 0.25
SLICES_PER_SWEEP = 20


class Tidied(Protocol):
    """What it keeps in order."""

    @property
    def engine(self) -> Engine: ...

    @property
    def closed(self) -> threading.Event: ...

    @property
    def upkeep(self) -> Upkeep: ...


class Housekeeper(threading.Thread):
    """Syncs in `interval` mode and sweeps, beside the traffic."""

    def __init__(self, backend: Tidied, interval_s: float) -> None:
        super().__init__(name="penstock-housekeeper", daemon=True)
        self._backend = backend
        self._syncs = backend.engine.durability == "interval"
        self._sync_every_s = interval_s
        self.start()

    def run(self) -> None:
        backend, since_sync_s, since_sweep_s = self._backend, 0.0, 0.0
        tick_s = min(self._sync_every_s, SWEEP_EVERY_S) if self._syncs else SWEEP_EVERY_S
        while not backend.closed.wait(tick_s):
            since_sync_s += tick_s
            since_sweep_s += tick_s
            try:
                if self._syncs and since_sync_s >= self._sync_every_s:
                    since_sync_s = 0.0
                    backend.engine.sync()
                if since_sweep_s >= SWEEP_EVERY_S:
                    since_sweep_s = 0.0
                    # As long as there is plenty to do, on and on: each slice lets callers in between.
                    while (
                        backend.upkeep.tidy(SLICES_PER_SWEEP) >= SLICES_PER_SWEEP
                        and not backend.closed.is_set()
                    ):
                        pass
            except Exception as error:  # noqa: BLE001
                # Whatever it is, the next round tries again: a store without a housekeeper rots.
                if backend.engine.stopped is not None:
                    return
                log.error("housekeeping failed, will be tried again: %s: %s", type(error).__name__, error)
