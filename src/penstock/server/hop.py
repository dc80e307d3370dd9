"""From the event loop to a thread and back: the leanest way there is, for every call of a store takes it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")

_Work = tuple["asyncio.Future[Any]", Callable[[], Any]]


class Hop:
    """Threads of a bounded number, started as they are needed. Used on one event loop."""

    def __init__(self, most_threads: int) -> None:
        self._most_threads = most_threads
        self._threads: list[threading.Thread] = []
        self._work: SimpleQueue[_Work | None] = SimpleQueue()
        #: Calls that no thread has brought back yet.
        self._away = 0

    async def __call__(self, call: Callable[[], T]) -> T:
        """What the call returns or raises, in a thread. One whose asker has gone is made all the same."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._away += 1
        if self._away > len(self._threads) < self._most_threads:
            self._start(loop)
        self._work.put((future, call))
        return await future

    def close(self) -> None:
        """Wait for the calls that are under way; the threads end."""
        for _ in self._threads:
            self._work.put(None)
        for thread in self._threads:
            thread.join()

    def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        name = f"penstock-server-{len(self._threads)}"
        thread = threading.Thread(target=self._run, args=(loop,), name=name, daemon=True)
        thread.start()
        self._threads.append(thread)

    def _back(self, future: asyncio.Future[T], answer: T | None, error: BaseException | None) -> None:
        self._away -= 1
        if future.done():
            return  # Nobody waits for it any more.
        if error is None:
            future.set_result(answer)  # type: ignore[arg-type]  # A T, where there is no error.
        else:
            future.set_exception(error)

    # -- in a thread

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        while (work := self._work.get()) is not None:
            loop.call_soon_threadsafe(self._back, *_made(*work))
            del work  # Whoever waits for the next call must not hold the last one's messages.


def _made(future: asyncio.Future[T], call: Callable[[], T]) -> tuple[asyncio.Future[T], T | None, Any]:
    try:
        return future, call(), None
    except StopIteration as error:  # Which no future takes.
        return future, None, RuntimeError(f"a call of the store raised {error!r}")
    except BaseException as error:  # noqa: BLE001  (raised where it is awaited)
        return future, None, error
