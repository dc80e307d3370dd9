"""The suite passes over HTTP: the store is behind a server, and nothing shows it but `info`.

The store is on RocksDB; for consumer groups, which it has not, on Redis streams.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import cast

import pytest

import penstock
from penstock.backends.forwarding.answering import Served
from penstock.clock import Clock
from penstock.config import Config, resolve
from penstock.message import Delivery
from penstock.server.calls import StoreCalls
from penstock.server_config import Limits
from penstock.testing.group_suite import GroupSuite
from penstock.testing.suite import BackendSuite
from tests.http.running import Calls, Running
from tests.redis.one_server import shared


class OnTheStoresClock(StoreCalls):
    """The server's own lines of polls go by the event loop's time, which no test can move.

    Here each poll waits in the store, on the clock of the test; tests/http has those of the lines.
    """

    def __init__(self, ps: penstock.Penstock, limits: Limits) -> None:
        super().__init__(ps, limits)
        self._store = cast(Served, ps.backends["default"])
        self._threads = ThreadPoolExecutor(64)

    async def lease(
        self,
        queue: str,
        max_messages: int,
        lease_s: float | None,
        wait_s: float,
        consumer: str,
        listening: Callable[[], bool],
    ) -> Sequence[Delivery]:
        return await self.run(
            self._store.lease_while, listening, queue, max_messages, lease_s, wait_s, consumer
        )


class Remote(penstock.Penstock):
    """Opened by the URL of a server that is stopped with it."""

    def __init__(
        self, config: Config, clock: Clock, rng: random.Random, calls: Calls = OnTheStoresClock
    ) -> None:
        self._owner = penstock.Penstock(config, clock, rng)
        self._server = Running(self._owner, calls)
        super().__init__(resolve(self._server.url), None, None)

    def close(self) -> None:
        super().close()
        self._owner.close()  # First: the polls that wait in it hold the server's threads.
        self._server.stop()


class TestHttp(BackendSuite):
    def open_penstock(self, folder: Path, clock: Clock, rng: random.Random) -> penstock.Penstock:
        remote = Remote(resolve(folder), clock, rng)
        assert remote.info().default.backend == "http"
        return remote


class TestHttpBeforeStreams(GroupSuite):
    """Groups, which are on Redis streams alone, through a server."""

    @pytest.fixture(autouse=True)
    def emptied(self) -> Iterator[None]:
        yield
        with shared("redis").client() as client:
            client.flushall(asynchronous=True)

    def open_penstock(self, folder: Path, clock: Clock, rng: random.Random) -> penstock.Penstock:
        prefix = hashlib.sha256(str(folder).encode()).hexdigest()[:12]
        url = f"{shared('redis').url('streams')}?key_prefix={prefix}-"
        return Remote(resolve(url), clock, rng, StoreCalls)
