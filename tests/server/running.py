"""A server in the process of a test, with an endpoint that shows what the frame does; a client of bytes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from penstock import NewMessage, Penstock
from penstock.clock import SystemClock
from penstock.server.access import Credentials
from penstock.server.app import ServerApp
from penstock.server.calls import StoreCalls
from penstock.server.credentials import NoCredentials
from penstock.server.door import Door
from penstock.server.endpoint import Busy, Endpoint, Request, Response
from penstock.server.request_log import RequestLog
from penstock.server.serving import bind
from penstock.server_config import Limits, ServerSettings

DEFAULTS = Limits()
#: What makes an interface of a store.
Interface = Callable[[Penstock, StoreCalls, Credentials], Endpoint]


class Probe:
    """An endpoint of a few paths, for what every endpoint does."""

    name = "probe"

    def __init__(self, calls: StoreCalls) -> None:
        self._calls = calls
        self.entered = asyncio.Event()
        self.go_on = asyncio.Event()

    def claims(self, method: str, path: str, headers: Mapping[str, str]) -> bool:
        return path.startswith("/probe/")

    def refused(self, status: int, what: str, request_id: str, headers: Mapping[str, str]) -> Response:
        return Response(status, json.dumps({"probe_error": what, "id": request_id}).encode())

    def admit(self, request: Request) -> Response | None:
        return Response(401, b"{}") if "x-stranger" in request.headers else None

    async def answer(self, request: Request) -> Response:
        kind = request.about.operation = request.path.split("/")[2]
        if kind == "echo":
            return Response(200, request.body, "application/octet-stream")
        if kind == "seen":
            return Response(200, json.dumps([request.method, request.query, dict(request.headers)]).encode())
        if kind == "pieces":
            return Response(200, self._pieces(), "text/plain")
        if kind == "fail":
            raise ValueError(request.body.decode())
        if kind == "busy":
            raise Busy(429, "no room", 2.5)
        if kind == "enqueue":
            await self._calls.enqueue("q", [NewMessage(request.body)])
            return Response(204)
        if kind == "hold":
            self.entered.set()
            await self.go_on.wait()
            return Response(200, b"held")
        if kind != "lease":
            return Response(404, b"{}")
        found = await self._calls.lease("q", 1, None, float(request.query or 0), "", request.listening)
        return Response(200, b",".join(delivery.payload for delivery in found))

    async def _pieces(self) -> AsyncIterator[bytes]:
        for piece in (b"one", b"", b"two"):
            yield piece
        if self.go_on.is_set():
            raise ValueError("halfway")


class Running(NamedTuple):
    """What a test holds of it."""

    port: int
    calls: StoreCalls
    app: ServerApp
    door: Door
    probe: Probe

    async def ask(self, method: str, path: str, body: bytes = b"", headers: str = "") -> Answer:
        """One request on a connection of its own."""
        return await exchange(self.port, message(method, path, body, headers))


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@asynccontextmanager
async def running(
    ps: Penstock,
    limits: Limits = DEFAULTS,
    credentials: Credentials | None = None,
    log: str = "off",
    interfaces: Sequence[Interface] = (),
) -> AsyncIterator[Running]:
    calls, request_log = StoreCalls(ps, limits), RequestLog(log)
    probe = Probe(calls)
    known = credentials or NoCredentials()
    endpoints = [*(made(ps, calls, known) for made in interfaces), probe]
    app = ServerApp(ps, calls, known, endpoints, request_log, SystemClock())
    door = Door(app, limits, SystemClock())
    bound = bind(ServerSettings(port=0))
    door.open(bound)
    try:
        yield Running(bound.getsockname()[1], calls, app, door, probe)
    finally:
        calls.polls.stop()
        probe.go_on.set()
        await door.stop(5.0)
        bound.close()
        calls.close()
        request_log.close()


def message(method: str, path: str, body: bytes = b"", headers: str = "", close: bool = True) -> bytes:
    lines = f"{method} {path} HTTP/1.1\r\nhost: here\r\n{headers}"
    lines += f"content-length: {len(body)}\r\n" if body else ""
    return f"{lines}{'connection: close' if close else 'x-more: yes'}\r\n\r\n".encode() + body


async def exchange(port: int, data: bytes) -> Answer:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(data)
        return await answer(reader)
    finally:
        writer.close()


async def answer(reader: asyncio.StreamReader) -> Answer:
    """The next one; by its length, or by its chunks."""
    async with asyncio.timeout(10):
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").splitlines()
        headers = dict(line.split(": ", 1) for line in head[1:-1])
        if headers.get("transfer-encoding") == "chunked":
            body = b""
            while size := int(await reader.readline(), 16):
                body += await reader.readexactly(size)
                await reader.readline()
            await reader.readline()
        else:
            body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Answer(int(head[0].split()[1]), headers, body)
