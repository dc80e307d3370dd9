"""When a script is not run any more, for a while: it has been stopped too often."""

from __future__ import annotations

from collections import deque

from penstock.clock import NS_PER_S

#: So many stops within so long, and it rests for so long. Then one more stop and it rests again.
MOST_STOPS = 5
WITHIN_NS = 60 * NS_PER_S
REST_NS = 30 * NS_PER_S


class Breaker:
    """Counts what costs time: calls that were stopped. An error costs nothing, and is its message's alone."""

    def __init__(self) -> None:
        self._stops_ns: deque[int] = deque(maxlen=MOST_STOPS)
        self._until_ns = 0
        self._on_trial = False

    def rests(self, now_ns: int) -> bool:
        # Not for as long as a clock was set back.
        return self._until_ns - REST_NS <= now_ns < self._until_ns

    def succeeded(self) -> None:
        if self._on_trial:
            self._on_trial = False
            self._stops_ns.clear()

    def stopped(self, now_ns: int) -> bool:
        """Whether it rests from now on."""
        self._stops_ns.append(now_ns)
        often = len(self._stops_ns) == MOST_STOPS and now_ns - self._stops_ns[0] <= WITHIN_NS
        if often or self._on_trial:
            self._until_ns, self._on_trial = now_ns + REST_NS, True
        return self.rests(now_ns)
