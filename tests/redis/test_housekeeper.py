"""The housekeeper of a store on a server: it tells of an outage once, lives through it, and goes on."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from penstock import Penstock
from penstock.backends.redis.sweeping import SWEEP_EVERY_S, Sweeping
from tests.redis.one_server import started
from tests.redis.servers import RunningServer, wait_until

FAILED, GOES_ON = "housekeeping failed, and is tried again", "housekeeping goes on"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    server = started(tmp_path)
    yield server
    server.kill()


@pytest.fixture
def ps(server: RunningServer) -> Iterator[Penstock]:
    with penstock.open(server.url()) as ps:
        ps.create_queue("q")
        yield ps


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What it said, without the reasons."""
    said = [record.getMessage() for record in caplog.records]
    return [mark for one in said for mark in (FAILED, GOES_ON) if one.startswith(mark)]


def is_swept(ps: Penstock) -> bool:
    """Whether a lease that is over is ended by the housekeeper: nobody else asks for it."""
    q = ps.queue("q")
    q.enqueue(b"x")
    q.lease(1, lease_s=0.05)
    return wait_until(lambda: q.stats().leased == 0, 20)


def test_an_outage_of_the_server_is_told_once_and_so_is_its_end(
    server: RunningServer, ps: Penstock, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "penstock"):
        server.kill()
        assert wait_until(lambda: told(caplog) == [FAILED], 30)
        # Rounds go on: a call that fails is tried for a while, and then the breaker answers at once.
        threading.Event().wait(12 * SWEEP_EVERY_S)
        assert told(caplog) == [FAILED]
        server.start()
        assert wait_until(lambda: told(caplog) == [FAILED, GOES_ON], 30)
    assert is_swept(ps)


def test_whatever_is_raised_is_told_once_and_the_next_round_is_tried(
    ps: Penstock, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds = threading.Semaphore(0)
    tidy = Sweeping.tidy

    def broken(self: Sweeping, budget: int) -> int:
        rounds.release()
        raise ZeroDivisionError("a mistake of ours")

    with caplog.at_level(logging.WARNING, "penstock"):
        monkeypatch.setattr(Sweeping, "tidy", broken)
        for _ in range(4):
            assert rounds.acquire(timeout=20)
        assert told(caplog) == [FAILED]
        assert "ZeroDivisionError: a mistake of ours" in caplog.text
        monkeypatch.setattr(Sweeping, "tidy", tidy)
        assert wait_until(lambda: told(caplog) == [FAILED, GOES_ON], 20)
    assert is_swept(ps)
