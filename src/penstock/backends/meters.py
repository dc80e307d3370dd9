"""What is counted and timed while a store is open: per batch, in memory, and only what was committed."""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Sequence

from penstock.backends.base import Histogram
from penstock.backends.call_meter import CallMeter
from penstock.clock import NS_PER_S, Clock
from penstock.event import Kind

#: Upper bounds in seconds of waiting and service times: from a millisecond to a day.
TIME_BOUNDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 60, 300, 1800, 3600, 21600, 86400)
SYNC_BOUNDS = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1)
SIZE_BOUNDS = (1, 2, 5, 10, 20, 50, 100, 200, 500)

ENQUEUED, ACKED, FAILED = 0, 1, 2
RATE_WINDOW_S = 60


class Rates:
    """Enqueues, acks and failures of the last minute, in buckets of a second."""

    def __init__(self) -> None:
        self._buckets: dict[int, list[int]] = {}

    def add(self, now_ns: int, which: int, count: int) -> None:
        second = now_ns // 1_000_000_000
        bucket = self._buckets.get(second)
        if bucket is None:
            bucket = self._buckets[second] = [0, 0, 0]
            if len(self._buckets) > RATE_WINDOW_S + 1:
                self._buckets = {s: b for s, b in self._buckets.items() if s > second - RATE_WINDOW_S}
                self._buckets[second] = bucket
        bucket[which] += count

    def per_second(self, now_ns: int) -> list[float]:
        """Over the last minute, for enqueues, acks and failures."""
        since = now_ns // 1_000_000_000 - RATE_WINDOW_S
        recent = [b for s, b in self._buckets.items() if s > since]
        return [sum(b[i] for b in recent) / RATE_WINDOW_S for i in range(3)]


class Meter:
    """A histogram in the making."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._bounds_ns = [round(bound * NS_PER_S) for bound in bounds]
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect.bisect_left(self._bounds, value)] += 1
        self._total += value

    def observe_since(self, now_ns: int, since_ns: Sequence[int]) -> None:
        """Seconds that have passed since each of these. A batch mostly falls into one bucket."""
        bounds, counts = self._bounds_ns, self._counts
        first = bisect.bisect_left(bounds, now_ns - max(since_ns))
        last = bisect.bisect_left(bounds, now_ns - min(since_ns))
        above = len(since_ns)
        if first < last:
            in_order = sorted(since_ns)
            for place in range(first, last):
                longer = bisect.bisect_left(in_order, now_ns - bounds[place], 0, above)
                counts[place] += above - longer
                above = longer
        counts[last] += above
        self._total += max(0.0, (now_ns * len(since_ns) - sum(since_ns)) / NS_PER_S)

    def read(self) -> Histogram:
        return Histogram(tuple(self._bounds), tuple(self._counts), self._total)


class QueueMeter:
    """One queue's."""

    def __init__(self) -> None:
        self.rates = Rates()
        self.events: Counter[Kind] = Counter()
        #: From the moment that a message became visible until its lease; from there until its ack.
        self.waits = Meter(TIME_BOUNDS)
        self.services = Meter(TIME_BOUNDS)


class StoreMeter:
    """One store's."""

    def __init__(self, clock: Clock) -> None:
        self.sync_s = Meter(SYNC_BOUNDS)
        self.group_sizes = Meter(SIZE_BOUNDS)
        self.calls = CallMeter(clock)
