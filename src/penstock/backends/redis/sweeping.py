"""Housekeeping: what time does, done in slices, queue by queue and world by world."""

from __future__ import annotations

import contextlib
import logging
import threading

from penstock.backends.redis.engine import Engine, Known
from penstock.backends.redis.records import decode_state
from penstock.backends.redis.settling import Settling
from penstock.backends.redis.worlds import Worlds
from penstock.errors import PenstockError, QueueNotFound

log = logging.getLogger("penstock")

SWEEP_EVERY_S = 0.25
SLICES_PER_SWEEP = 20
#: Frames of a world that one slice removes.
WORLD_FRAMES = 100


class Sweeping:
    """Sweeps one store."""

    def __init__(self, engine: Engine, settling: Settling, worlds: Worlds) -> None:
        self._engine = engine
        self._settling = settling
        self._worlds = worlds
        self._last = ""

    def sweep(self, budget: int) -> int:
        """Up to so many slices, beginning behind the queue that the last one ended with."""
        names = list(self._engine.all_queues())
        order = [*(n for n in names if n > self._last), *(n for n in names if n <= self._last)]
        done = 0
        for name in order:
            while done < budget:
                with contextlib.suppress(QueueNotFound):  # Deleted meanwhile.
                    if self._engine.with_queue(name, self._slice):
                        done += 1
                        continue
                break
            self._last = name
            if done >= budget:
                return done
        for world in self._worlds.limited():
            while done < budget and self._worlds.trim(world, self._engine.now_us(), WORLD_FRAMES):
                done += 1
        return done

    def _slice(self, q: Known) -> bool:
        keep_s, size = q.settings.journal_retention_s, q.settings.journal_max_bytes
        old = "" if keep_s is None else self._engine.now_us() - round(keep_s * 1_000_000)
        reply = self._engine.run("sweep", [q], old, "" if size is None else size)
        ended = [(raw_id, decode_state(raw)) for raw_id, raw in zip(reply[3], reply[4], strict=True)]
        if ended:
            self._settling.release(q, ended)
        return bool(reply[2] or ended)


class Housekeeper(threading.Thread):
    """Sweeps beside the traffic, where no clock was injected."""

    def __init__(self, sweeping: Sweeping, closed: threading.Event) -> None:
        super().__init__(name="penstock-sweep", daemon=True)
        self._sweeping = sweeping
        self._closed = closed

    def run(self) -> None:
        while not self._closed.wait(SWEEP_EVERY_S):
            try:
                while (
                    self._sweeping.sweep(SLICES_PER_SWEEP) >= SLICES_PER_SWEEP and not self._closed.is_set()
                ):
                    pass
            except PenstockError as error:
                # Whatever it is, the next round tries again: a store without a housekeeper rots.
                if not self._closed.is_set():
                    log.error("housekeeping failed, will be tried again: %s: %s", type(error).__name__, error)
