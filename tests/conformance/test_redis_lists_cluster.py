"""The suite passes on Redis lists over a cluster: three masters, whose logs are synced at every write."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from penstock.clock import Clock
from penstock.testing.admin_suite import AdminSuite
from penstock.testing.bulk_read_suite import BulkReadSuite
from penstock.testing.bulk_suite import MoveSuite, PurgeSuite
from penstock.testing.bulk_write_suite import BulkWriteSuite
from penstock.testing.deadletter_suite import DeadLetterSuite
from penstock.testing.fifo_delay_suite import FifoDelayMoveSuite
from penstock.testing.harness import BackendCase
from penstock.testing.held_suite import HeldBodySuite
from penstock.testing.replace_suite import DeclareQueuesSuite, ReplaceQueuesSuite
from penstock.testing.restore_suite import RestoreSuite
from penstock.testing.suite import BackendSuite
from penstock.testing.waiting_suite import WaitingSuite
from tests.redis.one_cluster import emptied, shared

#: Six servers are enough for all processes of a test run.
pytestmark = pytest.mark.xdist_group("redis-lists-cluster")


class OnCluster(BackendCase):
    flavour, kind = "redis", "lists"

    @pytest.fixture(autouse=True)
    def emptied(self) -> Iterator[None]:
        yield
        emptied(shared(self.flavour))

    def open_penstock(self, folder: Path, clock: Clock, rng: random.Random) -> penstock.Penstock:
        prefix = hashlib.sha256(str(folder).encode()).hexdigest()[:12]
        url = f"{shared(self.flavour).url(self.kind)}&key_prefix={prefix}-"
        return penstock.open(url, clock=clock, rng=rng)


@pytest.mark.soak
class TestRedisListsCluster(OnCluster, BackendSuite):
    """All of it."""


class TestWhatDiffersOnRedisCluster(
    OnCluster,
    DeadLetterSuite,
    HeldBodySuite,
    MoveSuite,
    PurgeSuite,
    FifoDelayMoveSuite,
    DeclareQueuesSuite,
    ReplaceQueuesSuite,
    AdminSuite,
    WaitingSuite,
    BulkReadSuite,
    BulkWriteSuite,
    RestoreSuite,
):
    """What is done otherwise than on one server; the rest is the same scripts on one master."""


@pytest.mark.soak
class TestWhatDiffersOnValkeyCluster(TestWhatDiffersOnRedisCluster):
    flavour = "valkey"
