"""Coroutines that run without a task do what they would do in one."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock.server.driving import drive


def run(story: Any) -> list[dict[str, Any]]:
    """What the loop was told of failures."""
    told: list[dict[str, Any]] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, what: told.append(what))
        async with asyncio.timeout(10):
            await story()

    asyncio.run(main())
    return told


def test_what_waits_for_nothing_is_done_at_once() -> None:
    done: list[str] = []

    async def work() -> None:
        done.append("work")

    async def story() -> None:
        drive(work(), lambda: done.append("ended"))
        assert done == ["work", "ended"]

    assert run(story) == []


def test_it_goes_on_when_what_it_waits_for_is_there_and_is_told_its_errors() -> None:
    done: list[Any] = []

    async def work(good: asyncio.Future[str], bad: asyncio.Future[str]) -> None:
        done.append(await good)
        await asyncio.sleep(0)
        await asyncio.sleep(0.001)
        try:
            await bad
        except ValueError as error:
            done.append(str(error))

    async def story() -> None:
        loop = asyncio.get_running_loop()
        good, bad = loop.create_future(), loop.create_future()
        ended = asyncio.Event()
        drive(work(good, bad), ended.set)
        assert not done
        good.set_result("good")
        bad.set_exception(ValueError("bad"))
        await ended.wait()
        assert done == ["good", "bad"]

    assert run(story) == []


def test_a_failure_that_nobody_waits_for_is_told_to_the_loop_and_ends_it() -> None:
    async def work(rest: bool) -> None:
        if rest:
            await asyncio.sleep(0)
        raise ValueError("lost")

    async def story() -> None:
        for rest in (False, True):
            ended = asyncio.Event()
            drive(work(rest), ended.set)
            await ended.wait()

    assert [str(what["exception"]) for what in run(story)] == ["lost", "lost"]


def test_what_waits_for_something_that_is_cancelled_ends_quietly() -> None:
    async def story() -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def work() -> None:
            await future

        ended = asyncio.Event()
        drive(work(), ended.set)
        future.cancel()
        await ended.wait()

    assert run(story) == []


def test_an_interrupt_is_passed_on() -> None:
    async def work() -> None:
        raise KeyboardInterrupt

    ended: list[bool] = []
    with pytest.raises(KeyboardInterrupt):
        drive(work(), lambda: ended.append(True))
    assert ended
