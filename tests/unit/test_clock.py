"""The manual clock stands still until it is moved, and wakes whoever waits for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.clock import NS_PER_S, ManualClock, SystemClock, to_ns

PATIENCE_S = 30


class Waiter:
    """A thread that waits on a clock until a condition holds."""

    def __init__(self, clock: ManualClock, done: Callable[[], bool], timeout_ns: int | None) -> None:
        self.condition = threading.Condition()
        self.wakes = 0
        self._clock, self._done, self._timeout_ns = clock, done, timeout_ns
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        with self.condition:
            while not self._done():
                self._clock.wait(self.condition, self._timeout_ns)
                self.wakes += 1

    def join(self) -> None:
        self.thread.join(PATIENCE_S)
        assert not self.thread.is_alive(), "nobody woke the waiter"


def until_waiting(clock: ManualClock, count: int) -> None:
    """Returns once so many threads wait: what a test does next, they are sure to see."""
    reached = threading.Event()
    for _ in range(PATIENCE_S * 1000):
        if clock.waiters() == count:
            return
        reached.wait(0.001)
    pytest.fail(f"{clock.waiters()} threads wait, not {count}")


@given(seconds=st.floats(0, 10 * 365 * 86_400))
def test_seconds_become_the_nearest_nanosecond(seconds: float) -> None:
    assert abs(to_ns(seconds) - seconds * NS_PER_S) <= 1 + seconds * NS_PER_S * 1e-15


@pytest.mark.parametrize(("seconds", "ns"), [(0, 0), (1, NS_PER_S), (0.001, 1_000_000), (0.1, 100_000_000)])
def test_round_numbers_of_seconds_are_exact(seconds: float, ns: int) -> None:
    assert to_ns(seconds) == ns


def test_a_manual_clock_stands_still_until_it_is_told_to_move() -> None:
    clock = ManualClock(start_ns=5)
    assert [clock.now_ns(), clock.now_ns()] == [5, 5]
    clock.advance(1.5)
    assert clock.now_ns() == 5 + 1_500_000_000


def test_a_manual_clock_can_be_set_back() -> None:
    clock = ManualClock()
    clock.set_ns(7)
    assert clock.now_ns() == 7


def test_a_waiter_wakes_when_the_clock_moves() -> None:
    clock = ManualClock(start_ns=0)
    waiter = Waiter(clock, lambda: clock.now_ns() >= NS_PER_S, NS_PER_S)
    until_waiting(clock, 1)
    clock.advance(1)
    waiter.join()
    assert clock.waiters() == 0


def test_every_waiter_wakes_when_the_clock_moves() -> None:
    clock = ManualClock(start_ns=0)
    waiters = [Waiter(clock, lambda: clock.now_ns() > 0, None) for _ in range(5)]
    until_waiting(clock, 5)
    clock.set_ns(1)
    for waiter in waiters:
        waiter.join()


def test_a_waiter_wakes_when_it_is_notified_though_time_stands_still() -> None:
    clock, arrived = ManualClock(), threading.Event()
    waiter = Waiter(clock, arrived.is_set, None)
    until_waiting(clock, 1)
    arrived.set()
    with waiter.condition:
        waiter.condition.notify_all()
    waiter.join()


def test_a_move_that_is_not_enough_wakes_a_waiter_that_goes_back_to_sleep() -> None:
    clock = ManualClock(start_ns=0)
    waiter = Waiter(clock, lambda: clock.now_ns() >= 2 * NS_PER_S, 2 * NS_PER_S)
    until_waiting(clock, 1)
    clock.advance(1)
    clock.advance(1)
    waiter.join()
    assert waiter.wakes >= 1


@pytest.mark.parametrize("timeout_ns", [0, -1])
def test_a_wait_that_is_over_returns_at_once(timeout_ns: int) -> None:
    clock, condition = ManualClock(), threading.Condition()
    with condition:
        clock.wait(condition, timeout_ns)
    assert clock.waiters() == 0


def test_a_wait_that_is_interrupted_leaves_no_waiter_behind() -> None:
    clock = ManualClock()

    class Broken(threading.Condition):
        def wait(self, timeout: float | None = None) -> bool:
            raise KeyboardInterrupt

    condition = Broken()
    with condition, pytest.raises(KeyboardInterrupt):
        clock.wait(condition, None)
    assert clock.waiters() == 0


def test_the_system_clock_tells_the_time_of_the_machine() -> None:
    before = time.clock_gettime_ns(time.CLOCK_REALTIME)
    now_ns = SystemClock().now_ns()
    assert before <= now_ns <= time.clock_gettime_ns(time.CLOCK_REALTIME)


@pytest.mark.parametrize(
    ("timeout_ns", "seconds"), [(-5, 0.0), (0, 0.0), (NS_PER_S // 4, 0.25), (None, 60.0), (10**18, 60.0)]
)
def test_the_system_clock_never_waits_longer_than_a_minute_at_a_time(
    timeout_ns: int | None, seconds: float
) -> None:
    waited: list[float | None] = []

    class Noted(threading.Condition):
        def wait(self, timeout: float | None = None) -> bool:
            waited.append(timeout)
            return False

    condition = Noted()
    with condition:
        SystemClock().wait(condition, timeout_ns)
    assert waited == [seconds]
