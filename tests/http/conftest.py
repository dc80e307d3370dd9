"""A store on a clock that stands still, a server of it, and a client."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from penstock import ManualClock, Penstock
from tests.http.running import Running

START_NS = 1_000_000_000_000_000_000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START_NS)


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock) -> Iterator[Penstock]:
    with penstock.open(f"rocksdb:{tmp_path / 'store'}?durability=os", clock=clock) as ps:
        yield ps


@pytest.fixture
def server(store: Penstock) -> Iterator[Running]:
    running = Running(store)
    yield running
    running.stop()


@pytest.fixture
def ps(server: Running) -> Iterator[Penstock]:
    with penstock.open(server.url) as remote:
        yield remote
