"""Whoever waits for a message waits no longer than until its token comes, whoever was told of it first."""

from __future__ import annotations

import threading
from functools import partial

import pytest

from penstock.clock import NS_PER_S, ManualClock
from penstock.testing.background import Background, wait_until
from tests.unit.memory_system import MemorySystem


class Watched(ManualClock):
    """Knows until when each thread sleeps."""

    def __init__(self) -> None:
        super().__init__()
        self.until_ns: dict[int, int] = {}

    def wait(self, condition: threading.Condition, timeout_ns: int | None) -> None:
        assert timeout_ns is not None
        self.until_ns[threading.get_ident()] = self.now_ns() + timeout_ns
        super().wait(condition, timeout_ns)


def is_more_than(clock: ManualClock, count: int) -> bool:
    return clock.waiters() > count


@pytest.mark.parametrize("wait_s", [(1, 60, 60), (60, 60, 60), (60, 1, 60)])
def test_all_who_wait_know_when_the_token_comes_though_one_was_told_of_the_message(
    wait_s: tuple[float, ...],
) -> None:
    clock = Watched()
    system = MemorySystem(clock=clock)
    system.backend.set_throttle("api", 0.5, 1)
    other, q = system.create("other", lease_s=600), system.create("q", lease_s=600)
    other.enqueue(b"", throttle_keys=["api"])
    assert len(other.lease(1)) == 1
    token_ns = clock.now_ns() + 2 * NS_PER_S

    polls = []
    for seconds in wait_s:
        waiting = clock.waiters()
        polls.append(Background(partial(q.lease, 1, wait_s=seconds)))
        wait_until(partial(is_more_than, clock, waiting))
    q.enqueue(b"throttled", throttle_keys=["api"])
    wait_until(lambda: max(clock.until_ns.values()) <= token_ns)

    clock.advance(2)
    wait_until(lambda: any(not poll.running and poll.result() for poll in polls))
    wait_until(lambda: clock.waiters() == sum(poll.running for poll in polls))
    clock.advance(100)
    assert sorted(len(poll.result()) for poll in polls) == [0, 0, 1]
