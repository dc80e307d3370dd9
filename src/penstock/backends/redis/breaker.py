"""A circuit breaker: when nothing answers, calls fail at once instead of each waiting for itself."""

from __future__ import annotations

import threading

from penstock.clock import NS_PER_S, Clock, to_ns
from penstock.errors import BackendUnavailable
from penstock.redis_settings import RetrySettings


class Breaker:
    """Closed until so many attempts in a row failed; then open for a time; then one call tries.

    That one closes it, or opens it again. Calls that come meanwhile fail with `BackendUnavailable`.
    """

    def __init__(self, settings: RetrySettings, clock: Clock) -> None:
        self._failures = settings.breaker_failures
        self._open_ns = to_ns(settings.breaker_open_s)
        self._clock = clock
        self.reset()

    def reset(self) -> None:
        self._lock = threading.Lock()
        self._in_a_row = 0
        self._until_ns: int | None = None  # None: closed.

    @property
    def is_open(self) -> bool:
        return self._until_ns is not None

    def check(self, where: str) -> None:
        """Let a call through, or refuse it."""
        if not self.is_open:
            return
        with self._lock:
            now_ns = self._clock.now_ns()
            left_ns = (self._until_ns or now_ns) - now_ns
            # More than the whole time is left: the clock was set back.
            if 0 < left_ns <= self._open_ns:
                raise BackendUnavailable(
                    f"{where} did not answer {self._in_a_row} times in a row; it is tried again "
                    f"in {left_ns / NS_PER_S:.1f} s"
                )
            if self.is_open:
                self._until_ns = now_ns + self._open_ns  # This call is the one that tries.

    def succeeded(self) -> None:
        if self._in_a_row or self._until_ns is not None:
            with self._lock:
                self._in_a_row, self._until_ns = 0, None

    def failed(self) -> None:
        with self._lock:
            self._in_a_row += 1
            if self._in_a_row >= self._failures:
                self._until_ns = self._clock.now_ns() + self._open_ns
