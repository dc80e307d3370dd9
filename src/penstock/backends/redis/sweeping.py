"""Housekeeping: what time does, done in slices, queue by queue and world by world."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Sequence

from penstock.backends.redis.connecting import Arg, pairs
from penstock.backends.redis.engine import Engine, Known, QueueChanged
from penstock.backends.redis.rekeying import Rekeying
from penstock.backends.redis.settling import Settling
from penstock.backends.redis.stream_keeping import StreamKeeping
from penstock.backends.redis.transferring import Transferring
from penstock.backends.redis.worlds import Worlds
from penstock.errors import (
    BackendUnavailable,
    InvalidConfig,
    KeyMissing,
    PenstockError,
    QueueNotFound,
    StorageError,
    StorageFull,
)

log = logging.getLogger("penstock")

SWEEP_EVERY_S = 0.25
SLICES_PER_SWEEP = 20
#: Queues that the housekeeper visits in a round, and how long it is the only one.
QUEUES_PER_ROUND = 50
SWEEPER_MS = 1000
#: Frames of a world that one slice removes.
WORLD_FRAMES = 100


class Sweeping:
    """Sweeps one store."""

    def __init__(
        self,
        engine: Engine,
        settling: Settling,
        worlds: Worlds,
        rekeying: Rekeying,
        transferring: Transferring,
        further: Sequence[Callable[[], int]],
        streams: StreamKeeping | None = None,
    ) -> None:
        self._engine = engine
        self._rekeying = rekeying
        #: What else there is to do for a store, a slice of each: how many it were.
        self._further = further
        self._settling = settling
        self._transferring = transferring
        self._is_cluster = engine.server.settings.cluster
        self._worlds = worlds
        self._streams = streams
        #: Where there are groups: what ends those of a queue that somebody began to drop.
        self.finish_groups: Callable[[str], None] | None = None
        self._last = ""
        self._cursor = 0
        #: Queues whose failure was told.
        self._failing: set[str] = set()

    def sweep(self, budget: int) -> int:
        """Up to so many slices, beginning behind the queue that the last one ended with."""
        self._engine.go_on()
        names = list(self._engine.all_queues())
        order = [*(n for n in names if n > self._last), *(n for n in names if n <= self._last)]
        done = 0
        for name in order:
            done += self._queue(name, budget - done) + self._tidy_stream(name, budget - done)
            self._last = name
            if done >= budget:
                return done
        done += self._trim_worlds(budget - done)
        return done + self._of_the_store(budget - done)

    def _of_the_store(self, budget: int) -> int:
        return sum(step() for step in (self._rekeying.slice, *self._further)) if budget > 0 else 0

    def tidy(self, budget: int) -> int:
        """The same for the next few queues alone: however many there are, a round costs the same."""
        self._engine.go_on()
        found = self._engine.server.command(
            "HSCAN", self._engine.keys.queues, self._cursor, "COUNT", QUEUES_PER_ROUND
        )
        self._cursor = int(found[0])
        done = 0
        for raw, _ in pairs(found[1]):
            name = raw.decode(errors="replace")
            done += self._queue(name, budget - done)
            if self._streams is not None and self._streams.is_due(name):
                done += self._tidy_stream(name, budget - done)
        if self._cursor == 0:
            done += self._trim_worlds(budget - done)
        return done + self._of_the_store(budget - done)

    def is_mine(self, me: bytes) -> bool:
        """Whether this process keeps house now: one of all that are open is enough."""
        engine = self._engine
        args = [*engine.head(), me, SWEEPER_MS]
        return bool(engine.server.run(engine.script("keeper"), [engine.keys.sweeper], args)[1])

    def _queue(self, name: str, budget: int) -> int:
        done = self._guarded(name, budget, self._slice)
        for line in self._further_lines(name):
            done += self._guarded(line, budget - done, self._slice)
        return done

    def _tidy_stream(self, name: str, budget: int) -> int:
        """One round of what streams need besides."""
        if self._streams is None:
            return 0
        if self.finish_groups is not None:
            with contextlib.suppress(QueueNotFound, QueueChanged, InvalidConfig):
                self.finish_groups(name)
        lines = [name, *self._further_lines(name)]
        return sum(self._guarded(line, min(budget, 1), self._streams.tidy) for line in lines)

    def _further_lines(self, name: str) -> list[str]:
        if self._streams is None:
            return []
        try:
            return self._engine.queue(name).further_lines
        except PenstockError:
            return []  # Gone meanwhile, or told about by who sweeps its own line.

    def _guarded(self, name: str, budget: int, act: Callable[[Known], bool]) -> int:
        """Up to so many slices of one queue; one that is damaged does not stop those of the others."""
        done = 0
        try:
            while done < budget and self._once(name, act):
                done += 1
            self._failing.discard(name)
        except QueueNotFound:
            self._failing.discard(name)  # Deleted meanwhile.
        except KeyMissing:
            raise  # The store's trouble, not the queue's.
        except (BackendUnavailable, StorageError, InvalidConfig) as error:
            if isinstance(error, (BackendUnavailable, StorageFull)) and not self._is_cluster:
                raise  # The server's: of a cluster, those of the others go on.
            if name not in self._failing and not self._engine.closed.is_set():
                log.error("queue %r cannot be swept, the others are: %s", name, error)
            self._failing.add(name)
        return done

    def _once(self, name: str, act: Callable[[Known], bool]) -> bool:
        for _ in range(2):
            try:
                return self._engine.once(name, act)
            except QueueChanged as changed:
                self._engine.forget(name, *changed.args)
        return False  # A repair has it: nobody waits for that here.

    def _trim_worlds(self, budget: int) -> int:
        done = 0
        for world in self._worlds.limited() if budget > 0 else ():
            while done < budget and self._worlds.trim(world, self._engine.now_us(), WORLD_FRAMES):
                done += 1
        return done

    def _slice(self, q: Known) -> bool:
        keep_s, size = q.settings.journal_retention_s, q.settings.journal_max_bytes
        kept_us = "" if keep_s is None else round(keep_s * 1_000_000)
        limit: tuple[Arg, Arg] = ("", "") if self._streams is None else self._streams.limit(q.name)
        reply = self._engine.run("sweep", [q], kept_us, "" if size is None else size, *limit)
        ended = [
            (raw_id, self._engine.record_to_settle(q, raw_id, raw))
            for raw_id, raw in zip(reply[3], reply[4], strict=True)
        ]
        if ended:
            self._settling.release(q, ended)
        for transfer in reply[5]:
            self._transferring.resume(q, transfer)
        for transfer in reply[6]:
            self._transferring.forget(q, transfer)
        return bool(reply[2] or ended or reply[5])


class Housekeeper(threading.Thread):
    """Sweeps beside the traffic, where no clock was injected."""

    def __init__(self, sweeping: Sweeping, closed: threading.Event) -> None:
        super().__init__(name="penstock-sweep", daemon=True)
        self._sweeping = sweeping
        self._closed = closed
        self._me = os.urandom(16)
        #: What was told of the failure that lasts: a server may be away for hours, of four rounds a second.
        self._told: type[Exception] | None = None

    def run(self) -> None:
        while not self._closed.wait(SWEEP_EVERY_S):
            try:
                while self._sweeping.is_mine(self._me):
                    if self._sweeping.tidy(SLICES_PER_SWEEP) < SLICES_PER_SWEEP or self._closed.is_set():
                        break
            except Exception as error:  # noqa: BLE001
                # Whatever it is, the next round tries again: a store without a housekeeper rots.
                self._failed(error)
            else:
                if self._told is not None:
                    log.warning("housekeeping goes on")
                self._told = None

    def _failed(self, error: Exception) -> None:
        if self._told is not type(error) and not self._closed.is_set():
            log.error("housekeeping failed, and is tried again: %s: %s", type(error).__name__, error)
        self._told = type(error)
