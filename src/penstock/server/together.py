"""Calls of many clients as few calls of a store: what arrives together for a queue is written together.

While a call for a queue runs, those that come wait, and are the next one: in the order in which they came,
each with its own answer. So they share one commit, and the hop to a thread where there is one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

from penstock.errors import BackendUnavailable, PenstockError, StorageError
from penstock.server.driving import drive
from penstock.server.endpoint import CallId

Item = TypeVar("Item")
R = TypeVar("R")

#: What one call has at most, unless a single client sends more.
MOST_ITEMS = 500
MOST_BYTES = 4 * 2**20

#: The calls that are made as one, each with its number of items.
Callers = Sequence[tuple[CallId | None, int]]


class _Part(NamedTuple, Generic[Item, R]):
    """One client's items, and where its answers are awaited."""

    items: Sequence[Item]
    size_bytes: int
    call: CallId | None
    answer: asyncio.Future[Sequence[R]]


class Together(Generic[Item, R]):
    """One kind of call, on all queues."""

    def __init__(
        self,
        call: Callable[[str, Sequence[Item], Callers], Sequence[R]],
        make: Callable[[Callable[[], Sequence[R]], str, int, int], Awaitable[Sequence[R]]],
        size_bytes: Callable[[Sequence[Item]], int],
    ) -> None:
        self._call = call
        #: Makes it, here or in a thread: of which queue it is, its items, and their size.
        self._make = make
        self._size_bytes = size_bytes
        #: By queue, what waits; a queue that is not here has no call under way.
        self._waiting: dict[str, deque[_Part[Item, R]]] = {}

    async def __call__(self, queue: str, items: Sequence[Item], call: CallId | None) -> Sequence[R]:
        loop = asyncio.get_running_loop()
        part: _Part[Item, R] = _Part(items, self._size_bytes(items), call, loop.create_future())
        waiting = self._waiting.get(queue)
        if waiting is None:
            self._waiting[queue] = deque((part,))
            # Begun when all that has arrived by now has been read: it goes along.
            loop.call_soon(self._begin, queue)
        else:
            waiting.append(part)
        return await part.answer

    def is_idle(self, queue: str) -> bool:
        """Whether no call for the queue is under way or waits."""
        return queue not in self._waiting

    def _begin(self, queue: str) -> None:
        drive(self._work(queue), lambda: None)

    async def _work(self, queue: str) -> None:
        waiting = self._waiting[queue]
        try:
            while waiting:
                await self._run(queue, _taken(waiting))
        finally:
            del self._waiting[queue]

    async def _run(self, queue: str, parts: list[_Part[Item, R]]) -> None:
        if not parts:
            return
        items = parts[0].items if len(parts) == 1 else [item for part in parts for item in part.items]
        callers = [(part.call, len(part.items)) for part in parts]
        size_bytes = sum([part.size_bytes for part in parts])
        try:
            answers = await self._make(
                lambda: self._call(queue, items, callers), queue, len(items), size_bytes
            )
        except Exception as error:  # noqa: BLE001  (the clients': raised where they wait)
            if len(parts) > 1 and _changed_nothing(error):
                for part in parts:
                    await self._run(queue, [part])
                return
            for part in parts:
                if not part.answer.done():
                    part.answer.set_exception(error)
            return
        at = 0
        for part in parts:
            if not part.answer.done():
                part.answer.set_result(answers[at : at + len(part.items)])
            at += len(part.items)


def _taken(waiting: deque[_Part[Item, R]]) -> list[_Part[Item, R]]:
    """The next call's parts, from the head of the line. Who no longer waits for an answer is left out."""
    parts: list[_Part[Item, R]] = []
    count = size_bytes = 0
    while waiting:
        part = waiting[0]
        count, size_bytes = count + len(part.items), size_bytes + part.size_bytes
        if parts and (count > MOST_ITEMS or size_bytes > MOST_BYTES):
            break
        waiting.popleft()
        if not part.answer.done():
            parts.append(part)
    return parts


def _changed_nothing(error: Exception) -> bool:
    """Whether each may be tried by itself: the error is one client's, and nothing was written.

    A store that failed may have written some of it: once more would be twice.
    """
    return isinstance(error, PenstockError) and not isinstance(error, StorageError | BackendUnavailable)
