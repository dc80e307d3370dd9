"""The threads that sync and sweep beside the traffic, where no clock was injected."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
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


def housekeepers(backend: Tidied, interval_s: float) -> list[threading.Thread]:
    """Started. Syncs have a thread of their own: however long a sweep takes, they keep their interval."""
    threads = [_Regularly("sweep", backend, SWEEP_EVERY_S, lambda: _sweep(backend))]
    if backend.engine.durability == "interval":
        threads.append(_Regularly("sync", backend, interval_s, backend.engine.sync))
    for thread in threads:
        thread.start()
    return list(threads)


def _sweep(backend: Tidied) -> None:
    # As long as there is plenty to do, on and on: each slice lets callers in between.
    while backend.upkeep.tidy(SLICES_PER_SWEEP) >= SLICES_PER_SWEEP and not backend.closed.is_set():
        pass
    backend.engine.kv.witness()


class _Regularly(threading.Thread):
    def __init__(self, what: str, backend: Tidied, every_s: float, act: Callable[[], object]) -> None:
        super().__init__(name=f"penstock-{what}", daemon=True)
        self._backend = backend
        self._every_s = every_s
        self._act = act

    def run(self) -> None:
        backend = self._backend
        while not backend.closed.wait(self._every_s):
            try:
                self._act()
            except Exception as error:  # noqa: BLE001
                # Whatever it is, the next round tries again: a store without a housekeeper rots.
                if backend.engine.stopped is not None:
                    return
                log.error("housekeeping failed, will be tried again: %s: %s", type(error).__name__, error)
