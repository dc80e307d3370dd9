"""The suite passes on Redis lists: real servers, whose logs are synced at every write.

Streams run the same scripts on Valkey in every run; the other servers have their turn in the long tests.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from penstock.clock import Clock
from penstock.testing.suite import BackendSuite
from tests.redis.one_server import shared
from tests.redis.servers import redis_7


class TestRedisLists(BackendSuite):
    flavour, kind = "redis", "lists"

    @pytest.fixture(autouse=True)
    def emptied(self) -> Iterator[None]:
        yield
        with shared(self.flavour).client() as client:
            client.flushall(asynchronous=True)

    def open_penstock(self, folder: Path, clock: Clock, rng: random.Random) -> penstock.Penstock:
        # What a folder is to other backends, a prefix is here.
        prefix = hashlib.sha256(str(folder).encode()).hexdigest()[:12]
        url = shared(self.flavour).url(self.kind)
        return penstock.open(f"{url}?key_prefix={prefix}-", clock=clock, rng=rng)


@pytest.mark.soak
class TestValkeyLists(TestRedisLists):
    flavour = "valkey"


@pytest.mark.soak
class TestRedis7Lists(TestRedisLists):
    """On the machine's own server; where it has none, the closing summary of the tests says so."""

    flavour = "redis7"
    __test__ = redis_7() is not None
