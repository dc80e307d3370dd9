"""Random histories agree with the model, in memory with failing writes and on RocksDB with reopenings.

Hypothesis looks for short ones: a failure prints its history and a `@reproduce_failure` line. Long walks
come from seeds: a failure prints its seed and what is left of the history when everything that the failure
does not need is taken out.
"""

from __future__ import annotations

import random
import traceback
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from tests.simulation.operations import Operation, Pick, draw_operation, draw_throttled_operation
from tests.simulation.stores import MemorySimulation, RocksSimulation
from tests.simulation.system import Simulation

EVERY_TIME = settings(
    deadline=None,
    print_blob=True,
    stateful_step_count=30,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@st.composite
def operations(draw: st.DrawFn) -> Operation:
    return draw_operation(lambda options: draw(st.sampled_from(options)))


class MemoryMachine(RuleBasedStateMachine):
    simulated: type[Simulation] = MemorySimulation

    def __init__(self) -> None:
        super().__init__()
        self.simulation = self.simulated()
        self.sound = True

    @rule(operation=operations())
    def step(self, operation: Operation) -> None:
        self.sound = False
        self.simulation.do(operation)
        self.sound = True

    def teardown(self) -> None:
        if self.sound:
            self.simulation.end()
        else:
            self.simulation.close()


class RocksMachine(MemoryMachine):
    simulated = RocksSimulation


def walk(
    simulated: type[Simulation],
    seed: int,
    steps: int,
    draw: Callable[[Pick], Operation] = draw_operation,
) -> None:
    rng = random.Random(seed)
    history = [draw(rng.choice) for _ in range(steps)]
    failure = failure_of(simulated, history)
    if failure:
        history = without_the_needless(simulated, history, failure)
        lines = "\n".join(f"    {operation!r}" for operation in history)
        pytest.fail(f"seed {seed}, {steps} steps: {failure_of(simulated, history)}\nafter\n{lines}")


def failure_of(simulated: type[Simulation], history: list[Operation]) -> str:
    """What a history ends with, if it fails."""
    simulation = simulated()
    try:
        for operation in history:
            simulation.do(operation)
        simulation.look()
    except Exception as failure:  # noqa: BLE001 - Whatever it is, it is what the history is to show.
        where = traceback.extract_tb(failure.__traceback__)[-1]
        return f"{type(failure).__name__} in {where.name}: {failure}"
    finally:
        simulation.close()
    return ""


def without_the_needless(
    simulated: type[Simulation], history: list[Operation], failure: str
) -> list[Operation]:
    """A shorter history that fails in the same way: runs of operations are left out while it does."""
    way = failure.split(": the system")[0]
    size = len(history) // 2
    while size:
        at = 0
        while at < len(history):
            shorter = history[:at] + history[at + size :]
            if failure_of(simulated, shorter).startswith(way):
                history = shorter
            else:
                at += size
        size //= 2
    return history


def test_short_histories_in_memory_agree_with_the_model() -> None:
    run_state_machine_as_test(MemoryMachine, settings=settings(EVERY_TIME, max_examples=30))


def test_short_histories_on_rocksdb_agree_with_the_model() -> None:
    run_state_machine_as_test(RocksMachine, settings=settings(EVERY_TIME, max_examples=5))


@pytest.mark.parametrize("seed", range(24))
def test_a_long_history_in_memory_agrees_with_the_model(seed: int) -> None:
    walk(MemorySimulation, seed, steps=100)


@pytest.mark.parametrize("seed", range(24))
def test_a_long_history_of_throttles_in_memory_agrees_with_the_model(seed: int) -> None:
    walk(MemorySimulation, seed, steps=100, draw=draw_throttled_operation)


@pytest.mark.parametrize("seed", range(1000, 1004))
def test_a_long_history_on_rocksdb_agrees_with_the_model(seed: int) -> None:
    walk(RocksSimulation, seed, steps=100)


@pytest.mark.soak
def test_many_short_histories_in_memory_agree_with_the_model() -> None:
    run_state_machine_as_test(MemoryMachine, settings=settings(EVERY_TIME, max_examples=1000))


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(10_000, 10_150))
def test_many_long_histories_in_memory_agree_with_the_model(seed: int) -> None:
    walk(MemorySimulation, seed, steps=250)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(30_000, 30_300))
def test_many_long_histories_of_throttles_in_memory_agree_with_the_model(seed: int) -> None:
    walk(MemorySimulation, seed, steps=200, draw=draw_throttled_operation)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(20_000, 20_060))
def test_many_long_histories_on_rocksdb_agree_with_the_model(seed: int) -> None:
    walk(RocksSimulation, seed, steps=250)
