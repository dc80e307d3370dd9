"""Faults under load: nothing that was acknowledged is missing, and whoever works goes on by itself."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from _pytest.mark import ParameterSet

import penstock
from penstock import Delivery, Penstock, Worker
from penstock.errors import BackendUnavailable
from tests.redis import faults
from tests.redis.faults import FAULTS, TARGETS, Scene, Target, run_fault
from tests.redis.one_server import started
from tests.redis.servers import RunningServer, wait_until

#: Those that last longer than calls are tried: producers are told.
TOLD = {
    "server killed -9, away for 4 s",
    "all connections cut, none for 2 s",
    "server without memory for 1 s",
}


#: In every run of the tests, of stores whose other faults wait for `make soak`: those that streams meet with
#: entries pending.
ALWAYS = {"worker killed -9", "server killed -9, back at once, with its log"}


def runs() -> Iterator[ParameterSet]:
    for target, fault in itertools.product(TARGETS, FAULTS):
        is_slow = target is not TARGETS[0] and fault not in ALWAYS
        yield pytest.param(target, fault, marks=[pytest.mark.soak] if is_slow else [], id=f"{target}-{fault}")


@pytest.mark.parametrize(("target", "fault"), list(runs()))
def test_nothing_that_was_acknowledged_is_missing(target: Target, fault: str, tmp_path: Path) -> None:
    result = run_fault(target, fault, FAULTS[fault][1], tmp_path)
    assert result.acknowledged > 50, "hardly anything was done"
    assert result.missing == 0
    if fault in TOLD:
        assert result.told > 0


def test_what_is_missing_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def lose(scene: Scene) -> None:
        with penstock.open(scene.server_url) as ps:
            assert wait_until(lambda: ps.queue("q").purge("ready"))

    monkeypatch.setitem(faults.FAULTS, "messages thrown away", (lose, 1))
    assert run_fault(TARGETS[0], "messages thrown away", 1, tmp_path).missing > 0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    server = started(tmp_path)
    yield server
    server.resume_and_kill()


@pytest.fixture
def ps(server: RunningServer) -> Iterator[Penstock]:
    with penstock.open(server.url()) as ps:
        ps.create_queue("q")
        yield ps


def succeeds(ps: Penstock) -> bool:
    try:
        ps.queue("q").enqueue(b"again")
    except BackendUnavailable:
        return False
    return True


def test_after_an_outage_the_breaker_closes_and_a_worker_goes_on_by_itself(
    server: RunningServer, ps: Penstock, caplog: pytest.LogCaptureFixture
) -> None:
    connection: Any = ps._default._server  # type: ignore[attr-defined]
    handled: list[bytes] = []

    def handle(delivery: Delivery) -> None:
        handled.append(delivery.payload)

    with caplog.at_level(logging.WARNING, "penstock"), Worker(ps, "q", handle):
        ps.queue("q").enqueue(b"before")
        assert wait_until(lambda: b"before" in handled)
        server.kill()
        with pytest.raises(BackendUnavailable):
            ps.queue("q").enqueue(b"meanwhile")
        health = ps.health()
        assert (health.status, health.numbers["default"].reachable) == ("unhealthy", False)
        assert wait_until(lambda: connection.health().breaker_open, 30)
        server.start()
        assert wait_until(lambda: succeeds(ps), 30)
        assert wait_until(lambda: b"again" in handled, 30)
    assert not connection.health().breaker_open
    assert "trying again" in caplog.text
    health = ps.health()
    assert health.numbers["default"].reachable
    assert "none is sent for a moment" not in str(health.reasons)


def test_a_server_without_a_log_forgets_and_health_had_warned(tmp_path: Path) -> None:
    server = started(tmp_path, appendonly="no")
    try:
        with penstock.open(server.url()) as ps:
            ps.create_queue("q").enqueue(b"x")
            assert "keeps no log" in str(ps.health().reasons)
            assert not ps.info().default.capabilities.persistence
            server.kill()
            server.start()
            assert ps.queues() == []
    finally:
        server.kill()
