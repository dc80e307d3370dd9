"""How endpoints reach the stores: in threads of a bounded number, in a line of bounded length."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from penstock.message import Delivery, EnqueueResult, NewMessage, Outcome
from penstock.penstock import Penstock
from penstock.server.endpoint import Busy
from penstock.server.polls import Polls
from penstock.server.together import Together
from penstock.server_config import Limits

T = TypeVar("T")


class StoreCalls:
    """`Calls` on an open system. Used on one event loop."""

    def __init__(self, ps: Penstock, limits: Limits) -> None:
        self._ps = ps
        self._max_calls = limits.max_calls
        self._threads = ThreadPoolExecutor(limits.threads, thread_name_prefix="penstock-server")
        #: Calls that run, or wait for their turn.
        self.running = 0
        self.polls = Polls(ps, self._hop, limits.max_polls)
        self._enqueue = Together(self._enqueue_now, self._hop, _payload_bytes)
        self._ack = Together(self._ack_now, self._hop, lambda receipts: 0)

    async def run(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        self._enter()
        try:
            return await self._hop(lambda: function(*args, **kwargs))
        finally:
            self.running -= 1

    async def enqueue(self, queue: str, messages: Sequence[NewMessage]) -> Sequence[EnqueueResult]:
        self._enter()
        try:
            return await self._enqueue(queue, messages)
        finally:
            self.running -= 1

    async def ack(self, queue: str, receipts: Sequence[str]) -> Sequence[Outcome]:
        self._enter()
        try:
            return await self._ack(queue, receipts)
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
        return await self.polls.lease(queue, max_messages, lease_s, wait_s, consumer, listening)

    def close(self) -> None:
        """After the last call: the threads end."""
        self._threads.shutdown()

    def _enter(self) -> None:
        if self.running >= self._max_calls:
            raise self._busy()
        self.running += 1

    def _busy(self) -> Busy:
        return Busy(503, f"{self._max_calls} calls are under way; try again later")

    async def _hop(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    # -- in a thread

    def _enqueue_now(self, queue: str, messages: Sequence[NewMessage]) -> Sequence[EnqueueResult]:
        return self._ps.queue(queue).enqueue_many(messages)

    def _ack_now(self, queue: str, receipts: Sequence[str]) -> Sequence[Outcome]:
        return self._ps.queue(queue).ack(receipts)

    def _lease_now(self, queue: str, *args: Any) -> Sequence[Delivery]:
        return self._ps.queue(queue).lease(*args)


def _payload_bytes(messages: Sequence[NewMessage]) -> int:
    """Of what is no message nothing is counted: the backend refuses it."""
    return sum(len(message.payload) for message in messages if isinstance(message.payload, bytes))
