"""Amazon SQS's interface: from a request in either of its protocols to an action, and back."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from penstock.clock import Clock, SystemClock
from penstock.errors import PenstockError
from penstock.penstock import Penstock
from penstock.server.access import STORE, Credentials, Principal
from penstock.server.endpoint import Calls, Request, Response
from penstock.server.sqs import json_codec, query_codec
from penstock.server.sqs.actions import ACTIONS, UNSUPPORTED, Action
from penstock.server.sqs.call import REGION, Call, Known, queue_of_path, queue_of_url
from penstock.server.sqs.checks import as_sqs
from penstock.server.sqs.errors import SqsError
from penstock.server.sqs.shapes import Shape
from penstock.server.sqs.signature import SignatureError, verify
from penstock.server_config import ServerSettings

_HOST = re.compile(r"[A-Za-z0-9._:\[\]-]{1,300}")
#: What the frame refuses, by its status; everything else is malformed.
_REFUSED = {429: "RequestThrottled", 500: "InternalError", 503: "ServiceUnavailable"}


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
        self._credentials = credentials
        self._scheme = "http" if settings.tls.certificate is None else "https"
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        self._address = f"{host}:{settings.port}"

    def claims(self, method: str, path: str, headers: Mapping[str, str]) -> bool:
        """JSON names its service in a header; a form comes to `/` or to the URL of a queue."""
        if method == "POST":
            target = headers.get("x-amz-target")
            return path == "/" or queue_of_path(path) is not None or target is not None
        return method == "GET" and queue_of_path(path) is not None

    async def answer(self, request: Request) -> Response:
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
            action = _action(action_name)
            request.about.operation = action_name
            who = verify(request, self._credentials, self._clock.now_ns(), REGION)
            request.about.principal = who.name
            if is_json:
                arguments = json_codec.arguments(request, action_name, action.arguments)
            else:
                url = request.path if queue_of_path(request.path) else ""
                arguments = query_codec.arguments(fields, action_name, action.arguments, url)
            call = self._call(request, action, arguments, who)
            answer = await action.function(call, arguments)
            return codec.answered(request.id, action_name, answer)
        except SignatureError as refused:
            kind = f"com.amazon.coral.service#{refused.code}"
            return codec.failed(request.id, refused.status, kind, refused.code, True, refused.message)
        except SqsError as error:
            return _failed(codec.failed, request.id, error)
        except PenstockError as error:
            return _failed(codec.failed, request.id, as_sqs(error))

    def refused(self, status: int, what: str, request_id: str) -> Response:
        """In JSON, which current clients speak: which protocol it was is not known here."""
        error = SqsError(_REFUSED.get(status, "MalformedInput"), what)
        return _failed(json_codec.failed, request_id, error)._replace(status=status)

    def _call(self, request: Request, action: Action, arguments: Shape, who: Principal) -> Call:
        """Who may not is refused before it is looked whether there is such a queue."""
        url: str | None = getattr(arguments, "queue_url", None)
        queue = queue_of_url(url) if url is not None else getattr(arguments, "queue_name", STORE)
        # An empty name is no queue's, and never the store itself.
        if (url is not None or hasattr(arguments, "queue_name")) and not queue:
            raise SqsError("InvalidParameterValue", "A queue's name must not be empty.")
        if not any(who.may(permission, queue) for permission in action.permissions):
            raise SqsError("AccessDenied", "Access to the resource is denied.")
        request.about.queue = queue
        host = request.headers.get("host", "")
        base_url = f"{self._scheme}://{host if _HOST.fullmatch(host) else self._address}"
        return Call(self._known, who, queue, base_url, request.listening)


def _action(name: str) -> Action:
    action = ACTIONS.get(name)
    if action is not None:
        return action
    if name in UNSUPPORTED:
        raise SqsError("UnsupportedOperation", f"{name} is not supported by this server.")
    raise SqsError("InvalidAction", "The action or operation requested is invalid, or none was named.")


def _failed(form: Callable[..., Response], request_id: str, error: SqsError) -> Response:
    return form(request_id, error.status, error.type, error.code, error.by_sender, error.message)
