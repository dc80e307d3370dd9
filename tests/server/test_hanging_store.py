"""A store that does not answer: the server says so, is not filled by those who ask, and can be ended."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import urllib3

import penstock
from penstock.testing.background import Background, wait_until
from tests.http.running import Running
from tests.redis.servers import RunningServer, running
from tests.server.processes import serving
from tests.server.running import message

PATIENT = "?read_timeout=60&write_timeout=60"


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RunningServer]:
    with running(tmp_path / "redis") as server:
        with penstock.open(server.url()) as ps:
            ps.create_queue("q")
        yield server


def test_a_server_whose_store_hangs_ends_when_its_time_is_over(tmp_path: Path, redis: RunningServer) -> None:
    limits = {"PENSTOCK_SERVER_LIMITS_STOP_TIMEOUT_S": "1"}
    with serving(tmp_path, "--store", redis.url(query=PATIENT), **limits) as server:
        redis.pause()
        with socket.create_connection(("127.0.0.1", server.port), 10) as line:
            line.sendall(message("GET", "/v1/queues/q/stats"))
            assert server.get("/healthz")[0] == 200  # So that the first has been read.
            began_s = time.monotonic()
            assert server.stop() == 1
            assert time.monotonic() - began_s < 12
            assert line.recv(1) == b""
        assert "ending without them" in server.errors
        assert "Traceback" not in server.errors


def test_however_many_ask_whether_it_is_ready_the_store_is_asked_once(redis: RunningServer) -> None:
    with penstock.open(redis.url(query=PATIENT)) as ps:
        server = Running(ps)
        try:
            redis.pause()
            asking = [Background(lambda: _ready(server)) for _ in range(20)]
            wait_until(lambda: server.door.answering == 20)
            assert server.calls.running == 1
            redis.resume()
            assert [one.result() for one in asking] == [200] * 20
        finally:
            redis.resume()
            server.stop()


def _ready(server: Running) -> int:
    headers = {"connection": "close"}
    return urllib3.request("GET", f"{server.url}/readyz", headers=headers, timeout=30, retries=False).status
