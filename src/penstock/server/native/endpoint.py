"""`POST /v1/call/{method}`: one call of the backend contract, in MessagePack, for whoever may make it."""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec

from penstock.backends.base import BackendInfo
from penstock.backends.forwarding.methods import METHODS, REPEATABLE, Unreadable
from penstock.backends.http import wire
from penstock.codec.answer import decoder, encode_answer
from penstock.errors import BackendUnavailable, InvalidMessage, PenstockError, Unauthorized, Unsupported
from penstock.message import Delivery, EnqueueResult, Outcome
from penstock.penstock import Penstock
from penstock.server.access import STORE, Credentials, Principal
from penstock.server.audit import Audit
from penstock.server.authentication import heard_while_good, principal
from penstock.server.endpoint import CallId, Calls, Request, Response
from penstock.server.native import permissions
from penstock.server.native.answers import CONTENT_TYPE, failed
from penstock.server.native.bulk import Bulk
from penstock.server.native.once import Listening, Once
from penstock.server.native.routing import BULK, NAME, Router
from penstock.server.portions import paged, peeked, portioned
from penstock.settings import MAX_DURATION_S

log = logging.getLogger("penstock.server")

PREFIX = "/v1/"
CALL = "/v1/call/"
_CALL_ID = re.compile(r"([0-9a-f]{32})/([1-9][0-9]{0,17})")
_FILTERS = frozenset({"kinds", "labels", "flags", "since_ns", "until_ns", "after", "limit"})
#: The arguments of `lease`.
_Lease = tuple[str, int, float | None, float, str]
_decode_body = decoder(tuple[msgspec.Raw, dict[str, Any]]).decode


class NativeEndpoint:
    """The interface of `penstock.open("http://…")`."""

    name = "native"

    def __init__(self, ps: Penstock, calls: Calls, credentials: Credentials, max_streams: int) -> None:
        self._calls = calls
        self._credentials = credentials
        self._audit = Audit(ps, calls)
        self._router = Router(ps)
        self._once = Once(self._forget)
        self._bulk = Bulk(ps, calls, max_streams)

    def claims(self, method: str, path: str, headers: Mapping[str, str]) -> bool:
        return path.startswith(PREFIX)

    def refused(self, status: int, what: str, request_id: str, headers: Mapping[str, str]) -> Response:
        kind = BackendUnavailable if status in (429, 503) else PenstockError
        return failed(kind(f"{what} (request {request_id})"), status)

    def admit(self, request: Request) -> Response | None:
        try:
            principal(request, self._credentials)
        except Unauthorized as error:
            return _stranger(error)
        return None

    async def answer(self, request: Request) -> Response:
        try:
            who = principal(request, self._credentials)
        except Unauthorized as error:
            return _stranger(error)
        request.about.principal = who.name
        request = heard_while_good(request, who, self._credentials)
        if request.path.startswith(wire.PREFIX):
            return await self._answer_bulk(request, who)
        method = request.path.removeprefix(CALL)
        if not request.path.startswith(CALL) or method not in METHODS:
            return failed(PenstockError("there is no such call; POST /v1/call/METHOD"), 404)
        if request.method != "POST":
            return failed(PenstockError("accepted: POST"), 405)._replace(headers=[("allow", "POST")])
        request.about.operation = method
        try:
            args, kwargs = _arguments(method, request.body)
            request.about.queue = permissions.queue_of(method, args)
            permissions.check(who, method, args)
            call = _call_id(request, who)

            async def make(listening: Listening, again: bool) -> Response:
                try:
                    if method in permissions.AUDITED or (method == "check" and args[0]):
                        await self._audit(who, method, request.about.queue, request.id)
                    return await self._made(who, method, args, kwargs, listening, call, again)
                except PenstockError as error:
                    return failed(error)

            if call is None or (method in REPEATABLE and not _is_long(method)):
                return await make(request.listening, False)
            return await self._once(call, method, request.listening, make)
        except PenstockError as error:
            return failed(error)

    async def _answer_bulk(self, request: Request, who: Principal) -> Response:
        if request.method != "POST":
            return failed(PenstockError("accepted: POST"), 405)._replace(headers=[("allow", "POST")])
        try:
            found = await self._bulk.answer(request, who)
        except PenstockError as error:
            return failed(error)
        return found or failed(PenstockError("there is nothing of that name below /v1/bulk/"), 404)

    async def _made(
        self,
        who: Principal,
        method: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        listening: Listening,
        call: CallId | None,
        again: bool,
    ) -> Response:
        if method == "lease" and _may_wait(args[1], args[3]):
            return _answered(await self._calls.lease(*cast(_Lease, args), listening))
        if method == "lease_group" and _may_wait(args[2], args[4]):
            return _answered(await self._lease_group(args, listening))
        if method in ("enqueue", "ack") and not again and _is_batch(*args):
            queue, items = args
            together = self._calls.enqueue if method == "enqueue" else self._calls.ack
            return _answered(await together(queue, items, call))

        def answer() -> bytes:
            found = self._answer(who, method, args, kwargs, call, again)
            if method == "queues":
                found = [settings for settings in found if permissions.sees(who, settings.name)]
            elif isinstance(found, BackendInfo) and not who.may("read", STORE):
                found = msgspec.structs.replace(found, path=None)
            return encode_answer(found)

        return Response(200, await self._calls.run(answer), CONTENT_TYPE)

    def _answer(
        self,
        who: Principal,
        method: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        call: CallId | None,
        again: bool,
    ) -> Any:
        """In a thread."""
        if method in ("page", "peek") and type(args[-1]) is int:
            return self._listed(method, args)
        if method in BULK:
            if len(self._router.backends) > 1:
                raise Unsupported(
                    f"{method} at a server with several backends", BULK[method], NAME, ("rocksdb",)
                )
            if method == "begin_write":
                return self._bulk.begin_write(*args)
            return getattr(self._bulk, method)(who, *args)
        return self._router.make(method, args, kwargs, call, again)

    def _listed(self, method: str, args: tuple[Any, ...]) -> Any:
        """As much as fits into an answer: of a page, the next one has the rest."""
        function, most_bytes = self._router.function(method, args), self._calls.answer_bytes
        if method == "peek":
            queue, wanted, offset = args
            if type(wanted) is not int:
                return function(*args)
            return peeked(lambda count, offset: function(queue, count, offset), wanted, offset, most_bytes)
        *which, after, wanted = args
        return paged(lambda after, count: function(*which, after, count), after, wanted, most_bytes)

    async def _lease_group(self, args: tuple[Any, ...], listening: Listening) -> Sequence[Delivery]:
        queue, group, max_messages, lease_s, wait_s, consumer = args

        def look() -> Sequence[Delivery]:
            lease = self._router.function("lease_group", args)
            return portioned(
                lambda count: lease(queue, group, count, lease_s, 0, consumer),
                max_messages,
                self._calls.answer_bytes,
            )

        return await self._calls.look(look, wait_s, listening)

    async def _forget(self, callers: list[bytes]) -> None:
        await self._calls.run(self._router.forget, callers)


def _stranger(error: Unauthorized) -> Response:
    return failed(error, 401)._replace(headers=[("www-authenticate", "Bearer")])


def _is_long(method: str) -> bool:
    """What changes nothing twice, and yet is not begun again while it runs."""
    return method in ("check", "reindex", "rekey")


def _may_wait(max_messages: object, wait_s: object) -> bool:
    """Else it is not what a lease takes, and the backend says so: no wait may take one of its threads."""
    return (
        type(max_messages) is int
        and max_messages > 0
        and type(wait_s) in (int, float)
        and 0 <= cast(float, wait_s) <= MAX_DURATION_S
    )


def _is_batch(queue: object, items: object) -> bool:
    """Else it is not what a queue takes, and the backend says so."""
    return type(queue) is str and type(items) is list


def _arguments(method: str, body: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
    try:
        raw, kwargs = _decode_body(body)
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError, RecursionError) as error:
        raise Unreadable(f"a call that cannot be read: {error}") from None
    # Arguments by name would go past the permissions, which look at places.
    unknown = kwargs.keys() - (_FILTERS if method == "scan_entries" else frozenset())
    if unknown:
        raise InvalidMessage(f"{method} takes no argument {min(unknown)!r:.60} by name")
    try:
        return METHODS[method].decode_arguments(raw), kwargs
    except (UnicodeDecodeError, ValueError, RecursionError) as error:
        raise Unreadable(f"arguments that cannot be read: {error}") from None


def _call_id(request: Request, who: Principal) -> CallId | None:
    """Whose call it is. Nobody hears what was answered to another principal."""
    given = request.headers.get("penstock-call")
    if given is None:
        return None
    found = _CALL_ID.fullmatch(given)
    if found is None:
        raise InvalidMessage("the header Penstock-Call must be CALLER/NUMBER: 32 hexadecimal digits, from 1")
    caller = hashlib.sha256(who.name.encode() + b"\0" + found[1].encode()).digest()[:16]
    return CallId(caller, int(found[2]))


def _answered(answer: Sequence[Delivery | EnqueueResult | Outcome]) -> Response:
    return Response(200, encode_answer(answer), CONTENT_TYPE)
