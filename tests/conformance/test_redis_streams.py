"""The suite passes on Redis streams: real servers, whose logs are synced at every write."""

from __future__ import annotations

from tests.conformance.test_redis_lists import TestRedisLists as _OnRedis


class TestRedisStreams(_OnRedis):
    kind = "streams"


class TestValkeyStreams(_OnRedis):
    flavour, kind = "valkey", "streams"


class TestInstalledRedisStreams(_OnRedis):
    """The server that the machine has."""

    flavour, kind = "installed", "streams"
