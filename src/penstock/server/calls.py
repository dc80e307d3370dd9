"""How endpoints reach the stores: in threads of a bounded number, in a line of bounded length."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar, cast

from penstock.backends.forwarding.answering import Served
from penstock.message import Delivery, EnqueueResult, NewMessage, Outcome
from penstock.penstock import Penstock
from penstock.server.endpoint import Busy, CallId
from penstock.server.here import Here
from penstock.server.hop import Hop
from penstock.server.polls import Polls, leased
from penstock.server.together import Callers, Together
from penstock.server_config import Limits

T = TypeVar("T")


class StoreCalls:
    """`Calls` on an open system. Used on one event loop."""

    def __init__(self, ps: Penstock, limits: Limits) -> None:
        self._ps = ps
        self._max_calls = limits.max_calls
        self.answer_bytes = limits.max_answer_bytes
        self._hop = Hop(limits.threads)
        #: Calls that run, or wait for their turn.
        self.running = 0
        self.here = Here(ps, self._hop)
        self.polls = Polls(ps, self.here.make_lease, limits.max_polls, limits.max_answer_bytes)
        self._enqueue = Together(self._enqueue_now, self.here.make, _payload_bytes)
        self._ack = Together(self._ack_now, self.here.make, lambda receipts: 0)

    async def run(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        self._enter()
        try:
            return await self._hop(lambda: function(*args, **kwargs))
        finally:
            self.running -= 1

    async def enqueue(
        self, queue: str, messages: Sequence[NewMessage], call: CallId | None = None
    ) -> Sequence[EnqueueResult]:
        self._enter()
        try:
            if self.here.may_alone(queue, len(messages), messages) and self._enqueue.is_idle(queue):
                callers = [(call, len(messages))]
                return self.here.make_alone(lambda: self._enqueue_now(queue, messages, callers))
            return await self._enqueue(queue, messages, call)
        finally:
            self.running -= 1

    async def ack(self, queue: str, receipts: Sequence[str], call: CallId | None = None) -> Sequence[Outcome]:
        self._enter()
        try:
            if self.here.may_alone(queue, len(receipts)) and self._ack.is_idle(queue):
                callers = [(call, len(receipts))]
                return self.here.make_alone(lambda: self._ack_now(queue, receipts, callers))
            return await self._ack(queue, receipts, call)
        finally:
            self.running -= 1

    async def lease(
        self,
        queue: str,
        max_messages: int,
        lease_s: float | None,
        wait_s: float,
        consumer: str,
        listening: Callable[[], bool],
    ) -> Sequence[Delivery]:
        if max_messages < 1 or not wait_s >= 0:
            return await self.run(self._lease_now, queue, max_messages, lease_s, wait_s, consumer)
        if self.running >= self._max_calls:
            raise self._busy()
        if self.here.may_lease_alone(queue, max_messages) and self.polls.is_idle(queue) and listening():
            found = self.here.make_alone(
                lambda: leased(self._ps.queue(queue), max_messages, lease_s, consumer)
            )
            if found.deliveries or not wait_s:
                return found.deliveries
        return await self.polls.lease(queue, max_messages, lease_s, wait_s, consumer, listening)

    async def look(
        self, look: Callable[[], Sequence[Delivery]], wait_s: float, listening: Callable[[], bool]
    ) -> Sequence[Delivery]:
        return await self.polls.look(lambda: self.run(look), wait_s, listening)

    def close(self) -> None:
        """After the last call: the threads end."""
        self._hop.close()
        self.polls.close()

    def _enter(self) -> None:
        if self.running >= self._max_calls:
            raise self._busy()
        self.running += 1

    def _busy(self) -> Busy:
        return Busy(503, f"{self._max_calls} calls are under way; try again later")

    # -- in a thread

    def _enqueue_now(
        self, queue: str, messages: Sequence[NewMessage], callers: Callers
    ) -> Sequence[EnqueueResult]:
        with self._serving(callers):
            return self._ps.queue(queue).enqueue_many(messages)

    def _ack_now(self, queue: str, receipts: Sequence[str], callers: Callers) -> Sequence[Outcome]:
        with self._serving(callers):
            return self._ps.queue(queue).ack(receipts)

    def _serving(self, callers: Callers) -> AbstractContextManager[None]:
        """Answers of calls that may come again are written down, where there is one store that can."""
        only, *others = self._ps.backends.values()
        if others or not hasattr(only, "serving_together") or all(call is None for call, _ in callers):
            return nullcontext()
        return cast(Served, only).serving_together(callers)

    def _lease_now(self, queue: str, *args: Any) -> Sequence[Delivery]:
        return self._ps.queue(queue).lease(*args)


def _payload_bytes(messages: Sequence[NewMessage]) -> int:
    return sum([len(message.payload) for message in messages])
