"""Servers that hold stores of tests: one of each kind for a test process, its log synced at each write."""

from __future__ import annotations

import atexit
import tempfile
from functools import cache
from pathlib import Path

from tests.redis.servers import RunningServer, installed_redis, packaged_redis, packaged_valkey

_PACKAGED = {"redis": packaged_redis, "valkey": packaged_valkey, "installed": installed_redis}


def started(folder: Path, flavour: str = "redis", **options: str) -> RunningServer:
    """A server of a test's own, which has to end it."""
    options = {"appendonly": "yes", "appendfsync": "always", **options}
    binary = _PACKAGED[flavour]()
    assert binary is not None, "no redis-server is installed on this machine"
    server = RunningServer(binary, folder, options, ())
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
