"""Settings of connections have the effect that they promise, on real servers."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.backends.redis.connecting import Script
from penstock.errors import BackendUnavailable
from penstock.redis_settings import RetrySettings
from tests.redis.conftest import Connect
from tests.redis.servers import HOST, RunningServer, running

ONCE = RetrySettings(attempts=1)
ONE = Script("one", b"return 1")


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[RunningServer]:
    with running(tmp_path / "server") as server:
        yield server


def commands(server: RunningServer) -> dict[str, int]:
    stats: dict[str, Any] = server.client().info("commandstats")
    return {name.removeprefix("cmdstat_"): found["calls"] for name, found in stats.items()}


def test_database(own_server: RunningServer, connected: Connect) -> None:
    connected(own_server, database=3).command("SET", "a", "b")
    assert own_server.do("DBSIZE") == 0
    assert own_server.client(db=3).get("a") == b"b"


def test_a_database_that_the_server_does_not_have(own_server: RunningServer, connected: Connect) -> None:
    with pytest.raises(Exception, match="DB index is out of range"):
        connected(own_server, database=99, retry=ONCE)


def test_pool_size(own_server: RunningServer, connected: Connect) -> None:
    server = connected(own_server, pool_size=2)
    assert server.health().pool_size == 2
    for _ in range(10):
        server.command("PING")
    clients = own_server.do("CLIENT", "LIST")
    assert clients.count(b"\n") == 2 if isinstance(clients, bytes) else len(clients) == 2


def test_pipeline_size(own_server: RunningServer, connected: Connect) -> None:
    server = connected(own_server, pipeline_size=2)
    server.run(ONE, [b"k"], [])
    before = server._sender.meter.calls
    assert server.run_many([(ONE, [b"k"], [])] * 5) == [1] * 5
    assert server._sender.meter.calls - before == 3


# The first by its hash is not known, and is sent whole.
@pytest.mark.parametrize(("cached", "whole", "by_hash"), [(True, 1, 3), (False, 3, 0)])
def test_lua_script_cache(
    own_server: RunningServer, connected: Connect, cached: bool, whole: int, by_hash: int
) -> None:
    server = connected(own_server, lua_script_cache=cached)
    server.run(ONE, [b"k"], [])
    server.run_many([(ONE, [b"k"], [])] * 2)
    stats = commands(own_server)
    assert (stats.get("eval", 0), stats.get("evalsha", 0)) == (whole, by_hash)


def test_connect_timeout(own_server: RunningServer, connected: Connect) -> None:
    """A listener whose queue is full does not answer who wants to connect."""
    with socket.socket() as listener, socket.socket() as first, socket.socket() as second:
        listener.bind((HOST, 0))
        listener.listen(0)
        for waiting in (first, second):
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        nodes = (listener.getsockname(),)
        with pytest.raises(BackendUnavailable, match=r"(?i)timeout|timed out"):
            connected(own_server, nodes=nodes, connect_timeout_s=0.1, retry=ONCE)


def test_read_timeout(own_server: RunningServer, connected: Connect) -> None:
    server = connected(own_server, read_timeout_s=0.1, retry=ONCE)
    own_server.pause()
    with pytest.raises(BackendUnavailable, match="Timeout reading"):
        server.command("PING")


def test_write_timeout(own_server: RunningServer, connected: Connect) -> None:
    server = connected(own_server, write_timeout_s=0.1, read_timeout_s=60, retry=ONCE)
    own_server.pause()
    with pytest.raises(BackendUnavailable, match="Timeout writing"):
        server.command("SET", "a", bytes(64 * 2**20))
