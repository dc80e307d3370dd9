"""From a request to the route that is meant, for whoever may; and the two pages that describe all of them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any

from penstock.backends.http import wire
from penstock.errors import InvalidMessage, PenstockError, Unauthorized
from penstock.penstock import Penstock
from penstock.server.access import Credentials, Principal
from penstock.server.audit import Audit
from penstock.server.authentication import heard_while_good, principal
from penstock.server.endpoint import Busy, CallId, Calls, Request, Response
from penstock.server.native import endpoint as native
from penstock.server.native import permissions
from penstock.server.native.once import Listening, Once
from penstock.server.native.routing import Router
from penstock.server.rest.arrow import Rows, events_stream
from penstock.server.rest.errors import MEANING, Error, Refusal, name_of, status_of
from penstock.server.rest.formats import JSON, Format, format_of_answer, is_arrow, read_body, read_query
from penstock.server.rest.openapi import DESCRIPTION, KEY_PATTERN
from penstock.server.rest.page import DOCS, description, page
from penstock.server.rest.route import PREFIX, Call, Route
from penstock.server.rest.shapes import Asked
from penstock.server.rest.table import TABLE

#: The header that makes a request happen once, however often it is sent.
ONCE = "idempotency-key"
_OWN = f"{PREFIX}/"
#: Below it as well, and not of this interface.
_NATIVE = (native.CALL, wire.PREFIX)
KEY = re.compile(KEY_PATTERN)
_PAGES = {DESCRIPTION: description, DOCS: page}


class RestEndpoint:
    """The interface for any language."""

    name = "rest"

    def __init__(self, ps: Penstock, calls: Calls, credentials: Credentials) -> None:
        self._ps = ps
        self._calls = calls
        self._credentials = credentials
        self._audit = Audit(ps, calls)
        self._router = Router(ps)
        self._once = Once(self._forget)

    def claims(self, method: str, path: str, headers: Mapping[str, str]) -> bool:
        return path in _PAGES or (path.startswith(_OWN) and not path.startswith(_NATIVE))

    def refused(self, status: int, what: str, request_id: str, headers: Mapping[str, str]) -> Response:
        try:
            shown = format_of_answer(headers)
        except Refusal:
            shown = JSON
        name = MEANING[status][0] if status in MEANING else "Refused"
        told = Error(name, what, status in (429, 503), request_id)
        return Response(status, shown.encode(told), shown.media_type)

    def admit(self, request: Request) -> Response | None:
        try:
            self._who(request)
        except Refusal as stranger:
            return _failed(stranger, JSON, request.id)
        return None

    async def answer(self, request: Request) -> Response:
        shown = JSON
        try:
            if request.path in _PAGES:
                return _described(request)
            who = self._who(request)
            shown = format_of_answer(request.headers)
            route, path = TABLE.find(request.method, request.path)
            request.about.operation = route.name
            request = heard_while_good(request, who, self._credentials)
            return await self._routed(request, route, who, path, shown)
        except PenstockError as error:
            return _failed(error, shown, request.id)

    def _who(self, request: Request) -> Principal:
        try:
            who = principal(request, self._credentials)
        except Unauthorized as error:
            raise Refusal(401, str(error), (("www-authenticate", "Bearer"),)) from None
        request.about.principal = who.name
        return who

    async def _forget(self, callers: list[bytes]) -> None:
        await self._calls.run(self._router.forget, callers)

    async def _routed(
        self, request: Request, route: Route, who: Principal, path: Mapping[str, str], shown: Format
    ) -> Response:
        asked = _asked(route, request)
        call = Call(self._ps, self._calls, who, path, request.listening, self._router)
        args = route.needs(call, asked)
        request.about.queue = queue = permissions.queue_of(route.method, args)
        permissions.check(who, route.method, args)

        key = None if route.is_repeatable else request.headers.get(ONCE)
        meant = "" if key is None else _meant(route, request)
        call_id = None if key is None else _call_id(who, key, meant)

        wanted = _wanted(route, request, call, shown)

        async def make(listening: Listening, again: bool) -> Response:
            try:
                if route.method in permissions.AUDITED or getattr(asked, "repair", False):
                    await self._audit(who, route.method, queue, request.id)
                return await _made(
                    route, call._replace(listening=listening, id=call_id, again=again), asked, wanted
                )
            except PenstockError as error:
                if status_of(error) == 503:
                    raise Busy(503, str(error)) from error  # Not remembered: the next try may go through.
                return _failed(error, shown, request.id)

        if call_id is None:
            return await make(request.listening, False)
        try:
            return await self._once(call_id._replace(number=1), meant, request.listening, make)
        except InvalidMessage:
            raise Refusal(409, "this Idempotency-Key was sent with another request; take a new one") from None


def _described(request: Request) -> Response:
    request.about.operation = request.path[1:]
    if request.method not in ("GET", "HEAD"):
        raise Refusal(405, "accepted here: GET", (("allow", "GET"),))
    return _PAGES[request.path]()


def _asked(route: Route, request: Request) -> Any:
    if route.takes_arrow and is_arrow(request.headers, "content-type"):
        read_query(request.query, None)
        return Rows(request.body)
    if route.asks_by_query:
        return read_query(request.query, route.asked)
    read_query(request.query, None)
    return read_body(request.body, request.headers, route.asked or Asked)


def _wanted(route: Route, request: Request, call: Call, shown: Format) -> Format:
    """What the answer is in; errors are in `shown` in any case."""
    if not is_arrow(request.headers, "accept"):
        return shown
    if not route.gives_arrow:
        raise Refusal(406, "events alone are given as Arrow; accepted: JSON and MessagePack")
    return Format(wire.ARROW, lambda found: events_stream(call.name, found), shown.decode)


async def _made(route: Route, call: Call, asked: Any, shown: Format) -> Response:
    args = (call,) if route.asked is None else (call, asked)
    if route.is_async:
        body = shown.encode(await route.handler(*args))
    else:
        body = await call.calls.run(lambda: shown.encode(route.handler(*args)))
    return Response(route.status, body, shown.media_type)


def _call_id(who: Principal, key: str, meant: str) -> CallId:
    """Nobody hears what was answered to another principal, nor to another request under the same key."""
    if not KEY.fullmatch(key):
        raise Refusal(400, "the header Idempotency-Key takes 1 to 200 visible characters of ASCII")
    caller = hashlib.sha256(b"rest\0" + who.name.encode() + b"\0" + key.encode()).digest()[:16]
    return CallId(caller, int.from_bytes(hashlib.sha256(meant.encode()).digest()[:8], "big"))


def _meant(route: Route, request: Request) -> str:
    """What tells a request from another under the same key."""
    digest = hashlib.sha256(f"{request.path}\0{request.query}\0".encode())
    digest.update(request.body)
    return f"{route.name} {digest.hexdigest()}"


def _failed(error: PenstockError, shown: Format, request_id: str) -> Response:
    status = status_of(error)
    told = Error(name_of(error), str(error), error.retryable, request_id)
    headers = error.headers if isinstance(error, Refusal) else ()
    try:
        body = shown.encode(told)
    except UnicodeEncodeError:  # A name with a lone surrogate, quoted in the text.
        body = shown.encode(Error(told.error, ascii(told.message), told.retryable, request_id))
    return Response(status, body, shown.media_type, headers)
