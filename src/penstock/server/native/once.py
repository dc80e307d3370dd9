"""Calls that come again because their answer was lost: each happens once, and is answered each time."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable

from penstock.errors import InvalidMessage
from penstock.server.endpoint import CallId, Response

Listening = Callable[[], bool]

#: Callers whose last answer is remembered, and the bytes of all these answers.
MOST_CALLERS = 10_000
MOST_BYTES = 64 * 2**20
#: So many are forgotten by the store together.
FORGET_AT_ONCE = 100


class _Last:
    """A caller's last call: under way, or answered."""

    def __init__(self, number: int, method: str, listening: Listening) -> None:
        self.number = number
        self.method = method
        #: Of the request that came last.
        self.listening = listening
        self.task: asyncio.Task[Response]
        self.size_bytes = 0

    def is_heard(self) -> bool:
        return self.listening()


class Once:
    """The last call of each caller. Used on one event loop."""

    def __init__(self, forget: Callable[[list[bytes]], Awaitable[None]]) -> None:
        self._forget = forget
        self._last: OrderedDict[bytes, _Last] = OrderedDict()
        self._size_bytes = 0
        self._gone: list[bytes] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def __call__(
        self,
        call: CallId,
        method: str,
        listening: Listening,
        make: Callable[[Listening, bool], Awaitable[Response]],
    ) -> Response:
        """`make` is told who listens, and whether the call may have happened in an earlier life."""
        last = self._last.get(call.caller)
        if last is not None and last.number == call.number:
            if last.method != method:
                raise InvalidMessage(f"call {call.number} of this caller was {last.method}, not {method}")
            last.listening = listening
        else:
            if last is not None and last.number > call.number:
                raise InvalidMessage(f"this caller is at call {last.number}; {call.number} is over")
            again = last is None
            last = self._remember(call, _Last(call.number, method, listening))
            last.task = asyncio.ensure_future(self._made(call, last, make, again))
        # A client that goes does not end what it began: it may come again and ask.
        return await asyncio.shield(last.task)

    async def _made(
        self, call: CallId, last: _Last, make: Callable[[Listening, bool], Awaitable[Response]], again: bool
    ) -> Response:
        try:
            response = await make(last.is_heard, again)
        except Exception:
            # Nothing was done, or nobody knows: the next try is the first, and the store knows whether it is.
            if self._last.get(call.caller) is last:
                del self._last[call.caller]
            raise
        if self._last.get(call.caller) is last and isinstance(response.body, bytes):
            last.size_bytes = len(response.body)
            self._size_bytes += last.size_bytes
            self._trim()
        return response

    def _remember(self, call: CallId, last: _Last) -> _Last:
        before = self._last.pop(call.caller, None)
        if before is not None:
            self._size_bytes -= before.size_bytes
        self._last[call.caller] = last
        return last

    def _trim(self) -> None:
        """Those that have not called for longest are forgotten, unless they wait for an answer."""
        while len(self._last) > MOST_CALLERS or self._size_bytes > MOST_BYTES:
            found = next((caller for caller, last in self._last.items() if last.size_bytes), None)
            if found is None:
                return
            self._size_bytes -= self._last.pop(found).size_bytes
            self._gone.append(found)
        if len(self._gone) >= FORGET_AT_ONCE:
            gone, self._gone = [caller for caller in self._gone if caller not in self._last], []
            task = asyncio.ensure_future(self._forget(gone))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
