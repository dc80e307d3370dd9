"""Servers that the tests of one process share, and a connection to each that is empty when a test begins."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock import config
from penstock.backends.redis.connecting import Server, connect
from penstock.config import Config
from penstock.redis_settings import RedisSettings
from tests.redis.servers import (
    HOST,
    Binary,
    RunningCluster,
    RunningServer,
    binaries,
    running,
    running_cluster,
)
from tests.redis.stores import Place

Connect = Callable[..., Server]
Read = Callable[..., Config]


@pytest.fixture(scope="session", params=binaries(), ids=repr)
def every_server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningServer]:
    """One after the other: what runs on it runs on each kind of server."""
    binary: Binary = request.param
    with running(tmp_path_factory.mktemp("server"), binary) as server:
        yield server


@pytest.fixture(scope="session")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Redis 6.2 without anything special; nobody stops or reconfigures it."""
    with running(tmp_path_factory.mktemp("shared")) as server:
        yield server


@pytest.fixture(scope="session")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    """Three masters with a replica each."""
    with running_cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


def settings_of(server: Any, **changes: Any) -> RedisSettings:
    """Settings for a server or a proxy of this machine."""
    flavour = server.binary.flavour if isinstance(server, RunningServer) else "redis"
    return RedisSettings(**{"flavour": flavour, "nodes": ((HOST, server.port),), **changes})


@pytest.fixture
def connected() -> Iterator[Connect]:
    """Connects to a server or proxy with settings; what was opened is closed in the end."""
    opened: list[Server] = []

    def open_one(server: Any, *, clock: Any = None, rng: Any = None, **changes: Any) -> Server:
        opened.append(connect(settings_of(server, **changes), clock=clock, rng=rng))
        return opened[-1]

    yield open_one
    for server in opened:
        server.close()


@pytest.fixture(params=["lists", "streams"])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    """Once for each way to keep bodies."""
    place = Place(request.param)
    yield place
    place.close()


@pytest.fixture
def read(tmp_path: Path) -> Read:
    def read(text: str, **environ: str) -> Config:
        file = tmp_path / "penstock.yaml"
        file.write_text(text)
        return config.load(file, environ)

    return read
