"""Syncs of what was written on the event loop: one for all that is written when it begins.

They are made on the loop as long as the disk is quick, and in a thread if it is not: then the loop goes on,
and what it writes meanwhile is for the next sync.
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager
from time import perf_counter

from penstock.backends.embedded.engine import Engine
from penstock.server.driving import drive
from penstock.server.hop import Hop

#: A disk whose last sync took no longer is quick: to hand it to a thread would cost as much again.
QUICK_S = 0.001
#: A sync begins when so many turns of the loop have brought no other call to share it, or after this.
QUIET_TURNS = 3
AT_LATEST_S = 0.001

_Waiting = list["asyncio.Future[None]"]


class Syncs:
    """Of one store. Used on one event loop."""

    def __init__(self, engine: Engine, hop: Hop) -> None:
        self._engine = engine
        self._hop = hop
        self._is_quick = True
        #: Calls whose sync has not begun.
        self._waiting: _Waiting = []
        #: The next sync is to come, or one is under way in a thread.
        self._is_awaited = False

    def deferred(self) -> AbstractContextManager[None]:
        """Within it, what this thread asks of the store is written and not synced."""
        return self._engine.calls.deferring()

    def now(self) -> None:
        """Sync what was written, here, however quick the disk is."""
        if self._engine.durability == "sync":
            self._sync(1)

    async def all_written(self) -> None:
        """Wait until what was written by now is as durable as the mode promises; raise if it is not."""
        engine = self._engine
        if engine.durability != "sync" or engine.writes == engine.synced:
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        if not self._is_awaited:
            self._await_others()
        await future

    def _await_others(self) -> None:
        """Clients that were answered together come again one after the other."""
        self._is_awaited = True
        asyncio.get_running_loop().call_soon(self._turn, 0, QUIET_TURNS, perf_counter() + AT_LATEST_S)

    def _turn(self, seen: int, quiet_turns: int, until_s: float) -> None:
        calls = len(self._waiting)
        left = quiet_turns - 1 if calls == seen else QUIET_TURNS
        if left and perf_counter() < until_s:
            asyncio.get_running_loop().call_soon(self._turn, calls, left, until_s)
        elif self._is_quick:
            self._is_awaited = False
            waiting = self._taken()
            try:
                self._sync(len(waiting))
            except Exception as error:  # noqa: BLE001  (theirs: raised where they wait)
                _tell(waiting, error)
            else:
                _tell(waiting, None)
        else:
            drive(self._sync_away(), self._came_back)

    def _taken(self) -> _Waiting:
        waiting, self._waiting = self._waiting, []
        return waiting

    async def _sync_away(self) -> None:
        waiting = self._taken()
        try:
            await self._hop(lambda: self._sync(len(waiting)))
        except Exception as error:  # noqa: BLE001  (theirs)
            _tell(waiting, error)
        else:
            _tell(waiting, None)

    def _came_back(self) -> None:
        self._is_awaited = False
        if self._waiting:
            self._await_others()

    def _sync(self, calls: int) -> None:
        began_s = perf_counter()
        if self._engine.sync():  # Else there was nothing to do, which says nothing of the disk.
            self._engine.meter.group_sizes.observe(calls)
            self._is_quick = perf_counter() - began_s <= QUICK_S


def _tell(waiting: _Waiting, error: Exception | None) -> None:
    for future in waiting:
        if future.done():
            continue  # Nobody waits for it any more.
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)
