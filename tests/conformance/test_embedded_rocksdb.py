"""The embedded backend on RocksDB passes the suite, and shows the durability mode that it was given."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import penstock
from penstock.clock import Clock
from penstock.testing.suite import BackendSuite


class TestEmbeddedOnRocksDB(BackendSuite):
    def open_penstock(self, folder: Path, clock: Clock, rng: random.Random) -> penstock.Penstock:
        return penstock.open(folder, clock=clock, rng=rng)


@pytest.mark.parametrize("durability", ["sync", "interval", "os"])
def test_the_durability_mode_that_was_asked_for_is_shown(tmp_path: Path, durability: str) -> None:
    with penstock.open(f"rocksdb:{tmp_path}/store?durability={durability}") as ps:
        q = ps.create_queue("q")
        q.enqueue(b"x")
        assert (q.stats().durability, ps.info().default.durability) == (durability, durability)


def test_sync_is_the_durability_mode_unless_told_otherwise(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "store") as ps:
        assert ps.info().default.durability == "sync"
