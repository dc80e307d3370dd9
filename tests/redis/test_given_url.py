"""What `make test-backend` stands on: stores of their own on one server, and nothing left of them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.backends.redis.connecting import connect
from penstock.redis_settings import RedisSettings
from tests.conformance.given_url import VARIABLE, clear, place_of
from tests.redis.servers import RunningCluster, RunningServer

ROOT = Path(__file__).resolve().parents[2]


def prefix_of(url: str, folder: Path) -> str:
    settings = place_of(url, folder).default
    assert isinstance(settings, RedisSettings)
    return settings.key_prefix


def test_each_store_has_a_prefix_of_its_own_below_that_of_the_url(tmp_path: Path) -> None:
    url = "redis+lists://localhost?key_prefix=a:"
    first, second = prefix_of(url, tmp_path / "1"), prefix_of(url, tmp_path / "2")
    assert first == prefix_of(url, tmp_path / "1")
    assert first != second
    assert first.startswith("a:test-")


def test_only_the_keys_of_the_store_are_removed(shared_server: RunningServer, tmp_path: Path) -> None:
    shared_server.do("FLUSHALL")
    url = shared_server.url(query="?key_prefix=a*[b]")
    prefix = prefix_of(url, tmp_path)
    shared_server.do("MSET", *(part for number in range(3000) for part in (f"{prefix}{{q}}:{number}", 1)))
    shared_server.do("SET", prefix.replace("a*", "axx"), 1)
    assert clear(place_of(url, tmp_path)) == 3000
    assert shared_server.do("DBSIZE") == 1


@pytest.mark.xdist_group("redis-cluster")
def test_on_a_cluster_they_are_removed_everywhere(shared_cluster: RunningCluster, tmp_path: Path) -> None:
    config = place_of(shared_cluster.url(), tmp_path)
    assert isinstance(config.default, RedisSettings)
    server = connect(config.default)
    for number in range(50):
        server.command("SET", f"{config.default.key_prefix}{{{number}}}", 1)
    server.close()
    assert clear(config) == 50


def test_the_suite_runs_against_the_url_that_is_given() -> None:
    page = "tests/conformance/test_given_url.py"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", page, "-k", "context_manager"],
        cwd=ROOT,
        env={**os.environ, VARIABLE: "memory:"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "1 passed" in done.stdout, done.stdout + done.stderr
