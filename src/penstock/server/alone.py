"""Calls of a client that is alone: made where it is heard, for there is nobody whom they could hold up.

A hop to a thread and back costs two wake-ups, as much as the call itself. It is there so that one client's
call, and the disk's sync in it, never keeps the event loop from another client. Where one connection alone
has sent anything for a while, small calls of a store of this process are made on the loop, while nobody
holds that store's lock. A call that took long all the same keeps the next ones away for a multiple of its
time, so that somebody who comes meanwhile, or asks for `/healthz`, finds the loop free.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import TypeVar

from penstock.backends.embedded.backend import EmbeddedBackend
from penstock.message import NewMessage
from penstock.penstock import Penstock

T = TypeVar("T")

#: Larger calls go to a thread, whoever makes them.
MOST_ITEMS = 10
MOST_BYTES = 64 * 1024
#: What is longer than syncs of a disk that is well, and how many times as long nothing is made here then.
LONG_S = 0.1
REST = 20


class Alone:
    """Whether a call may be made at once, and making it. Used on the event loop."""

    def __init__(self, ps: Penstock) -> None:
        only, *others = ps.backends.values()
        #: The one that can be called here: of others it is not known who else they wait for.
        self._store = only if isinstance(only, EmbeddedBackend) and not others else None
        #: Whether one connection alone has sent anything of late; whoever knows connections sets it.
        self.is_one: Callable[[], bool] = _never
        self._not_before_s = 0.0

    def may(self, items: int, messages: Sequence[NewMessage] = ()) -> bool:
        """Whether a call of so many items, of which these have bodies, is made here."""
        store = self._store
        if store is None or items > MOST_ITEMS or not self.is_one() or perf_counter() < self._not_before_s:
            return False
        if sum([len(message.payload) for message in messages]) > MOST_BYTES:
            return False
        lock = store.engine.lock
        if not lock.acquire(blocking=False):
            return False
        lock.release()
        return True

    def make(self, call: Callable[[], T]) -> T:
        began_s = perf_counter()
        try:
            return call()
        finally:
            ended_s = perf_counter()
            if ended_s - began_s > LONG_S:
                self._not_before_s = ended_s + REST * (ended_s - began_s)


def _never() -> bool:
    return False
