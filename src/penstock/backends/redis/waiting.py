"""Waiting for a queue: who waits is told by the server that something came, or looks again in time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.backends.redis.connecting import Server
from penstock.clock import NS_PER_S, Clock

#: A lost message is a delay, never a stop: so often everyone looks again.
LOOK_EVERY_NS = 5 * NS_PER_S


class Bell:
    """Rung when something happened to one queue."""

    def __init__(self, look_every_ns: int = LOOK_EVERY_NS) -> None:
        self._look_every_ns = look_every_ns
        self.condition = threading.Condition()
        self.rings = 0
        self.waiters = 0

    def ring(self) -> None:
        with self.condition:
            self.rings += 1
            self.condition.notify_all()

    def wait(self, clock: Clock, since_rings: int, until_ns: int) -> None:
        """Until it rings, or until then; at once if it rang since."""
        with self.condition:
            left_ns = until_ns - clock.now_ns()
            if self.rings == since_rings and left_ns > 0:
                clock.wait(self.condition, min(left_ns, self._look_every_ns))


class Bells:
    """Those of the queues that someone waits for, by channel."""

    def __init__(self, server: Server, look_every_ns: int = LOOK_EVERY_NS) -> None:
        self._server = server
        self._look_every_ns = look_every_ns
        self._bells: dict[bytes, Bell] = {}
        self._lock = threading.Lock()

    @contextmanager
    def waiting(self, channel: bytes) -> Iterator[Bell]:
        """The queue's bell, listened to from then on: who waits once mostly waits again."""
        with self._lock:
            bell = self._bells.get(channel)
            if bell is None:
                bell = self._bells[channel] = Bell(self._look_every_ns)
                self._server.listen(channel, bell.ring)
        yield bell

    def close(self) -> None:
        with self._lock:
            bells = list(self._bells.values())
        for bell in bells:
            bell.ring()
