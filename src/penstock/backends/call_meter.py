"""How long calls take and how many fail: numbers of the last minute or two, in bounded memory."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

import msgspec

from penstock.clock import NS_PER_S, Clock
from penstock.errors import BackendUnavailable, StorageError

T = TypeVar("T")

WINDOW_NS = 60 * NS_PER_S


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """`error_rate` is the part of the attempts that failed; times are None where there were none."""

    calls: int = 0
    errors: int = 0
    error_rate: float = 0.0
    p50_s: float | None = None
    p99_s: float | None = None


class CallMeter:
    """Two windows of a minute: the one that fills, and the one before. Times are known to an eighth."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.reset()

    def reset(self) -> None:
        self._lock = threading.Lock()
        self._started_ns = self._clock.now_ns()
        self._now = _Window()
        self._before = _Window()
        self.calls = 0
        self.errors = 0

    def took(self, ns: int) -> None:
        self._note(self._clock.now_ns(), ns)

    def _note(self, now_ns: int, ns: int) -> None:
        step = _step(max(ns, 0))
        with self._lock:
            if not 0 <= now_ns - self._started_ns < WINDOW_NS:
                self._turn()
            self.calls += 1
            counts = self._now.counts
            counts[step] = counts.get(step, 0) + 1

    def failed(self) -> None:
        with self._lock:
            self._turn()
            self.errors += 1
            self._now.errors += 1

    def timed(self, act: Callable[[], T]) -> T:
        """Do it, and count it. What a caller did wrong is no failure of the store, and no measure of it."""
        started_ns = self._clock.now_ns()
        try:
            answer = act()
        except (StorageError, BackendUnavailable):
            self.failed()
            raise
        now_ns = self._clock.now_ns()
        self._note(now_ns, now_ns - started_ns)
        return answer

    def _turn(self) -> None:
        past_ns = self._clock.now_ns() - self._started_ns
        if 0 <= past_ns < WINDOW_NS:
            return
        self._before = self._now if 0 <= past_ns < 2 * WINDOW_NS else _Window()
        self._now = _Window()
        self._started_ns = self._clock.now_ns()

    def figures(self) -> Figures:
        with self._lock:
            self._turn()
            counts = dict(self._before.counts)
            for step, count in self._now.counts.items():
                counts[step] = counts.get(step, 0) + count
            errors = self._now.errors + self._before.errors
        calls = sum(counts.values())
        return Figures(
            calls=calls,
            errors=errors,
            error_rate=errors / (calls + errors) if errors else 0.0,
            p50_s=_quantile(counts, calls, 0.50),
            p99_s=_quantile(counts, calls, 0.99),
        )


class _Window:
    def __init__(self) -> None:
        self.counts: dict[int, int] = {}
        self.errors = 0


def _step(ns: int) -> int:
    """Logarithmic, in whole numbers: how far to shift, and the four bits that are left."""
    shift = max(ns.bit_length() - 4, 0)
    return shift << 4 | ns >> shift


def _upper_ns(step: int) -> int:
    """Every time of the step is below this."""
    return (step & 15) + 1 << (step >> 4)


def _quantile(counts: dict[int, int], total: int, part: float) -> float | None:
    seen = 0
    for step in sorted(counts):
        seen += counts[step]
        if seen >= part * total:
            return _upper_ns(step) / NS_PER_S
    return None
