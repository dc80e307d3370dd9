"""Calls that are made where they are heard, on the event loop: a hop to a thread costs more than they do.

A hop and back is two wake-ups and two fights for the interpreter. It is there so that one client's call, and
the disk's sync in it, never keeps the loop from another client. So what is made here is small, of a store of
this process whose lock nobody holds; it asks no script, and has nothing to read or to settle first.

Where one connection alone has sent anything for a while, its call is made and synced at once: there is nobody
whom it could hold up. What several have sent is written first, call after call, and then synced together:
see `syncs`.

A call that took long all the same keeps the next ones away for a multiple of its time, so that somebody who
comes meanwhile, or asks for `/healthz`, finds the loop free.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import TypeVar

from penstock.backends.embedded.backend import EmbeddedBackend
from penstock.backends.embedded.keys import Due
from penstock.message import NewMessage
from penstock.penstock import Penstock
from penstock.server.hop import Hop
from penstock.server.syncs import Syncs

T = TypeVar("T")

#: Larger calls go to a thread: of one client, and of several together.
MOST_ITEMS, MOST_TOGETHER = 10, 100
MOST_BYTES = 64 * 1024
#: What is too long for a client that is alone, longer than syncs of a disk that is well; and where there are
#: others. For how many times as long nothing is made here then.
LONG_S, LONG_TOGETHER_S = 0.1, 0.005
REST = 20


class Here:
    """Whether calls may be made at once, and making them. Used on the event loop."""

    def __init__(self, ps: Penstock, hop: Hop) -> None:
        only, *others = ps.backends.values()
        #: The one that can be called here: of others it is not known who else they wait for.
        self._store = only if isinstance(only, EmbeddedBackend) and not others else None
        self._hop = hop
        self._syncs = None if self._store is None else Syncs(self._store.engine, hop)
        #: Whether one connection alone has sent anything of late; whoever knows connections sets it.
        self.is_one: Callable[[], bool] = _never
        self._not_before_s = 0.0

    def may_alone(self, queue: str, items: int, messages: Sequence[NewMessage] = ()) -> bool:
        """Whether a lone client's call of so many items, of which these have bodies, is made here."""
        if items > MOST_ITEMS or not self.is_one():
            return False
        return self._may(queue, sum([len(message.payload) for message in messages]))

    def may_lease_alone(self, queue: str, count: int) -> bool:
        """The same of a lease."""
        return count <= MOST_ITEMS and self.is_one() and self._may_lease(queue)

    def make_alone(self, call: Callable[[], T]) -> T:
        """It is durable when this returns."""
        syncs = self._syncs
        assert syncs is not None

        def durably() -> T:
            with syncs.deferred():
                answer = call()
            syncs.now()
            return answer

        return self._timed(durably, LONG_S)

    async def make(self, call: Callable[[], T], queue: str, items: int, size_bytes: int = 0) -> T:
        """Make a call of a queue here, if that holds up nobody, else in a thread; it is durable then."""
        return await self._made(call, items <= MOST_TOGETHER and self._may(queue, size_bytes))

    async def make_lease(self, call: Callable[[], T], queue: str, count: int) -> T:
        """The same of a lease, or of what gives leases back."""
        return await self._made(call, count <= MOST_TOGETHER and self._may_lease(queue))

    async def _made(self, call: Callable[[], T], is_here: bool) -> T:
        if not is_here:
            return await self._hop(call)
        assert self._syncs is not None
        with self._syncs.deferred():
            answer = self._timed(call, LONG_TOGETHER_S)
        await self._syncs.all_written()
        return answer

    def _may(self, queue: str, size_bytes: int = 0) -> bool:
        store = self._store
        if store is None or size_bytes > MOST_BYTES or perf_counter() < self._not_before_s:
            return False
        q = store.engine.queues.get(queue)
        if q is not None and not q.loaded:
            return False  # It is read first, which may take long.
        if q is not None and (q.settings.on_enqueue is not None or q.settings.on_failure is not None):
            return False
        lock = store.engine.lock
        if not lock.acquire(blocking=False):
            return False
        lock.release()
        return True

    def _may_lease(self, queue: str) -> bool:
        """Before a lease what is due is applied, of other queues too: that may be much, and ask scripts."""
        if not self._may(queue):
            return False
        assert self._store is not None
        engine = self._store.engine
        first_ns = min(engine.earliest_due_ns(), engine.next_due_ns[Due.TTL])
        if engine.undecided or first_ns <= engine.clock.now_ns():
            return False
        q = engine.queues.get(queue)
        return q is None or q.ready.discovered

    def _timed(self, call: Callable[[], T], long_s: float) -> T:
        began_s = perf_counter()
        try:
            return call()
        finally:
            ended_s = perf_counter()
            if ended_s - began_s > long_s:
                self._not_before_s = ended_s + REST * (ended_s - began_s)


def _never() -> bool:
    return False
