"""Servers that hold stores of tests: one of each kind for a test process, its log synced at each write."""

from __future__ import annotations

import atexit
import tempfile
from functools import cache
from pathlib import Path

from tests.redis.servers import Binary, RunningServer, packaged_redis, packaged_valkey, redis_7


def _installed_redis_7() -> Binary:
    found = redis_7()
    assert found is not None, "there is no redis-server of version 7 or later on PATH; install one"
    return found


_BINARIES = {"redis": packaged_redis, "valkey": packaged_valkey, "redis7": _installed_redis_7}


def flavours() -> list[str]:
    """Every kind of server that there is here, by the names that tests have for them."""
    return [name for name in _BINARIES if name != "redis7" or redis_7() is not None]


def started(folder: Path, flavour: str = "redis", **options: str) -> RunningServer:
    """A server of a test's own, which has to end it."""
    options = {"appendonly": "yes", "appendfsync": "always", **options}
    server = RunningServer(_BINARIES[flavour](), folder, options, ())
    server.start()
    return server


@cache
def shared(flavour: str = "redis") -> RunningServer:
    """One for all tests of this process; ended with it."""
    folder = tempfile.TemporaryDirectory(prefix="penstock-redis-")
    server = started(Path(folder.name), flavour)

    def end() -> None:
        server.kill()
        folder.cleanup()

    atexit.register(end)
    return server
