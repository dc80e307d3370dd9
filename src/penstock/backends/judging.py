"""Whether a backend is well: its numbers, and the thresholds that its configuration has for them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from penstock.backends.base import BackendHealth, HealthNumbers
from penstock.settings import HealthSettings

#: Of fewer calls in the last minutes than this, one slow one in a hundred says nothing.
JUDGED_CALLS = 100


def judged(
    numbers: HealthNumbers, limits: HealthSettings, reasons: Sequence[str] = (), warnings: Sequence[str] = ()
) -> BackendHealth:
    """What the numbers say, behind what is known to be wrong otherwise."""
    found = [*reasons, *exceeded(numbers, limits)]
    return BackendHealth("degraded" if found else "healthy", found, numbers, list(warnings))


def silent(reason: str) -> BackendHealth:
    """Of a backend that answers nothing."""
    return BackendHealth("unhealthy", [reason], HealthNumbers(reachable=False))


def exceeded(numbers: HealthNumbers, limits: HealthSettings) -> Iterator[str]:
    """One sentence for each threshold that is passed, with its key."""
    if numbers.calls >= JUDGED_CALLS:
        yield from _of_calls(numbers, limits)
    if numbers.memory_ratio is not None and numbers.memory_ratio > limits.max_memory_ratio:
        yield (
            f"the server has {numbers.memory_ratio:.0%} of its maxmemory in use; health.max_memory_ratio is "
            f"{limits.max_memory_ratio}; at all of it, it refuses writes"
        )
    age_s, depth, lag = numbers.oldest_ready_age_s, numbers.depth, numbers.consumer_lag
    if age_s is not None and limits.max_oldest_age_s is not None and age_s > limits.max_oldest_age_s:
        yield (
            f"the oldest message has been ready for {age_s:.1f} s; health.max_oldest_age is "
            f"{limits.max_oldest_age_s}"
        )
    if depth is not None and limits.max_depth is not None and depth > limits.max_depth:
        yield f"{depth} messages wait; health.max_depth is {limits.max_depth}"
    if lag is not None and limits.max_lag is not None and lag > limits.max_lag:
        yield f"a consumer is {lag} entries behind; health.max_lag is {limits.max_lag}"


def _of_calls(numbers: HealthNumbers, limits: HealthSettings) -> Iterator[str]:
    p99_s = (numbers.latency_p99_ms or 0.0) / 1000
    if p99_s > limits.max_latency_s:
        yield f"a call in a hundred takes {p99_s:.3f} s; health.max_latency is {limits.max_latency_s}"
    if numbers.error_rate > limits.max_error_rate:
        yield f"{numbers.error_rate:.0%} of attempts failed; health.max_error_rate is {limits.max_error_rate}"


class Totals:
    """The numbers of queues, added up one by one."""

    def __init__(self) -> None:
        self.queues = self.depth = self.leased = 0
        self.oldest_s: float | None = None
        self.rates = [0.0, 0.0, 0.0]
        self.lag: int | None = None

    def add(self, depth: int, leased: int, oldest_s: float | None, rates: Sequence[float]) -> None:
        self.queues += 1
        self.depth += depth
        self.leased += leased
        if oldest_s is not None:
            self.oldest_s = max(oldest_s, self.oldest_s or 0.0)
        self.rates = [sum(pair) for pair in zip(self.rates, rates, strict=True)]

    def fields(self) -> dict[str, Any]:
        """As `HealthNumbers` names them."""
        return {
            "queues": self.queues,
            "depth": self.depth,
            "leased": self.leased,
            "oldest_ready_age_s": self.oldest_s,
            "enqueue_rate_per_s": self.rates[0],
            "ack_rate_per_s": self.rates[1],
            "fail_rate_per_s": self.rates[2],
            "consumer_lag": self.lag,
        }

    def behind(self, lag: int) -> None:
        """A required cursor has so much to read."""
        self.lag = max(lag, self.lag or 0)
