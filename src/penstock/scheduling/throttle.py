"""Token buckets: exact arithmetic on whole numbers; the backend keeps, stores and shares them."""

from __future__ import annotations

from penstock.clock import NS_PER_S
from penstock.errors import InvalidMessage

#: Units of one token: a rate of one billionth of a token a second adds one unit each nanosecond.
TOKEN = NS_PER_S * NS_PER_S

#: What a rate and a burst may be. Rates are kept in billionths: the slowest is exact to a thousandth.
MIN_RATE_PER_S = 1e-6
MAX_RATE_PER_S = 1e6
MAX_BURST = 1_000_000_000

#: As many tokens as nobody asks for, and a time that does not come.
PLENTY = 1 << 62
NEVER_NS = 1 << 63


def checked_rate(rate_per_s: object) -> int:
    """A rate in billionths of a token a second."""
    if isinstance(rate_per_s, bool) or not isinstance(rate_per_s, int | float):
        raise InvalidMessage(f"rate_per_s must be a number, not {type(rate_per_s).__name__}")
    if rate_per_s != 0 and not MIN_RATE_PER_S <= rate_per_s <= MAX_RATE_PER_S:
        raise InvalidMessage(
            f"rate_per_s is {rate_per_s!r:.40}; accepted: 0, or {MIN_RATE_PER_S} to {MAX_RATE_PER_S:.0f}"
        )
    return round(rate_per_s * NS_PER_S)


def checked_burst(burst: object) -> int:
    """A burst in whole tokens."""
    if isinstance(burst, bool) or not isinstance(burst, int | float):
        raise InvalidMessage(f"burst must be a number, not {type(burst).__name__}")
    if not 0 <= burst <= MAX_BURST or burst != int(burst):
        raise InvalidMessage(f"burst is {burst!r:.40}; accepted: whole numbers from 0 to {MAX_BURST}")
    return int(burst)


class Bucket:
    """The tokens of one throttle key: `units` of them at `at_ns`, and `rate_nano` more each nanosecond.

    Without a limit (`burst` None) there are always plenty. Time that runs backwards adds nothing.
    """

    __slots__ = ("__weakref__", "at_ns", "burst", "key", "rate_nano", "units")

    def __init__(self, key: str) -> None:
        self.key = key
        self.rate_nano = 0
        self.burst: int | None = None
        self.units = 0
        self.at_ns = 0

    def limit(self, rate_nano: int, burst: int, now_ns: int) -> None:
        """From now on this much. What a limited key has stays; one that had no limit starts full."""
        self.units = burst * TOKEN if self.burst is None else min(self._units(now_ns), burst * TOKEN)
        self.rate_nano, self.burst, self.at_ns = rate_nano, burst, now_ns

    def unlimit(self) -> None:
        self.burst = None

    def _units(self, now_ns: int) -> int:
        elapsed_ns = now_ns - self.at_ns
        if elapsed_ns <= 0:
            return self.units
        return min(self.units + elapsed_ns * self.rate_nano, (self.burst or 0) * TOKEN)

    @property
    def interval_ns(self) -> int:
        """How long one token takes to come; 0 if none does."""
        return -(-TOKEN // self.rate_nano) if self.rate_nano else 0

    def tokens(self, now_ns: int) -> int:
        """Whole tokens."""
        return PLENTY if self.burst is None else self._units(now_ns) // TOKEN

    def level(self, now_ns: int) -> float:
        """Tokens, for people to look at."""
        return self._units(now_ns) / TOKEN

    def take(self, count: int, now_ns: int) -> None:
        """Take so many, which must be there."""
        if self.burst is not None:
            self.units = self._units(now_ns) - count * TOKEN
            self.at_ns = max(self.at_ns, now_ns)

    def give_back(self, count: int) -> None:
        """Tokens that were taken for nothing."""
        if self.burst is not None:
            self.units = min(self.units + count * TOKEN, self.burst * TOKEN)

    def ready_at_ns(self, count: int, now_ns: int) -> int:
        """When it has so many tokens, if nobody takes any before."""
        if self.burst is None:
            return now_ns
        missing = count * TOKEN - self._units(now_ns)
        if missing <= 0:
            return now_ns
        if count > self.burst or not self.rate_nano:
            return NEVER_NS
        return max(self.at_ns, now_ns) - (-missing // self.rate_nano)
