"""From the event loop to threads and back: answers, errors, and never more threads than there may be."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from penstock import Penstock
from penstock.backends.embedded.backend import EmbeddedBackend
from penstock.server.hop import Hop
from penstock.testing.background import Background


def with_hop(most_threads: int, story: Callable[[Hop], Awaitable[None]]) -> None:
    async def run() -> None:
        hop = Hop(most_threads)
        try:
            async with asyncio.timeout(20):
                await story(hop)
        finally:
            hop.close()

    asyncio.run(run())


def failing(error: BaseException) -> Callable[[], Any]:
    def call() -> None:
        raise error

    return call


def test_what_a_call_returns_or_raises_comes_back() -> None:
    async def story(hop: Hop) -> None:
        assert await hop(lambda: 7) == 7
        assert await hop(threading.current_thread) is not threading.current_thread()
        with pytest.raises(ValueError, match="mine"):
            await hop(failing(ValueError("mine")))
        with pytest.raises(RuntimeError, match="StopIteration"):
            await hop(failing(StopIteration()))
        assert await hop(lambda: 8) == 8

    with_hop(1, story)


def test_calls_beyond_the_threads_wait_for_their_turn() -> None:
    most, now, goes_on = [0], [0], threading.Event()
    lock = threading.Lock()

    def call() -> None:
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        if most[0] == 3:
            goes_on.set()
        assert goes_on.wait(10)
        with lock:
            now[0] -= 1

    async def story(hop: Hop) -> None:
        await asyncio.gather(*(hop(call) for _ in range(20)))

    with_hop(3, story)
    assert most == [3]


def test_a_call_whose_asker_has_gone_is_made_and_harms_nobody() -> None:
    made, goes_on = threading.Event(), threading.Event()

    def call() -> None:
        assert goes_on.wait(10)
        made.set()

    async def story(hop: Hop) -> None:
        asking = asyncio.ensure_future(hop(call))
        await asyncio.sleep(0)
        asking.cancel()
        goes_on.set()
        assert await hop(lambda: "next") == "next"

    with_hop(1, story)
    assert made.is_set()


def test_a_thread_that_waits_holds_nothing_of_its_last_call() -> None:
    class Large:
        pass

    async def story(hop: Hop) -> None:
        large = Large()
        gone = weakref.ref(large)

        def call(held: Large = large) -> None:
            assert held is not None

        await hop(call)
        del large, call
        await hop(lambda: None)  # Another thread's turn, or the same one's: neither has it.
        gc.collect()
        assert gone() is None

    with_hop(1, story)


def test_a_queue_is_found_while_another_call_holds_the_store(ps: Penstock) -> None:
    backend = cast(EmbeddedBackend, ps.backends["default"])
    with backend._engine.lock:
        assert Background(lambda: ps.queue("q").name).result() == "q"
