"""A process that leases under a limit is killed again and again: tokens and leases never differ."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

import penstock
from tests.crash.throttled import BURST


def killed_after(store: Path, lines: int) -> int:
    """What the process said last before it was killed."""
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.crash.throttled", str(store)], stdout=subprocess.PIPE
    )
    assert child.stdout is not None
    try:
        said = [int(child.stdout.readline()) for _ in range(lines)]
    finally:
        child.kill()
        child.wait()
        child.stdout.close()
    return said[-1]


def rounds(store: Path, count: int, seed: int) -> None:
    rng, before = random.Random(seed), 0
    for _ in range(count):
        said = killed_after(store, rng.randint(1, 60))
        with penstock.open(f"rocksdb:{store}?durability=os") as ps:
            leased, throttle = ps.queue("q").stats().leased, ps.throttles.get("api")
            assert throttle is not None
            assert leased + throttle.tokens == BURST, "tokens were lost, or given for nothing"
            assert leased >= said > before
            assert ps.check().ok
        before = leased


def test_after_each_kill_there_are_as_many_tokens_less_as_messages_are_leased(tmp_path: Path) -> None:
    rounds(tmp_path / "store", 3, seed=1)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(5))
def test_after_many_kills_there_are_as_many_tokens_less_as_messages_are_leased(
    tmp_path: Path, seed: int
) -> None:
    rounds(tmp_path / "store", 30, seed)
