"""Queues that name a database, prefix or server of their own are there, with settings of their own."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from penstock import BackendUnavailable, Penstock
from tests.redis import origin
from tests.redis.servers import RunningServer, running

DURABLE = {"appendonly": "yes"}


@pytest.fixture
def first(tmp_path: Path) -> Iterator[RunningServer]:
    with running(tmp_path / "first", options=DURABLE) as server:
        yield server


@pytest.fixture
def second(tmp_path: Path) -> Iterator[RunningServer]:
    with running(tmp_path / "second", options=DURABLE) as server:
        yield server


@pytest.fixture
def ps(first: RunningServer, second: RunningServer, tmp_path: Path) -> Iterator[Penstock]:
    """The blocks as they were written first, at servers that are there."""
    text = origin.QUEUES.replace("localhost:6379", first.address)
    text = text.replace("driver: keydb", "driver: redis").replace(
        "keydb://keydb-cluster:6379", "redis://HERE"
    )
    text = text.replace("HERE", first.address).replace(
        "    keydb:\n      endpoint", "    redis:\n      endpoint"
    )
    text = text.replace("keydb-cluster.internal:6379", second.address).replace(
        "pool_size: 20", "pool_size: 7"
    )
    file = tmp_path / "penstock.yaml"
    file.write_text(f"storage: {{path: '{tmp_path / 'data'}'}}\n{text}")
    with penstock.open(str(file)) as ps:
        yield ps


def keys(server: RunningServer, database: int, pattern: str = "*") -> set[bytes]:
    with server.client(db=database) as client:
        return set(client.keys(pattern))


def test_each_queue_is_at_the_place_that_it_names(
    ps: Penstock, first: RunningServer, second: RunningServer
) -> None:
    for name in ("high-priority", "analytics", "bulk-processing"):
        ps.queue(name).enqueue(b"x")
        assert [one.payload for one in ps.queue(name).lease()] == [b"x"]
    assert keys(first, 0, "queue:high:*{high-priority}:c")
    streams = [key for key in keys(first, 1) if key.endswith(b":stream:analytics-stream")]
    (stream,) = streams
    with first.client(db=1) as client:
        (group,) = client.xinfo_groups(stream)
    assert (group["name"], group["pending"]) == (b"processors", 1)
    assert keys(second, 0, "*{bulk-processing}:c")
    assert not keys(first, 0, "*bulk-processing*")


def test_a_queue_has_connections_and_patience_of_its_own(ps: Penstock, second: RunningServer) -> None:
    own, shared = (ps.health().numbers[name] for name in ("keydb/bulk-processing", "redis-streams"))
    assert (own.pool_size, shared.pool_size) == (7, 20)
    second.pause()
    try:
        began = time.monotonic()
        with pytest.raises(BackendUnavailable, match="Timeout reading"):
            ps.queue("bulk-processing").length()
        # Five attempts of half a second with some waits between; as others have it, it would be 25 seconds.
        assert 2.5 <= time.monotonic() - began < 15
        assert ps.queue("analytics").length() == 0, "the others are at another server"
    finally:
        second.resume()
    assert ps.queue("bulk-processing").length() == 0
