"""The suite passes on Redis lists over a cluster: three masters, whose logs are synced at every write."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from penstock.clock import Clock
from penstock.testing.suite import BackendSuite
from tests.redis.one_cluster import emptied, shared

#: Six servers are enough for all processes of a test run.
pytestmark = pytest.mark.xdist_group("redis-lists-cluster")


class TestRedisListsCluster(BackendSuite):
    @pytest.fixture(autouse=True)
    def emptied(self) -> Iterator[None]:
        yield
        emptied(shared())

    def open_penstock(self, folder: Path, clock: Clock, rng: random.Random) -> penstock.Penstock:
        prefix = hashlib.sha256(str(folder).encode()).hexdigest()[:12]
        return penstock.open(f"{shared().url()}&key_prefix={prefix}-", clock=clock, rng=rng)
