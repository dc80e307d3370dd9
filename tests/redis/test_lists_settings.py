"""Settings of a backend on Redis lists have their effect, or are refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.errors import InvalidConfig
from tests.redis.one_server import started
from tests.redis.stores import Place


@pytest.fixture
def place() -> Any:
    place = Place()
    yield place
    place.close()


def configured(folder: Path, place: Place, *lines: str) -> str:
    """A penstock.yaml with the backend `fast` of such settings, and a queue `q` on it."""
    url, _, prefix = place.url.partition("?key_prefix=")
    rows = [
        f"storage: {{path: '{folder / 'data'}'}}",
        "backends:",
        "  fast:",
        f"    url: '{url}'",
        f"    key_prefix: '{prefix}'",
        *(f"    {line}" for line in lines),
        "queues:",
        "  q: {backend: fast}",
    ]
    file = folder / "penstock.yaml"
    file.write_text("\n".join(rows))
    return str(file)


def test_a_cluster_that_is_none_is_refused(place: Place, tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="is no member of a cluster"):
        penstock.open(configured(tmp_path, place, "cluster: true")).close()


def test_more_durability_than_the_server_gives_is_refused(tmp_path: Path) -> None:
    server = started(tmp_path, appendfsync="everysec")
    try:
        for asked in ("os", "interval"):
            penstock.open(f"{server.url()}?durability={asked}").close()
        with pytest.raises(InvalidConfig, match="durability is 'sync', but the server gives 'interval'"):
            penstock.open(f"{server.url()}?durability=sync")
    finally:
        server.kill()


def test_bodies_are_compressed_where_the_backend_says_so(place: Place, tmp_path: Path) -> None:
    for number, setting in enumerate(("false", "true")):
        folder = tmp_path / str(number)
        folder.mkdir()
        with penstock.open(configured(folder, place, f"compression: {setting}")) as ps:
            ps.queue("q").enqueue(b"all alike " * 1000)
            [size] = [len(raw) for raw in place.client.hvals(place.key("q", "m"))]
            assert (size < 1000) == (setting == "true")
            [delivery] = ps.queue("q").lease()
            assert delivery.payload == b"all alike " * 1000
            ps.queue("q").ack([delivery.receipt])


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ("health: {max_latency: 1ms}", "health.max_latency is 0.001"),
        ("health: {max_memory_ratio: 0.0001}", "of its maxmemory in use"),
    ],
)
def test_beyond_a_threshold_the_backend_is_degraded(
    place: Place, tmp_path: Path, setting: str, reason: str
) -> None:
    with penstock.open(configured(tmp_path, place, setting)) as ps:
        for _ in range(120):
            ps.queue("q").stats()
        for _ in range(5):
            place.client.client_pause(20)
            ps.queue("q").stats()
        place.client.config_set("maxmemory", 1 << 30)
        try:
            health = ps.health()
        finally:
            place.client.config_set("maxmemory", 0)
        assert health.status == "degraded"
        assert reason in str(health.reasons)


def test_a_server_that_went_away_is_unhealthy(tmp_path: Path) -> None:
    server = started(tmp_path)
    with penstock.open(server.url()) as ps:
        assert ps.health().status == "healthy"
        server.kill()
        assert ps.health().status == "unhealthy"
