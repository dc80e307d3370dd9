"""Random histories in queues with scripts agree with the model, failing writes and reopenings included."""

from __future__ import annotations

import pytest

from tests.simulation.scripted import ScriptedInMemory, ScriptedOnRocksDB
from tests.simulation.test_simulation import walk


@pytest.mark.parametrize("seed", range(30_000, 30_008))
def test_a_history_with_scripts_in_memory_agrees_with_the_model(seed: int) -> None:
    walk(ScriptedInMemory, seed, steps=100)


@pytest.mark.parametrize("seed", range(31_000, 31_002))
def test_a_history_with_scripts_on_rocksdb_agrees_with_the_model(seed: int) -> None:
    walk(ScriptedOnRocksDB, seed, steps=100)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(32_000, 32_100))
def test_many_histories_with_scripts_in_memory_agree_with_the_model(seed: int) -> None:
    walk(ScriptedInMemory, seed, steps=250)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(33_000, 33_030))
def test_many_histories_with_scripts_on_rocksdb_agree_with_the_model(seed: int) -> None:
    walk(ScriptedOnRocksDB, seed, steps=250)
