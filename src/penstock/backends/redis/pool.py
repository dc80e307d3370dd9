"""The connections to one server: as many as are needed at once, up to a limit, used again."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress

from penstock.backends.redis import driver
from penstock.backends.redis.breaker import Breaker
from penstock.clock import Clock, to_ns
from penstock.errors import BackendUnavailable, StorageError


class Pool:
    """Last used, first taken: what stays idle is what a quiet time does not need.

    The breaker is the server's, too: of a cluster, one that is away does not hold up the others.
    """

    def __init__(
        self,
        make: Callable[[], driver.AnyConnection],
        size: int,
        wait_s: float,
        breaker: Breaker,
        clock: Clock,
    ) -> None:
        self._make = make
        self.breaker = breaker
        self._clock = clock
        self._wait_s = wait_s
        self._generation = 0
        self.size = size
        self.reset()

    def reset(self) -> None:
        """As new. In a child after a fork too: the parent's connections are its own, and so are its locks."""
        self.breaker.reset()
        self._condition = threading.Condition()
        self._idle: list[tuple[int, driver.AnyConnection]] = []
        self._in_use: dict[driver.AnyConnection, int] = {}
        self._closed = False

    @property
    def in_use(self) -> int:
        return len(self._in_use)

    def take(self) -> driver.AnyConnection:
        """A connection that is open. Errors of the driver come out as they are: nothing was sent."""
        connection = self._reserve()
        try:
            if driver.is_open(connection) and _is_stale(connection):
                connection.disconnect()
            connection.connect()  # Does nothing if it is open.
        except BaseException:
            connection.disconnect()  # It may be open without having told who we are.
            self.give(connection)
            raise
        return connection

    def _reserve(self) -> driver.AnyConnection:
        deadline_ns = self._clock.now_ns() + to_ns(self._wait_s)
        with self._condition:
            while not self._closed:
                if self._idle or len(self._in_use) < self.size:
                    generation, connection = self._idle.pop() if self._idle else (-1, self._make())
                    if generation not in (-1, self._generation):
                        connection.disconnect()
                    self._in_use[connection] = self._generation
                    return connection
                left_ns = deadline_ns - self._clock.now_ns()
                if left_ns <= 0:
                    raise BackendUnavailable(
                        f"all {self.size} connections were in use for {self._wait_s:g} s; raise pool_size"
                    )
                self._clock.wait(self._condition, left_ns)
        raise StorageError("the store is closed; open it again")

    def give(self, connection: driver.AnyConnection) -> None:
        """Back, whatever became of it; one that is broken opens again when it is taken."""
        with self._condition:
            generation = self._in_use.pop(connection, None)
            if generation is None:  # From before a fork, or from before `close`.
                connection.disconnect()
                return
            if generation != self._generation:
                connection.disconnect()
            self._idle.append((self._generation, connection))
            self._condition.notify()

    def renew(self) -> None:
        """Each connection is made anew before it is used again: credentials or addresses have changed."""
        with self._condition:
            self._generation += 1

    def close(self) -> None:
        """End every connection; calls on their way fail."""
        with self._condition:
            self._closed = True
            connections = [connection for _, connection in self._idle] + list(self._in_use)
            self._idle, self._in_use = [], {}
            self._condition.notify_all()
        for connection in connections:
            with suppress(OSError, driver.RedisError):
                connection.disconnect()


def _is_stale(connection: driver.AnyConnection) -> bool:
    """Something to read before anything is asked: the server closed it, or nobody waited for an answer."""
    try:
        return connection.can_read(0)
    except (driver.ConnectionError, driver.TimeoutError, OSError):
        return True
