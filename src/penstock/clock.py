"""Time as an argument: nothing else in Penstock reads or waits for the time."""

from __future__ import annotations

import threading
import time
from typing import Protocol

NS_PER_S = 1_000_000_000


def to_ns(seconds: float) -> int:
    """Seconds, as users pass them, in nanoseconds."""
    return round(seconds * NS_PER_S)


class Clock(Protocol):
    """Where the time comes from and where waiting happens."""

    def now_ns(self) -> int:
        """Nanoseconds since the Unix epoch."""
        ...

    def wait(self, condition: threading.Condition, timeout_ns: int | None) -> None:
        """Wait on a held condition until it is notified or the time has passed.

        May return early: callers look again at what they wait for.
        """
        ...


class SystemClock:
    """The machine's clock."""

    def now_ns(self) -> int:
        return time.time_ns()

    def wait(self, condition: threading.Condition, timeout_ns: int | None) -> None:
        # Bounded, so that a stepped system clock delays a waiter by a minute at most.
        seconds = 60.0 if timeout_ns is None else min(timeout_ns / NS_PER_S, 60.0)
        condition.wait(max(seconds, 0.0))


class ManualClock:
    """A clock that stands still until it is told to move; waiters wake when it moves."""

    def __init__(self, start_ns: int = 1_700_000_000 * NS_PER_S) -> None:
        self._now_ns = start_ns
        self._lock = threading.Lock()
        self._waiting: list[threading.Condition] = []

    def now_ns(self) -> int:
        return self._now_ns

    def advance(self, seconds: float) -> None:
        """Move time on and wake everyone who waits for it."""
        self.set_ns(self._now_ns + to_ns(seconds))

    def set_ns(self, now_ns: int) -> None:
        """Set the time, backwards too, and wake everyone who waits for it."""
        self._now_ns = now_ns
        with self._lock:
            waiting = list(self._waiting)
        for condition in waiting:
            with condition:
                condition.notify_all()

    def waiters(self) -> int:
        """How many threads wait on this clock: lets a test act once its other threads wait."""
        with self._lock:
            return len(self._waiting)

    def wait(self, condition: threading.Condition, timeout_ns: int | None) -> None:
        if timeout_ns is not None and timeout_ns <= 0:
            return
        with self._lock:
            self._waiting.append(condition)
        try:
            condition.wait()
        finally:
            with self._lock:
                self._waiting.remove(condition)
