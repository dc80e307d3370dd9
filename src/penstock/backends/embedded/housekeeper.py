"""The threads that sync and sweep beside the traffic, where no clock was injected."""

from __future__ import annotations

import logging
import threading
from typing import Protocol

from penstock.backends.embedded.engine import Engine
from penstock.backends.embedded.upkeep import Upkeep

log = logging.getLogger("penstock")

SWEEP_EVERY_S = 0.25
SLICES_PER_SWEEP = 20
PATIENCE_S = 10.0


class Tidied(Protocol):
    """What they keep in order."""

    @property
    def engine(self) -> Engine: ...

    @property
    def closed(self) -> threading.Event: ...

    @property
    def upkeep(self) -> Upkeep: ...


class _Beside(threading.Thread):
    """Does the same thing again and again until the store is closed."""

    every_s: float

    def __init__(self, name: str, backend: Tidied) -> None:
        super().__init__(name=f"penstock-{name}", daemon=True)
        self._backend = backend

    def run(self) -> None:
        backend = self._backend
        while not backend.closed.wait(self.every_s):
            try:
                self.work()
            except Exception as error:  # noqa: BLE001
                # Whatever it is, the next round tries again: a store without a housekeeper rots.
                if backend.engine.stopped is not None:
                    return
                log.error("housekeeping failed, will be tried again: %s: %s", type(error).__name__, error)

    def work(self) -> None:
        raise NotImplementedError


class _Syncs(_Beside):
    """What `interval` mode promises. A thread of its own: a long sweep must not put it off."""

    def __init__(self, backend: Tidied, interval_s: float) -> None:
        super().__init__("syncs", backend)
        self.every_s = interval_s

    def work(self) -> None:
        self._backend.engine.sync()


class _Sweeps(_Beside):
    """What time, bulk operations, retention and rekeying leave to be done."""

    every_s = SWEEP_EVERY_S

    def work(self) -> None:
        backend = self._backend
        # As long as there is plenty to do, on and on: each slice lets callers in between.
        while backend.upkeep.tidy(SLICES_PER_SWEEP) >= SLICES_PER_SWEEP and not backend.closed.is_set():
            pass


class Housekeeper:
    """Sweeps, and syncs in `interval` mode, beside the traffic."""

    def __init__(self, backend: Tidied, interval_s: float) -> None:
        self._threads: list[_Beside] = [_Sweeps("sweeps", backend)]
        if backend.engine.durability == "interval":
            self._threads.append(_Syncs(backend, interval_s))
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        """Wait for both to have seen that the store is closed; a long compaction is cut off by closing it."""
        for thread in self._threads:
            thread.join(PATIENCE_S)
