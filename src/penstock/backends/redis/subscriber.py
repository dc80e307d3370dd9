"""The one thread that hears what servers publish, and tells those who wait; it reconnects by itself."""

from __future__ import annotations

import logging
import os
import random
import select
import threading
from collections.abc import Callable
from contextlib import suppress

from penstock.backends.redis import driver
from penstock.backends.redis.calling import delay_s
from penstock.clock import Clock, to_ns
from penstock.errors import PenstockError
from penstock.redis_settings import RedisSettings

#: So long a connection may be silent before it is asked whether it is still there.
QUIET_S = 5.0

#: So long `close` waits for the thread: it may be about to connect.
CLOSE_S = 10.0

Told = Callable[[], None]
log = logging.getLogger("penstock.redis")


class Subscriber:
    """Channels and who listens to each. Everyone is told when a subscription begins, also after a reconnect:
    what was published before that was not heard, so they look for themselves.
    """

    def __init__(
        self,
        make: Callable[[], driver.AnyConnection],
        settings: RedisSettings,
        clock: Clock,
        rng: random.Random,
        quiet_s: float = QUIET_S,
    ) -> None:
        self._make = make
        self._settings = settings
        self._clock = clock
        self._rng = rng
        self._quiet_s = quiet_s
        self._listeners: dict[bytes, list[Told]] = {}
        self._pipe: tuple[int, int] | None = None
        self.reset()

    def reset(self) -> None:
        """In a child after a fork: its parent's thread and connection stay behind, who listens does not."""
        self._condition = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._close_pipe()
        self.failed_in_a_row = 0
        self.reconnects = 0
        self.is_connected = False

    def listen(self, channel: bytes, told: Told) -> Callable[[], None]:
        with self._condition:
            self._listeners.setdefault(channel, []).append(told)
            self._start()
        self._wake()

        def stop() -> None:
            with self._condition:
                here = self._listeners.get(channel, [])
                if told in here:
                    here.remove(told)
                if not here:
                    self._listeners.pop(channel, None)
            self._wake()

        return stop

    def go_on(self) -> None:
        """Start the thread anew if a fork left it behind."""
        if self._thread is None and self._listeners:
            with self._condition:
                self._start()

    def close(self) -> None:
        """End the thread and its connection."""
        with self._condition:
            self._closed = True
            self._condition.notify_all()
        self._wake()
        thread = self._thread
        if thread is threading.current_thread():
            return
        if thread is not None:
            thread.join(CLOSE_S)  # A listener may wait for a lock that whoever closes this holds.
        if thread is None or not thread.is_alive():
            self._close_pipe()

    def _start(self) -> None:
        if self._thread is None and not self._closed:
            self._pipe = os.pipe()
            self._thread = threading.Thread(target=self._run, name="penstock-redis-listener", daemon=True)
            self._thread.start()

    def _wake(self) -> None:
        with self._condition:
            if self._pipe is not None:
                os.write(self._pipe[1], b".")

    def _close_pipe(self) -> None:
        with self._condition:
            pipe, self._pipe = self._pipe, None
        for end in pipe or ():
            with suppress(OSError):
                os.close(end)

    # -- in the thread

    def _run(self) -> None:
        while not self._closed:
            connection = None
            try:
                connection = self._make()
                connection.connect()
                self._hear(connection)
            except (driver.RedisError, PenstockError, OSError) as error:
                self.failed_in_a_row += 1
                if self.failed_in_a_row == 1:  # The same again and again would say nothing new.
                    log.warning("%s: not listening, and trying again: %s", self._settings.url, error)
            finally:
                self.is_connected = False
                if connection is not None:
                    with suppress(driver.RedisError, OSError):
                        connection.disconnect()
            self._wait()

    def _wait(self) -> None:
        wait_ns = to_ns(delay_s(self._settings, max(self.failed_in_a_row, 1), self._rng))
        end_ns = self._clock.now_ns() + wait_ns
        with self._condition:
            self.reconnects += not self._closed
            while not self._closed and 0 < (left_ns := end_ns - self._clock.now_ns()) <= wait_ns:
                self._clock.wait(self._condition, left_ns)

    def _hear(self, connection: driver.AnyConnection) -> None:
        """Until closed, or until the connection breaks."""
        subscribed: set[bytes] = set()
        is_asked = False
        while not self._closed:
            self._follow(connection, subscribed)
            if connection.can_read(0):
                is_asked = False
                self._tell(connection.read_response(timeout=self._settings.read_timeout_s))
            elif not self._is_ready(connection):
                if is_asked:
                    raise driver.TimeoutError(f"nothing was heard for {2 * self._quiet_s:g} s")
                is_asked = True
                connection.send_command("PING", check_health=False)

    def _is_ready(self, connection: driver.AnyConnection) -> bool:
        """Wait until there is something to read or to do; not for longer than a connection may be silent."""
        if self._pipe is None:
            return True
        poll = select.poll()
        for number in (driver.socket_of(connection).fileno(), self._pipe[0]):
            poll.register(number, select.POLLIN)
        ready = poll.poll(self._quiet_s * 1000)
        if any(number == self._pipe[0] for number, _ in ready):
            os.read(self._pipe[0], 4096)
        return bool(ready)

    def _follow(self, connection: driver.AnyConnection, subscribed: set[bytes]) -> None:
        """Subscribe to what somebody listens to, and to nothing else."""
        with self._condition:
            wanted = set(self._listeners)
        for word, channels in (("SUBSCRIBE", wanted - subscribed), ("UNSUBSCRIBE", subscribed - wanted)):
            if channels:
                connection.send_command(word, *sorted(channels), check_health=False)
        subscribed.clear()
        subscribed |= wanted

    def _tell(self, reply: object) -> None:
        if not isinstance(reply, list) or reply[0] not in (b"message", b"subscribe"):
            return
        self.is_connected = True
        self.failed_in_a_row = 0
        with self._condition:
            listeners = list(self._listeners.get(reply[1], ()))
        for told in listeners:
            try:
                told()
            except Exception:
                log.exception("what listens to %r failed", reply[1])
