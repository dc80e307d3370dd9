"""The suite passes on Redis streams: real servers, whose logs are synced at every write."""

from __future__ import annotations

import pytest

from tests.conformance.test_redis_lists import TestRedisLists as _OnRedis
from tests.redis.servers import redis_7


class TestRedisStreams(_OnRedis):
    kind = "streams"


class TestValkeyStreams(_OnRedis):
    flavour, kind = "valkey", "streams"


@pytest.mark.soak
class TestRedis7Streams(_OnRedis):
    """On the machine's own server; where it has none, the closing summary of the tests says so."""

    flavour, kind = "redis7", "streams"
    __test__ = redis_7() is not None
