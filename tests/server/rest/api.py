"""A server with the typed interface, in a thread of the test's process, and a client of it."""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import msgspec

from penstock import Penstock
from penstock.server.access import Credentials
from penstock.server.rest.endpoint import RestEndpoint
from penstock.server_config import Limits
from tests.server.running import DEFAULTS, running

MSGPACK = {"content-type": "application/msgpack", "accept": "application/msgpack"}


class Told(NamedTuple):
    """An answer."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def value(self) -> Any:
        is_msgpack = self.headers.get("content-type") == "application/msgpack"
        return msgspec.msgpack.decode(self.body) if is_msgpack else json.loads(self.body)


class Api(NamedTuple):
    """Requests to a server, each on a connection of its own."""

    ps: Penstock
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def raw(self, verb: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None) -> Told:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request(verb, path, body or None, headers or {})
            response = connection.getresponse()
            named = {name.lower(): value for name, value in response.getheaders()}
            return Told(response.status, named, response.read())
        finally:
            connection.close()

    def __call__(self, verb: str, path: str, asked: object = None, **headers: str) -> Told:
        """In JSON; `/v1` is put before the path."""
        body = b"" if asked is None else json.dumps(asked).encode()
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.raw(verb, "/v1" + path, body, {"content-type": "application/json", **named})

    def packed(self, verb: str, path: str, asked: object = None) -> Told:
        """In MessagePack."""
        return self.raw(verb, "/v1" + path, b"" if asked is None else msgspec.msgpack.encode(asked), MSGPACK)

    def ok(self, verb: str, path: str, asked: object = None, **headers: str) -> Any:
        """What is answered to something that succeeds."""
        told = self(verb, path, asked, **headers)
        assert told.status in (200, 201), (verb, path, told.status, told.body[:500])
        return told.value


@contextmanager
def api(ps: Penstock, credentials: Credentials | None = None, limits: Limits = DEFAULTS) -> Iterator[Api]:
    started = threading.Event()
    ports: list[int] = []
    loop, stop = asyncio.new_event_loop(), asyncio.Event()

    async def serve() -> None:
        async with running(ps, limits, credentials, interfaces=[RestEndpoint]) as server:
            ports.append(server.port)
            started.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()), daemon=True)
    thread.start()
    assert started.wait(20)
    try:
        yield Api(ps, ports[0])
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(20)
        loop.close()
