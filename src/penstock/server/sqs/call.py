"""One call of an action: who makes it, on which queue, and how it reaches the store."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from typing import NamedTuple
from urllib.parse import quote, unquote, urlsplit

from penstock.clock import NS_PER_S, Clock
from penstock.penstock import Penstock
from penstock.server.access import Principal
from penstock.server.endpoint import Calls
from penstock.server.sqs.errors import SqsError
from penstock.settings import QueueSettings

#: The one account and the one region that there are here.
ACCOUNT = "000000000000"
REGION = "us-east-1"
_ARN = f"arn:aws:sqs:{REGION}:{ACCOUNT}:"
#: How long settings that were read are good for: what others change counts after this at the latest.
SETTINGS_FOR_NS = NS_PER_S
#: Queues whose settings are remembered.
MOST_KNOWN = 10_000
#: What a name may have besides, for queues that were not created here.
_SAFE = "-_.~"


class Known:
    """Settings of queues that were read a moment ago, so that a message sent is one call of the store."""

    def __init__(self, ps: Penstock, calls: Calls, clock: Clock) -> None:
        self.ps = ps
        self.calls = calls
        self.clock = clock
        #: Held by who reads settings to change them: two who tag a queue at once both count.
        self.changing = threading.Lock()
        self._found: dict[str, tuple[int, QueueSettings]] = {}

    async def settings(self, queue: str) -> QueueSettings:
        """`QueueNotFound` if there is none of the name, or was none a moment ago."""
        found, now_ns = self._found.get(queue), self.clock.now_ns()
        if found is not None and 0 <= now_ns - found[0] < SETTINGS_FOR_NS:
            return found[1]
        self._found.pop(queue, None)
        settings = await self.calls.run(lambda: self.ps.queue(queue).settings())
        if len(self._found) >= MOST_KNOWN:
            self._found.clear()
        self._found[queue] = now_ns, settings
        return settings

    def forget(self, queue: str) -> None:
        """It was changed."""
        self._found.pop(queue, None)


class Call(NamedTuple):
    """What an action is called with, besides its arguments."""

    known: Known
    who: Principal
    #: The queue's name; empty if the action is on none.
    queue: str
    #: What URLs of queues begin with: where the client has reached the server.
    base_url: str
    listening: Callable[[], bool]

    @property
    def ps(self) -> Penstock:
        return self.known.ps

    @property
    def calls(self) -> Calls:
        return self.known.calls

    async def settings(self) -> QueueSettings:
        return await self.known.settings(self.queue)

    def url(self, queue: str) -> str:
        return f"{self.base_url}/{ACCOUNT}/{quote(queue, safe=_SAFE)}"


def queue_of_path(path: str) -> str | None:
    """The queue's name of the path of its URL, or None for any other path."""
    match = re.fullmatch(r"/[0-9]{12}/([^/]+)/?", path)
    return unquote(match[1]) if match else None


def queue_of_url(url: str) -> str:
    """Whatever host it names: a server may be reached by several."""
    try:
        queue = queue_of_path(urlsplit(url).path)
    except ValueError:
        queue = None
    if queue is None:
        raise SqsError("InvalidAddress", "The address is not valid for this endpoint.")
    return queue


def arn(queue: str) -> str:
    return _ARN + queue


def queue_of_arn(text: str) -> str | None:
    return text.removeprefix(_ARN) if text.startswith(_ARN) and len(text) > len(_ARN) else None
