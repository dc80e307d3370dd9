"""A server in this process: the parts that `penstock serve` is made of, on an event loop in a thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from penstock.clock import SystemClock
from penstock.penstock import Penstock
from penstock.server.access import Credentials
from penstock.server.app import ServerApp, load_endpoints
from penstock.server.calls import StoreCalls
from penstock.server.credentials import NoCredentials
from penstock.server.door import Door
from penstock.server.request_log import RequestLog
from penstock.server.serving import bind
from penstock.server_config import Limits, ServerSettings

Calls = Callable[[Penstock, Limits], StoreCalls]


class Running:
    """Serves an open system until it is stopped."""

    def __init__(
        self,
        ps: Penstock,
        calls: Calls = StoreCalls,
        credentials: Credentials | None = None,
        port: int = 0,
        limits: Limits | None = None,
    ) -> None:
        self._ps = ps
        self._make_calls = calls
        self._credentials = credentials or NoCredentials()
        self._settings = ServerSettings(port=port, log="off", limits=limits or Limits())
        self._socket = bind(self._settings)
        self.port: int = self._socket.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._loop = asyncio.new_event_loop()
        self._started = threading.Event()
        self._stopping = asyncio.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._started.wait(10)

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            self._loop.close()
            self._socket.close()

    async def _serve(self) -> None:
        clock, limits = SystemClock(), self._settings.limits
        self.calls = self._make_calls(self._ps, limits)
        endpoints = load_endpoints(self._ps, self.calls, self._credentials, self._settings)
        log = RequestLog("off")
        app = ServerApp(self._ps, self.calls, self._credentials, endpoints, log, clock)
        self.door = Door(app, limits, clock)
        self.door.open(self._socket)
        self._started.set()
        await self._stopping.wait()
        self.calls.polls.stop()
        await self.door.stop(5)
        await self._loop.run_in_executor(None, self.calls.close)
        await self._loop.shutdown_default_executor()
        log.close()

    def stop(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stopping.set)
            self._thread.join(20)
            assert not self._thread.is_alive()
