"""The clock that tests read stores with."""

from __future__ import annotations

from penstock.clock import ManualClock, SystemClock


def now_clock() -> ManualClock:
    """The present, standing still: what is read of a store is of one moment, and nothing sweeps it."""
    return ManualClock(SystemClock().now_ns())
