"""A lease sees one time, however long it takes: tokens that come meanwhile are the next one's."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from unittest import mock

import pytest

from penstock import NewMessage
from penstock.backends.embedded.gates import Gates
from penstock.backends.embedded.lanes import Lane
from penstock.clock import ManualClock
from tests.unit.memory_system import MemorySystem

STEP_NS = 50_000


class Hasty(ManualClock):
    """Time passes between any two looks at it; or runs back, and then on again."""

    def __init__(self, steps_ns: Iterator[int]) -> None:
        super().__init__()
        self._steps_ns = steps_ns

    def now_ns(self) -> int:
        self.set_ns(super().now_ns() + next(self._steps_ns))
        return super().now_ns()


def forth() -> Iterator[int]:
    return itertools.repeat(STEP_NS)


def forth_and_back() -> Iterator[int]:
    return itertools.cycle([7 * STEP_NS, -3 * STEP_NS])


@pytest.fixture(autouse=True)
def a_lease_that_goes_on_for_ever_fails() -> Iterator[None]:
    """None of these looks at lanes so often."""
    let_in, tries = Gates.let_in, itertools.count()

    def bounded(self: Gates, lane: Lane, now_ns: int, *, waited: bool) -> bool:
        assert next(tries) < 100_000, "it goes on for ever"
        return let_in(self, lane, now_ns, waited=waited)

    with mock.patch.object(Gates, "let_in", bounded):
        yield


@pytest.mark.parametrize("steps", [forth, forth_and_back])
@pytest.mark.parametrize("fifo", [False, True])
@pytest.mark.parametrize("batch", [1, 7, 100])
@pytest.mark.parametrize("rate_per_s", [1, 500, 3000, 10_000, 20_000, 1_000_000])
def test_a_lease_ends_though_tokens_come_while_it_looks(
    rate_per_s: float, batch: int, fifo: bool, steps: object
) -> None:
    system = MemorySystem(clock=Hasty(steps()))  # type: ignore[operator]
    system.backend.set_throttle("api", rate_per_s, 2)
    system.backend.set_throttle("api/2", rate_per_s / 2, 2)
    q = system.create("q", fifo=fifo)
    q.enqueue_many(
        [
            NewMessage(fairness_key=f"{n % 5}", throttle_keys=[("api",), ("api", "api/2")][n % 2])
            for n in range(200)
        ]
    )
    count = 0
    for _ in range(60):
        held = q.lease(batch)
        assert all(outcome.error is None for outcome in q.ack([one.receipt for one in held]))
        count += len(held)
    assert count >= 2
    for _ in range(400):
        system.clock.advance(1)
        held = q.lease(batch)
        count += len(held)
        q.ack([one.receipt for one in held])
    assert count == 200
