"""Amazon SQS's interface: from a request in either of its protocols to an action, and back."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import NamedTuple

from penstock.clock import Clock, SystemClock
from penstock.errors import PenstockError
from penstock.penstock import Penstock
from penstock.server.access import STORE, Credentials, Principal
from penstock.server.audit import Audit
from penstock.server.authentication import heard_while_good
from penstock.server.endpoint import Calls, Request, Response
from penstock.server.pages import would_be_told
from penstock.server.sqs import json_codec, query_codec
from penstock.server.sqs.actions import ACTIONS, Action
from penstock.server.sqs.call import Call, Known
from penstock.server.sqs.checks import as_sqs
from penstock.server.sqs.errors import SqsError
from penstock.server.sqs.memory import Memory
from penstock.server.sqs.moves import Moves
from penstock.server.sqs.moving import parsed
from penstock.server.sqs.place import Place, is_of_queue
from penstock.server.sqs.shapes import Shape
from penstock.server.sqs.signature import SignatureError, claimed, verify
from penstock.server_config import ServerSettings

#: The largest batch fits in either protocol, however its characters are written. What is larger would hold up
#: everybody else while it is read, only to be refused.
MAX_BODY_BYTES = 16 * 2**20
_HOST = re.compile(r"[A-Za-z0-9._:\[\]-]{1,300}")
#: What the frame refuses, by its status; everything else is malformed.
_REFUSED = {
    403: "AccessDenied",
    413: "RequestEntityTooLarge",
    429: "RequestThrottled",
    500: "InternalError",
    503: "ServiceUnavailable",
}


class _Codec(NamedTuple):
    """How a protocol puts answers and errors."""

    answered: Callable[[str, str, Shape | None], Response]
    failed: Callable[[str, int, str, str, bool, str], Response]


_JSON = _Codec(json_codec.answered, json_codec.failed)
_QUERY = _Codec(query_codec.answered, query_codec.failed)


class SqsEndpoint:
    """Answers what AWS's SDKs and tools ask of SQS."""

    name = "sqs"

    def __init__(
        self,
        ps: Penstock,
        calls: Calls,
        credentials: Credentials,
        settings: ServerSettings,
        clock: Clock | None = None,
    ) -> None:
        self._clock = clock or SystemClock()
        self._known = Known(ps, calls, self._clock)
        self._place = Place(settings.sqs.region, settings.sqs.account)
        self._moves = Moves(ps, calls, self._clock)
        self._memory = Memory(self._clock)
        self._audit = Audit(ps, calls)
        self._credentials = credentials
        self._has_tls = settings.tls.certificate is not None
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        self._address = f"{host}:{settings.port}"
        self._base_url = lru_cache(maxsize=64)(self._made_base_url)

    async def start(self) -> None:
        """Go on with what was under way when a server stopped."""
        await self._moves.resume()

    async def stop(self) -> None:
        await self._moves.stop()

    def claims(self, method: str, path: str, headers: Mapping[str, str]) -> bool:
        """JSON names its service in a header; a form comes to `/` or to the URL of a queue."""
        if method not in ("GET", "POST"):
            return False
        is_here = path == "/" or is_of_queue(path)
        return is_here or (method == "POST" and json_codec.is_target(headers.get("x-amz-target", "")))

    def admit(self, request: Request) -> Response | None:
        """A signature is over the body; whose it is said to be, for where and when, is known before."""
        codec = _JSON if "x-amz-target" in request.headers else _QUERY
        try:
            claimed(request, self._credentials, self._clock.now_ns(), self._place.region)
        except SignatureError as error:
            return _denied(codec, request, error)
        length = request.headers.get("content-length", "")
        return self._too_large(request) if length.isdecimal() and int(length) > MAX_BODY_BYTES else None

    async def answer(self, request: Request) -> Response:
        if len(request.body) > MAX_BODY_BYTES:
            return self._too_large(request)
        is_json = "x-amz-target" in request.headers
        codec = _JSON if is_json else _QUERY
        action_name = ""
        try:
            fields: dict[str, str] = {}
            if is_json:
                action_name = json_codec.action_of(request)
            else:
                fields = query_codec.form(request)
                action_name = fields.get("Action", "")
                if not action_name:
                    raise SqsError("MissingAction", "The request is missing an action.")
            action = _action(action_name)
            request.about.operation = action_name
            if (
                request.method == "GET"
                and not self._credentials.required
                and not would_be_told(request.headers)
            ):
                raise SqsError("AccessDenied", "Without credentials a GET is for localhost alone; use POST.")
            who = verify(request, self._credentials, self._clock.now_ns(), self._place.region)
            request.about.principal = who.name
            request = heard_while_good(request, who, self._credentials)
            if is_json:
                arguments = json_codec.arguments(request, action_name, action.arguments)
            else:
                url = request.path if is_of_queue(request.path) else ""
                arguments = query_codec.arguments(fields, action_name, action.arguments, url)
            call = self._call(request, action, arguments, who)
            if action.is_audited:
                await self._audit(who, action_name, call.queue, request.id)
            answer = await action.function(call, arguments)
            return codec.answered(request.id, action_name, answer)
        except SignatureError as refused:
            return _denied(codec, request, refused)
        except SqsError as error:
            return _failed(codec.failed, request.id, error)
        except PenstockError as error:
            return _failed(codec.failed, request.id, as_sqs(error))

    def refused(self, status: int, what: str, request_id: str, headers: Mapping[str, str]) -> Response:
        codec = _JSON if "x-amz-target" in headers else _QUERY
        error = SqsError(_REFUSED.get(status, "MalformedInput"), what)
        return _failed(codec.failed, request_id, error)._replace(status=status)

    def _too_large(self, request: Request) -> Response:
        what = f"A request has at most {MAX_BODY_BYTES} bytes."
        return self.refused(413, what, request.id, request.headers)

    def _call(self, request: Request, action: Action, arguments: Shape, who: Principal) -> Call:
        """Who may not is refused before it is looked whether there is such a queue."""
        queue = self._queue(arguments)
        for permission in action.permissions:
            if who.may(permission, queue):
                break
        else:
            raise SqsError("AccessDenied", "Access to the resource is denied.")
        request.about.queue = queue
        host = request.headers.get("host", "")
        # Some SDKs send to a queue's URL: it must lead back through the proxy that ends TLS.
        before_proxy = request.headers.get("x-forwarded-proto", "").partition(",")[0].strip().lower()
        return Call(
            self._known,
            who,
            queue,
            self._place,
            self._moves,
            self._memory,
            self._base_url(host, self._has_tls or before_proxy == "https"),
            request.listening,
        )

    def _made_base_url(self, host: str, is_https: bool) -> str:
        scheme = "https" if is_https else "http"
        return f"{scheme}://{host if _HOST.fullmatch(host) else self._address}"

    def _queue(self, arguments: Shape) -> str:
        """The queue that an action is on, however it is named."""
        if hasattr(arguments, "queue_url"):
            queue = self._place.queue_of_url(arguments.queue_url)
        elif hasattr(arguments, "queue_name"):
            queue = arguments.queue_name
        elif hasattr(arguments, "source_arn"):
            queue = self._place.queue_of_arn(arguments.source_arn) or ""
        elif hasattr(arguments, "task_handle"):
            queue = self._place.queue_of_arn(parsed(arguments.task_handle).source_arn) or ""
        else:
            return STORE
        # An empty name is no queue's, and never the store itself.
        if not queue:
            raise SqsError("InvalidParameterValue", "It must name a queue of this server.")
        return str(queue)


def _action(name: str) -> Action:
    action = ACTIONS.get(name)
    if action is None:
        raise SqsError("InvalidAction", "The action or operation requested is invalid, or none was named.")
    return action


def _denied(codec: _Codec, request: Request, error: SignatureError) -> Response:
    kind = f"com.amazon.coral.service#{error.code}"
    return codec.failed(request.id, error.status, kind, error.code, True, error.message)


def _failed(form: Callable[..., Response], request_id: str, error: SqsError) -> Response:
    return form(request_id, error.status, error.type, error.code, error.by_sender, error.message)
