"""What health tells of a store on Redis: numbers, thresholds that count, and at what cost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import NewMessage, Penstock
from penstock.backends.base import HealthNumbers
from penstock.backends.redis.repairing import Repairing
from penstock.metrics import render
from tests.redis.one_server import started
from tests.redis.proxy import Proxy
from tests.redis.servers import RunningServer, wait_until
from tests.redis.stores import Place
from tests.redis.test_lists_settings import configured


@pytest.fixture
def place() -> Iterator[Place]:
    place = Place()
    yield place
    place.close()


def numbers(ps: Penstock, backend: str = "default") -> HealthNumbers:
    return ps.health().numbers[backend]


def test_the_numbers_are_those_of_all_queues_together(place: Place) -> None:
    ps = place.open()
    for name in ("a", "b"):
        q = ps.create_queue(name)
        q.enqueue_many([NewMessage(b"x")] * 4 + [NewMessage(b"later", delay_s=60)])
        place.clock.advance(5)
        q.ack([q.lease()[0].receipt])
        q.nack([q.lease()[0].receipt], delay_s=30)
        q.lease()
        q.cursor("archive", required=True)
    found = numbers(ps)
    assert found.reachable
    assert (found.queues, found.depth, found.leased) == (2, 6, 2)
    assert found.oldest_ready_age_s == pytest.approx(10, abs=0.001)
    assert found.enqueue_rate_per_s == pytest.approx(10 / 60)
    assert found.ack_rate_per_s == pytest.approx(2 / 60)
    assert found.fail_rate_per_s == pytest.approx(2 / 60)
    assert found.consumer_lag == 10
    assert found.calls > 10
    assert found.latency_p50_ms is not None
    assert 0 < found.latency_p50_ms <= (found.latency_p99_ms or 0)
    assert (found.memory_bytes or 0) > 100_000
    assert (found.memory_limit_bytes, found.memory_ratio) == (None, None)
    assert (found.pool_in_use, found.pool_size) == (0, 20)
    assert (found.shards, found.stream_length) == (None, None)


def test_the_metrics_have_them(place: Place) -> None:
    ps = place.open()
    ps.create_queue("q").enqueue(b"x")
    shown = render(ps)
    for line in (
        'penstock_backend_up{backend="default"} 1.0',
        'penstock_backend_pool_size{backend="default"} 20.0',
        'penstock_backend_error_ratio{backend="default"} 0.0',
    ):
        assert line in shown
    assert 'penstock_backend_latency_seconds{backend="default",quantile="0.99"}' in shown
    assert 'penstock_backend_memory_bytes{backend="default"}' in shown


#: threshold -> what it says of three messages that are 90 seconds old, two of them waiting, with all unread
THRESHOLDS = {
    "max_depth: 1": "2 messages wait; health.max_depth is 1",
    "max_oldest_age: 1m": "ready for 90.0 s; health.max_oldest_age is 60",
    "max_lag: 3": "4 entries behind; health.max_lag is 3",
    "max_memory_ratio: 0.0001": "health.max_memory_ratio is 0.0001",
    "max_depth: 2": "",
    "max_oldest_age: 2m": "",
    "max_lag: 4": "",
    "max_memory_ratio: 0.99": "",
}


@pytest.mark.parametrize("threshold", THRESHOLDS)
def test_beyond_a_threshold_the_backend_is_degraded(place: Place, tmp_path: Path, threshold: str) -> None:
    with penstock.open(configured(tmp_path, place, f"health: {{{threshold}}}"), clock=place.clock) as ps:
        q = ps.queue("q")
        q.cursor("archive", required=True)
        q.enqueue_many([NewMessage(b"x")] * 3)
        place.clock.advance(90)
        q.lease()
        place.client.config_set("maxmemory", 1 << 30)
        try:
            health = ps.health()
        finally:
            place.client.config_set("maxmemory", 0)
    said = THRESHOLDS[threshold]
    assert health.backends["fast"] == ("degraded" if said else "healthy")
    assert said in str(health.reasons)
    assert health.numbers["fast"].memory_limit_bytes == 1 << 30


@pytest.mark.parametrize(("limit", "status"), [("0.05", "degraded"), ("0.5", "healthy")])
def test_more_failed_attempts_than_max_error_rate_are_told(
    place: Place, tmp_path: Path, limit: str, status: str
) -> None:
    with Proxy(place.server.port) as proxy:
        file = Path(configured(tmp_path, place, f"health: {{max_error_rate: {limit}}}"))
        file.write_text(file.read_text().replace(f":{place.server.port}/", f":{proxy.port}/"))
        with penstock.open(file, clock=place.clock) as ps:
            for _ in range(30):
                proxy.cut_after(1)
                ps.queue("q").stats()
            for _ in range(60):
                ps.queue("q").stats()
            health = ps.health()
    assert health.backends["fast"] == status
    assert 0.05 < health.numbers["fast"].error_rate < 0.5


def test_its_cost_is_flat_in_the_backlog_and_a_part_of_the_queues(place: Place) -> None:
    ps = place.open()
    server = ps._default._server  # type: ignore[attr-defined]

    def cost() -> int:
        before = server._sender.meter.calls
        assert ps.health().status == "healthy"
        return int(server._sender.meter.calls - before)

    q = ps.create_queue("q0")
    one = cost()
    q.enqueue_many([NewMessage(b"x", fairness_key=f"k{n}") for n in range(3000)])
    assert cost() == one
    for n in range(1, 100):
        ps.create_queue(f"q{n}")
    assert cost() == one
    ps.create_queue("q100")  # 100 fit into a round trip.
    assert cost() == one + 1


def test_replicas_that_nobody_waits_for_are_warned_of(tmp_path: Path) -> None:
    server = started(tmp_path / "a")
    replica = started(tmp_path / "b")
    try:
        with penstock.open(server.url()) as ps:
            assert ps.health().warnings == {}
            replica.do("REPLICAOF", "127.0.0.1", server.port)
            assert wait_until(lambda: server.client().info("replication")["connected_slaves"] == 1)
            health = ps.health()
        assert health.status == "healthy"
        assert "may lack what was acknowledged last" in str(health.warnings)
    finally:
        server.kill()
        replica.kill()


def test_a_server_that_went_away_is_not_reachable(tmp_path: Path) -> None:
    server = started(tmp_path)
    with penstock.open(server.url()) as ps:
        server.kill()
        health = ps.health()
    assert health.status == "unhealthy"
    found = health.numbers["default"]
    assert (found.reachable, found.depth, found.memory_bytes) == (False, None, None)
    assert found.error_rate > 0


class Waited(Exception):
    """Somebody wanted to wait."""


def test_a_queue_in_repair_keeps_neither_health_nor_metrics_nor_check_waiting(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    ps = place.open()
    for name in ("a", "b"):
        ps.create_queue(name).enqueue(b"x")
    engine: Any = ps._default._engine  # type: ignore[attr-defined]
    monkeypatch.setattr(Repairing, "_rebuild", lambda *args: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        engine_repair(ps, "a")
    monkeypatch.undo()

    def no_wait(seconds: float) -> bool:
        raise Waited

    monkeypatch.setattr(engine.closed, "wait", no_wait)
    health = ps.health()
    assert (health.status, health.numbers["default"].depth) == ("degraded", 1)
    assert "queue 'a' is being repaired" in str(health.reasons)
    assert list(ps.metrics()["default"].queues) == ["b"]
    assert ps.check().counts == {"locked": 1}
    assert [one.queue for one in ps.due()] == []
    ps.sweep()
    with pytest.raises(Waited):
        ps.queue("a").enqueue(b"y")


def engine_repair(ps: Penstock, name: str) -> None:
    ps._default._checking._repairing.repair(name)  # type: ignore[attr-defined]


def test_backends_tells_numbers_of_a_server_without_a_store(
    shared_server: RunningServer, tmp_path: Path
) -> None:
    from penstock.backends.discovery import configured_backends
    from penstock.config import load

    file = tmp_path / "penstock.yaml"
    file.write_text(f"storage: {{engine: memory}}\nbackends: {{fast: {{url: '{shared_server.url()}'}}}}\n")
    found = {one.name: one.numbers for one in configured_backends(load(file))}
    assert found["fast"] is not None
    assert (found["fast"].reachable, found["fast"].pool_size, found["fast"].depth) == (True, 20, None)
    assert (found["fast"].memory_bytes or 0) > 100_000
    assert found["default"] is not None
    assert found["default"].depth == 0
