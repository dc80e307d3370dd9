"""From a request to its answer: which interface it is for, the server's own pages, log and counts."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import traceback
from collections.abc import Callable, Mapping
from importlib import import_module, util
from time import perf_counter
from typing import Any

import msgspec

from penstock.clock import Clock
from penstock.errors import Unauthorized
from penstock.penstock import Penstock
from penstock.server.access import STORE, Credentials
from penstock.server.authentication import principal
from penstock.server.calls import StoreCalls
from penstock.server.endpoint import About, Busy, Endpoint, Request, Response
from penstock.server.head import Head
from penstock.server.numbers import Numbers
from penstock.server.pages import foreign
from penstock.server.request_log import RequestLog
from penstock.server_config import ServerSettings

log = logging.getLogger("penstock.server")

#: interface -> module and class; asked in this order whether a request is theirs.
ENDPOINTS: dict[str, tuple[str, str]] = {
    "rest": ("penstock.server.rest.endpoint", "RestEndpoint"),
    "native": ("penstock.server.native.endpoint", "NativeEndpoint"),
    "sqs": ("penstock.server.sqs.endpoint", "SqsEndpoint"),
}
#: What the frame itself answers.
PAGES = ("/healthz", "/readyz", "/metrics")
#: How long an answer of `/readyz` is good for, however often it is asked for.
READY_FOR_S = 1.0


def load_endpoints(
    ps: Penstock, calls: StoreCalls, credentials: Credentials, settings: ServerSettings
) -> list[Endpoint]:
    """Those of the table that this installation has."""
    more: dict[str, tuple[Any, ...]] = {
        "rest": (),
        "native": (settings.limits.max_streams,),
        "sqs": (settings,),
    }
    found: list[Endpoint] = []
    for name, (module, made) in ENDPOINTS.items():
        if util.find_spec(module.rpartition(".")[0]) and util.find_spec(module):
            found.append(getattr(import_module(module), made)(ps, calls, credentials, *more[name]))
    return found


class ServerApp:
    """Answers requests, each with an id, a line of the log and a count."""

    def __init__(
        self,
        ps: Penstock,
        calls: StoreCalls,
        credentials: Credentials,
        endpoints: list[Endpoint],
        request_log: RequestLog,
        clock: Clock,
        trouble: Callable[[], list[str]] = list,
    ) -> None:
        self._ps = ps
        self._calls = calls
        self._credentials = credentials
        self._endpoints = endpoints
        self._log = request_log
        self._clock = clock
        #: What is wrong with the server itself, though its stores are well.
        self._trouble = trouble
        self.numbers = Numbers(calls)
        self._ready: tuple[float, Response] | None = None
        self._looking: asyncio.Future[Response] | None = None
        self._id_start, self._ids = os.urandom(8).hex(), 0

    def new_id(self) -> str:
        """Unique, and of the form of a UUID."""
        self._ids += 1
        start, count = self._id_start, f"{self._ids:016x}"
        return f"{start[:8]}-{start[8:12]}-{start[12:]}-{count[:4]}-{count[4:]}"

    async def answer(self, request: Request) -> Response:
        began_s = perf_counter()
        endpoint = self._endpoint(request.method, request.path, request.headers)
        interface = endpoint.name if endpoint else "server"
        self.numbers.in_flight += 1
        try:
            response = self._stray(endpoint, request) or await (
                endpoint.answer(request) if endpoint else self._page(request)
            )
        except Busy as busy:
            response = self._refused(endpoint, busy.status, str(busy), request.id, request.headers)
            after_s = max(1, math.ceil(busy.retry_after_s))
            response = response._replace(headers=[*response.headers, ("retry-after", str(after_s))])
            self.numbers.refused(busy.status)
        except Exception as error:  # noqa: BLE001  (whatever it is, it is answered)
            # Its words may hold what the client sent: only what it is and where it was goes to the log.
            where = "".join(traceback.format_tb(error.__traceback__))
            log.error("request %s failed: %s\n%s", request.id, type(error).__name__, where)
            what = "the server failed; its log tells more, under the request's id"
            response = self._refused(endpoint, 500, what, request.id, request.headers)
        finally:
            self.numbers.in_flight -= 1
        about, seconds = request.about, perf_counter() - began_s
        self.numbers.answered(interface, about.operation, response.status, seconds)
        self._log.write(
            self._clock.now_ns(),
            request.id,
            interface,
            about,
            response,
            seconds,
            len(request.body),
            request.client,
        )
        return response._replace(headers=[*response.headers, ("x-request-id", request.id)])

    def admit(self, head: Head, certificate: str | None, client: str) -> Response | None:
        request = Request(
            self.new_id(),
            head.method,
            head.path,
            head.query,
            head.headers,
            b"",
            client,
            certificate,
            lambda: True,
            About(),
        )
        endpoint = self._endpoint(head.method, head.path, head.headers)
        if endpoint is None:
            response: Response | None = _json(413, {"error": "nothing here takes a body of this size"})
        else:
            response = self._stray(endpoint, request) or endpoint.admit(request)
        return response and self._turned_away(response, request.id, client)

    def refuse(self, status: int, what: str, head: Head | None, client: str) -> Response:
        """The answer to a request that was not read whole."""
        request_id = self.new_id()
        endpoint = head and self._endpoint(head.method, head.path, head.headers)
        response = self._refused(endpoint or None, status, what, request_id, head.headers if head else {})
        if status == 503:
            response = response._replace(headers=[*response.headers, ("retry-after", "1")])
        return self._turned_away(response, request_id, client)

    def hung_up(self) -> None:
        self.numbers.refused(503)

    def _turned_away(self, response: Response, request_id: str, client: str) -> Response:
        self.numbers.refused(response.status)
        self._log.refused(self._clock.now_ns(), request_id, response.status, client)
        return response._replace(headers=[*response.headers, ("x-request-id", request_id)])

    def _endpoint(self, method: str, path: str, headers: Mapping[str, str]) -> Endpoint | None:
        if path in PAGES:
            return None
        for endpoint in self._endpoints:
            if endpoint.claims(method, path, headers):
                return endpoint
        return None

    def _stray(self, endpoint: Endpoint | None, request: Request) -> Response | None:
        """The answer to what a page of elsewhere has sent, where everybody may come."""
        why = None if self._credentials.required else foreign(request.headers)
        if why is None:
            return None
        return self._refused(endpoint, 403, why, request.id, request.headers)

    def _refused(
        self,
        endpoint: Endpoint | None,
        status: int,
        what: str,
        request_id: str,
        headers: Mapping[str, str],
    ) -> Response:
        if endpoint is not None:
            return endpoint.refused(status, what, request_id, headers)
        told = {"error": "Refused", "message": what, "retryable": status in (429, 503)}
        return _json(status, {**told, "request_id": request_id})

    # -- pages of the server's own

    async def _page(self, request: Request) -> Response:
        if request.path not in PAGES:
            return _json(404, {"error": "there is nothing here; see /docs, /healthz, /readyz, /metrics"})
        request.about.operation = request.path[1:]
        if request.method not in ("GET", "HEAD"):
            return _json(405, {"error": "accepted: GET, HEAD"})._replace(headers=[("allow", "GET, HEAD")])
        if request.path == "/healthz":
            return _json(200, {"status": "alive"})
        sees_all = self._may_read(request)
        if request.path == "/readyz":
            response = await self._readiness()
            return response if sees_all else response._replace(body=_status_alone(response))
        if not sees_all:
            challenge = [("www-authenticate", "Bearer")]
            return _json(401, {"error": "metrics need a key that may read all queues"})._replace(
                headers=challenge
            )
        from penstock.metrics import render

        text = await self._calls.run(render, self._ps)
        body = (text + self.numbers.render()).encode()
        return Response(200, body, "text/plain; version=0.0.4; charset=utf-8")

    def _may_read(self, request: Request) -> bool:
        try:
            who = principal(request, self._credentials)
        except Unauthorized:
            return False
        request.about.principal = who.name
        return who.may("read", STORE)

    async def _readiness(self) -> Response:
        """Looked at once for all who ask: strangers may, and a store that hangs must not fill with them."""
        if self._ready is not None and perf_counter() - self._ready[0] <= READY_FOR_S:
            return self._ready[1]
        if self._looking is None or self._looking.done():
            self._looking = asyncio.ensure_future(self._looked())
        return await asyncio.shield(self._looking)

    async def _looked(self) -> Response:
        health = await self._calls.run(self._ps.health)
        status = 503 if health.status == "unhealthy" else 200
        response = _json(status, {**msgspec.to_builtins(health), "server": self._trouble()})
        self._ready = (perf_counter(), response)
        return response


def _status_alone(response: Response) -> bytes:
    assert isinstance(response.body, bytes)
    return msgspec.json.encode({"status": msgspec.json.decode(response.body)["status"]})


def _json(status: int, value: object) -> Response:
    return Response(status, msgspec.json.encode(value))
