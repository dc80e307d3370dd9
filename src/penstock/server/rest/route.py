"""A route: where it is, what makes its answer, and which call of the contract it stands for.

What a route takes and gives is in the annotations of its handler: `(call)`, or `(call, asked)`, where `asked`
is read from the query of a GET or DELETE and from the body of anything else.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, get_type_hints
from urllib.parse import unquote

from penstock.backends.forwarding.methods import REPEATABLE
from penstock.errors import InvalidMessage
from penstock.penstock import Penstock
from penstock.queue import Queue
from penstock.server.access import Principal
from penstock.server.endpoint import CallId, Calls
from penstock.server.native.routing import Router
from penstock.server.rest.errors import Refusal, not_found
from penstock.server.rest.shapes import Events, NewMessages

PREFIX = "/v1"
#: Verbs whose questions are in the query.
_OF_QUERY = ("GET", "DELETE")


class Call(NamedTuple):
    """What a handler has at hand. One that is no coroutine runs in a thread, and may block."""

    ps: Penstock
    calls: Calls
    who: Principal
    path: Mapping[str, str]
    listening: Callable[[], bool]
    router: Router
    #: Of a request that may come again, and whether it may have come in an earlier life of the server.
    id: CallId | None = None
    again: bool = False

    def make(self, method: str, *args: Any) -> Any:
        """A call of the contract that changes something: once, however often the request comes. It blocks."""
        return self.router.make(method, args, {}, self.id, self.again)

    @property
    def name(self) -> str:
        """Of the queue."""
        return self.path["queue"]

    def queue(self, group: str | None = None) -> Queue:
        """The queue, or as a consumer group has it."""
        queue = self.ps.queue(self.name)
        return queue if group is None else queue.group(group)

    def line(self, group: str | None) -> str:
        """What the contract calls the queue, or what a consumer group has of it."""
        return self.queue(group).name


Needs = Callable[[Call, Any], Sequence[Any]]


def _names(call: Call, asked: Any) -> Sequence[Any]:
    return tuple(call.path.values())


class Route:
    """One row of the table. `method` is the call of the contract whose permissions and audit count.

    `needs` gives that call's arguments, as far as permissions look at them.
    """

    def __init__(
        self,
        verb: str,
        path: str,
        handler: Callable[..., Any],
        method: str,
        *,
        needs: Needs = _names,
        status: int = 200,
    ) -> None:
        self.verb = verb
        self.path = PREFIX + path
        self.handler = handler
        self.method = method
        self.needs = needs
        self.status = status
        self.name = handler.__name__
        self.parts = path.strip("/").split("/")
        self.parameters = [part[1:-1] for part in self.parts if part.startswith("{")]
        hints = get_type_hints(handler)
        self.answer: Any = hints["return"]
        self.asked: type | None = hints.get("asked")
        self.is_async = inspect.iscoroutinefunction(handler)

    @property
    def takes_arrow(self) -> bool:
        return self.asked is NewMessages

    @property
    def gives_arrow(self) -> bool:
        return self.answer is Events

    @property
    def asks_by_query(self) -> bool:
        return self.verb in _OF_QUERY

    @property
    def is_repeatable(self) -> bool:
        """Whether twice is as once by nature; anything else may be asked with an `Idempotency-Key`."""
        return self.method in REPEATABLE

    def values(self, parts: Sequence[str]) -> dict[str, str] | None:
        """The parameters of a path, if it is this route's."""
        if len(parts) != len(self.parts):
            return None
        found = {}
        for own, part in zip(self.parts, parts, strict=True):
            if own.startswith("{") and part:
                found[own[1:-1]] = part
            elif own != part:
                return None
        return found


class Table:
    """All routes, found by path and then by verb."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self.routes = tuple(routes)
        self._by_start: dict[str, list[Route]] = {}
        for route in self.routes:
            self._by_start.setdefault(route.parts[0], []).append(route)

    def find(self, verb: str, path: str) -> tuple[Route, dict[str, str]]:
        """The route, and the parameters in the path."""
        parts, verb = _parts(path), "GET" if verb == "HEAD" else verb
        found = [
            (route, values)
            for route in self._by_start.get(parts[0], ())
            if (values := route.values(parts)) is not None
        ]
        for route, values in found:
            if route.verb == verb:
                return route, {name: _text(value) for name, value in values.items()}
        if not found:
            raise not_found(f"there is nothing at {path!r:.80}; /openapi.json has what there is, and /docs")
        allowed = ", ".join(sorted({route.verb for route, _ in found}))
        raise Refusal(405, f"accepted here: {allowed}", (("allow", allowed),))


def _parts(path: str) -> list[str]:
    return path.removeprefix(PREFIX + "/").split("/")


def _text(quoted: str) -> str:
    try:
        return unquote(quoted, errors="strict")
    except UnicodeDecodeError:
        raise InvalidMessage("a name in the path is not UTF-8 when it is unquoted") from None
