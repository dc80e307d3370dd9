"""The server's own metrics: requests by interface, operation and status, and what is under way."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter

from penstock.server.calls import StoreCalls

#: Upper bounds, in seconds, of the histogram of latencies.
BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0)


class _Operation:
    """How often it was answered with which status, and how long that took."""

    __slots__ = ("buckets", "seconds", "statuses")

    def __init__(self) -> None:
        self.statuses: dict[int, int] = {}
        self.buckets = [0] * (len(BOUNDS_S) + 1)
        self.seconds = 0.0


class Numbers:
    """Counted as requests are answered; shown in the form of Prometheus."""

    def __init__(self, calls: StoreCalls) -> None:
        self._calls = calls
        self.in_flight = 0
        self._operations: dict[tuple[str, str], _Operation] = {}
        self._refused: Counter[int] = Counter()

    def answered(self, interface: str, operation: str, status: int, seconds: float) -> None:
        key = interface, operation
        one = self._operations.get(key)
        if one is None:
            one = self._operations[key] = _Operation()
        one.statuses[status] = one.statuses.get(status, 0) + 1
        one.buckets[bisect_left(BOUNDS_S, seconds)] += 1
        one.seconds += seconds

    def refused(self, status: int) -> None:
        self._refused[status] += 1

    def render(self) -> str:
        """docs/server.md has the same names."""
        lines: list[str] = []

        def family(name: str, kind: str, what: str) -> None:
            lines.append(f"# HELP {name} {what}\n# TYPE {name} {kind}")

        family("penstock_server_requests_total", "counter", "Requests that were answered.")
        operations = [
            (f'interface="{interface}",operation="{operation}"', one)
            for (interface, operation), one in sorted(self._operations.items())
        ]
        for labels, one in operations:
            for status, count in sorted(one.statuses.items()):
                lines.append(f'penstock_server_requests_total{{{labels},status="{status}"}} {count}')
        name = "penstock_server_request_seconds"
        family(name, "histogram", "From a request that has arrived whole to its answer, long-polls included.")
        for labels, one in operations:
            total = 0
            for bound, count in zip((*BOUNDS_S, "+Inf"), one.buckets, strict=True):
                total += count
                lines.append(f'{name}_bucket{{{labels},le="{bound}"}} {total}')
            lines.append(f"{name}_sum{{{labels}}} {one.seconds}")
            lines.append(f"{name}_count{{{labels}}} {total}")
        family("penstock_server_refused_total", "counter", "Requests refused for want of room, time or form.")
        for status, count in sorted(self._refused.items()):
            lines.append(f'penstock_server_refused_total{{status="{status}"}} {count}')
        for name, what, value in (
            ("penstock_server_in_flight", "Requests that are being answered.", self.in_flight),
            ("penstock_server_calls", "Calls of stores that run or wait their turn.", self._calls.running),
            ("penstock_server_waiting_polls", "Consumers that want messages.", self._calls.polls.waiting),
        ):
            family(name, "gauge", what)
            lines.append(f"{name} {value}")
        return "\n".join([*lines, ""])
