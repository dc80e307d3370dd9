"""Syncs of what was written on the event loop: one for all that is written when it begins.

They are made on the loop as long as the disk is quick, and in a thread if it is not: then the loop goes on,
and what it writes meanwhile is for the next sync.
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager
from time import perf_counter

from penstock.backends.embedded.engine import Engine
from penstock.server.hop import Hop

#: A disk whose last sync took no longer is quick: to hand it to a thread would cost as much again.
QUICK_S = 0.001


class Syncs:
    """Of one store. Used on one event loop."""

    def __init__(self, engine: Engine, hop: Hop) -> None:
        self._engine = engine
        self._hop = hop
        self._is_quick = True
        #: The next sync, if anybody waits for it, and how many do.
        self._next: asyncio.Future[None] | None = None
        self._calls = 0
        self._away: asyncio.Task[None] | None = None

    def deferred(self) -> AbstractContextManager[None]:
        """Within it, what this thread asks of the store is written and not synced."""
        return self._engine.calls.deferring()

    def now(self) -> None:
        """Sync what was written, here, however quick the disk is."""
        if self._engine.durability == "sync":
            self._sync(1)

    async def all_written(self) -> None:
        """Wait until what was written by now is as durable as the mode promises; raise if it is not."""
        if self._engine.durability != "sync":
            return
        loop = asyncio.get_running_loop()
        if self._next is None:
            self._next = loop.create_future()
            if self._away is None:
                loop.call_soon(self._begin)
        self._calls += 1
        await asyncio.shield(self._next)

    def _begin(self) -> None:
        """The others that are about to write in this turn of the loop have written."""
        waiting, calls = self._next, self._calls
        assert waiting is not None
        self._next, self._calls = None, 0
        if self._is_quick:
            try:
                self._sync(calls)
            except Exception as error:  # noqa: BLE001  (theirs: raised where they wait)
                _failed(waiting, error)
            else:
                waiting.set_result(None)
        else:
            self._away = asyncio.get_running_loop().create_task(self._sync_away(waiting, calls))

    async def _sync_away(self, waiting: asyncio.Future[None], calls: int) -> None:
        try:
            await self._hop(lambda: self._sync(calls))
        except Exception as error:  # noqa: BLE001  (theirs)
            _failed(waiting, error)
        else:
            waiting.set_result(None)
        self._away = None
        if self._next is not None:
            self._begin()

    def _sync(self, calls: int) -> None:
        began_s = perf_counter()
        if self._engine.sync():
            self._engine.meter.group_sizes.observe(calls)
        self._is_quick = perf_counter() - began_s <= QUICK_S


def _failed(waiting: asyncio.Future[None], error: Exception) -> None:
    waiting.set_exception(error)
    waiting.exception()  # Those who waited may all have gone.
