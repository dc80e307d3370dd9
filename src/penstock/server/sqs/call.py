"""One call of an action: who makes it, on which queue, and how it reaches the store."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NamedTuple

from penstock.clock import NS_PER_S, Clock
from penstock.penstock import Penstock
from penstock.server.access import Principal
from penstock.server.endpoint import Calls
from penstock.server.sqs.memory import Memory
from penstock.server.sqs.moves import Moves
from penstock.server.sqs.place import Place
from penstock.settings import QueueSettings

#: How long settings that were read are good for: what others change counts after this at the latest.
SETTINGS_FOR_NS = NS_PER_S
#: Queues whose settings are remembered.
MOST_KNOWN = 10_000


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
    place: Place
    moves: Moves
    memory: Memory
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
        return self.base_url + self.place.path(queue)

    async def update(self, changed: Callable[[QueueSettings], dict[str, Any]]) -> None:
        """Change the queue's settings by what `changed` makes of those that it has."""

        def update() -> None:
            with self.known.changing:
                values = changed(self.ps.queue(self.queue).settings())
                self.ps.update_queue(self.queue, **values)

        await self.calls.run(update)
        self.known.forget(self.queue)
