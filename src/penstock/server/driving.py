"""Coroutines that are run without a task of asyncio's: what waits for nothing is done when this returns.

A task costs as much as much of what an answer is made of, and begins a turn of the loop later. What it has
besides is not here: such a coroutine is nobody's current task (`asyncio.timeout` needs one), and is not
cancelled when the loop ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


def drive(work: Coroutine[Any, Any, None], ended: Callable[[], None]) -> None:
    """Run it up to where it waits, and on from there as a task would; call `ended` at its end, once."""
    _Driver(work, ended).step()


class _Driver:
    __slots__ = ("_ended", "_work")

    def __init__(self, work: Coroutine[Any, Any, None], ended: Callable[[], None]) -> None:
        self._work = work
        self._ended = ended

    def step(self, awaited: asyncio.Future[Any] | None = None) -> None:
        """A future that is done tells the coroutine itself what became of it."""
        try:
            awaited = self._work.send(None)
        except (StopIteration, asyncio.CancelledError):
            self._ended()
        except BaseException as error:
            self._ended()
            if not isinstance(error, Exception):
                raise
            what = {"message": "a coroutine that nobody waits for failed", "exception": error}
            asyncio.get_running_loop().call_exception_handler(what)
        else:
            if awaited is None:  # It lets others go first.
                asyncio.get_running_loop().call_soon(self.step)
            else:
                awaited._asyncio_future_blocking = False  # The protocol between futures and who runs them.
                awaited.add_done_callback(self.step)
