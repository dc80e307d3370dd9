"""A clock that does not wait: each wait is written down, something may happen in it, and it is over."""

from __future__ import annotations

import threading
from collections.abc import Callable

from penstock.clock import NS_PER_S


class SkippingClock:
    """`meanwhile` is called in each wait, with its number from 1."""

    def __init__(self, meanwhile: Callable[[int], object] = lambda number: None) -> None:
        self._now_ns = 1_700_000_000 * NS_PER_S
        self.meanwhile = meanwhile
        self.waits_s: list[float] = []

    def now_ns(self) -> int:
        return self._now_ns

    def advance(self, seconds: float) -> None:
        self._now_ns += int(seconds * NS_PER_S)

    def wait(self, condition: threading.Condition, timeout_ns: int | None) -> None:
        assert timeout_ns is not None
        self.waits_s.append(timeout_ns / NS_PER_S)
        self._now_ns += timeout_ns
        self.meanwhile(len(self.waits_s))
