"""The suite passes on encrypted stores over a cluster: nobody above sees the difference."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path

import pytest

import penstock
from penstock.clock import Clock
from penstock.config import Config, EncryptionSettings
from penstock.redis_settings import RedisSettings
from penstock.testing.compression_suite import CompressionSuite
from penstock.testing.deadletter_suite import DeadLetterSuite
from penstock.testing.hook_suite import HookSuite
from penstock.testing.suite import BackendSuite
from tests.conformance.test_redis_lists_cluster import OnCluster
from tests.conformance.test_redis_lists_encrypted import OneKey
from tests.redis.one_cluster import shared

#: The same six servers as those of lists.
pytestmark = pytest.mark.xdist_group("redis-lists-cluster")


class OnEncryptedCluster(OnCluster):
    def keys(self) -> OneKey:
        return OneKey()

    def open_penstock(self, folder: Path, clock: Clock, rng: random.Random) -> penstock.Penstock:
        settings = RedisSettings(
            kind=self.kind,
            nodes=(("127.0.0.1", shared(self.flavour).masters[0].port),),
            key_prefix=hashlib.sha256(str(folder).encode()).hexdigest()[:12] + "-",
            encryption=EncryptionSettings(enabled=True),
            cluster=True,
        )
        return penstock.open(Config(source="test", default=settings), clock=clock, rng=rng, keys=OneKey())


class TestWhatIsSealedOnRedisCluster(OnEncryptedCluster, DeadLetterSuite, HookSuite, CompressionSuite):
    """What is sealed and goes from one server to another, or is planned; the rest is as on one server."""


class TestWhatIsSealedOnRedisStreamsCluster(OnEncryptedCluster, DeadLetterSuite):
    """The same for bodies in streams."""

    kind = "streams"


@pytest.mark.soak
class TestEncryptedRedisListsCluster(OnEncryptedCluster, BackendSuite):
    """All of it."""


@pytest.mark.soak
class TestEncryptedRedisStreamsCluster(OnEncryptedCluster, BackendSuite):
    """All of it."""

    kind = "streams"
