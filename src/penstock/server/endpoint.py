"""What the frame and the interfaces that it serves say to each other: requests, responses, calls.

The frame (`app`) reads a request whole, within its limits, and asks its endpoints in turn whether it is
theirs. An endpoint runs on the event loop and never blocks it: whatever touches a store goes through `Calls`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

from penstock.message import Delivery, EnqueueResult, NewMessage, Outcome

T = TypeVar("T")


class About:
    """What request logs and metrics tell of a request: set by its endpoint, as soon as it is known.

    `operation` is one of a small number of names, never what a client made up.
    """

    __slots__ = ("operation", "principal", "queue")

    def __init__(self) -> None:
        self.operation = ""
        self.queue = ""
        self.principal = ""


#: Of requests that nobody logs.
UNLOGGED = About()


class CallId(NamedTuple):
    """The `number`th call of a caller, which makes one after the other."""

    caller: bytes
    number: int


class Request(NamedTuple):
    """A request that has arrived whole. Names of headers are in lower case; of several, the last counts.

    `path` is as it was sent, still quoted, and so is `query`: signatures are over what was sent.
    """

    id: str
    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    body: bytes
    client: str
    #: The name in the client's certificate, if it was asked for one and had it.
    certificate: str | None
    #: Whether the client is still there to hear an answer.
    listening: Callable[[], bool]
    about: About = UNLOGGED


class Response(NamedTuple):
    """An answer. A body that comes in pieces is sent as it comes."""

    status: int
    body: bytes | AsyncIterator[bytes] = b""
    content_type: str = "application/json"
    headers: Sequence[tuple[str, str]] = ()


class Busy(Exception):
    """There is no room for the call now; nothing was done. `status` is 429 or 503."""

    def __init__(self, status: int, what: str, retry_after_s: float = 1.0) -> None:
        super().__init__(what)
        self.status = status
        self.retry_after_s = retry_after_s


class Calls(Protocol):
    """How endpoints reach the store: bounded, together where that is cheaper, and off the event loop, unless
    they are so small that nobody is held up (`here`).

    Errors are those of the facade; `Busy` if there is no room.
    """

    #: So many bytes of messages are answered at once: see `portions`.
    answer_bytes: int

    async def run(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Any call, in a thread of a bounded number."""
        ...

    async def enqueue(
        self, queue: str, messages: Sequence[NewMessage], call: CallId | None = None
    ) -> Sequence[EnqueueResult]:
        """As `Queue.enqueue_many`; what arrives together is written together, in one commit.

        With a call's id, a store that can writes down what it is answered.
        """
        ...

    async def ack(self, queue: str, receipts: Sequence[str], call: CallId | None = None) -> Sequence[Outcome]:
        """As `Queue.ack`, together as well."""
        ...

    async def lease(
        self,
        queue: str,
        max_messages: int,
        lease_s: float | None,
        wait_s: float,
        consumer: str,
        listening: Callable[[], bool],
    ) -> Sequence[Delivery]:
        """As `Queue.lease`. Waiting takes no thread; it ends, with nothing leased, when nobody listens."""
        ...

    async def look(
        self, look: Callable[[], Sequence[Delivery]], wait_s: float, listening: Callable[[], bool]
    ) -> Sequence[Delivery]:
        """What `look` finds, which is asked for it in a thread again and again as long as that is nothing.

        For what tells nobody that something came: a consumer group. It waits, and ends, as a lease does.
        """
        ...


@runtime_checkable
class Background(Protocol):
    """An endpoint that does something besides answering."""

    async def start(self) -> None:
        """Called when the store is open, before the first request."""
        ...

    async def stop(self) -> None:
        """After the last request, while the store can still be called."""
        ...


class Endpoint(Protocol):
    """One interface of the server."""

    #: What request logs and metrics call it: `native`, `sqs`.
    name: str

    def claims(self, method: str, path: str, headers: Mapping[str, str]) -> bool:
        """Whether a request is for this interface."""
        ...

    def admit(self, request: Request) -> Response | None:
        """Whether its body, which is large and not there yet, may come: None, or the answer to a stranger."""
        ...

    async def answer(self, request: Request) -> Response:
        """Answer it, errors included, in the form of this interface. `Busy` may be raised: see `refused`."""
        ...

    def refused(self, status: int, what: str, request_id: str, headers: Mapping[str, str]) -> Response:
        """What the frame answers in its place, in this interface's form: too large, too many, stopping.

        The headers are the request's: an interface may have several forms.
        """
        ...
