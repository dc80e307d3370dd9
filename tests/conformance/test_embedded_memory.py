"""The embedded backend in memory passes the suite."""

from __future__ import annotations

import random
from pathlib import Path

import penstock
from penstock.clock import Clock
from penstock.testing.suite import BackendSuite


class TestEmbeddedInMemory(BackendSuite):
    def open_penstock(self, folder: Path, clock: Clock, rng: random.Random) -> penstock.Penstock:
        return penstock.open("memory:", clock=clock, rng=rng)
