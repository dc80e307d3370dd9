"""Long-polls: they take no thread, wake when something comes, and lease nothing for who has gone."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

import penstock
from penstock import NewMessage, Penstock
from penstock.errors import QueueNotFound
from penstock.queue import Queue
from penstock.server import polls
from penstock.server.calls import StoreCalls
from penstock.server.endpoint import Busy
from penstock.server_config import Limits
from tests.server.running import message, running
from tests.server.test_calls import with_calls


def here() -> bool:
    return True


async def poll(calls: StoreCalls, wait_s: float = 10, listening: Any = here, queue: str = "q") -> list[bytes]:
    return [one.payload for one in await calls.lease(queue, 1, None, wait_s, "", listening)]


async def waiting(calls: StoreCalls, count: int) -> None:
    """Until so many polls wait, and the look for them is over."""
    while calls.polls.waiting != count or any(line._is_looking for line in calls.polls._lines.values()):
        await asyncio.sleep(0.005)


def test_hundreds_wait_with_one_thread_and_each_message_wakes_one(ps: Penstock) -> None:
    async def story(calls: StoreCalls) -> None:
        tasks = [asyncio.create_task(poll(calls)) for _ in range(300)]
        await waiting(calls, 300)
        await calls.enqueue("q", [NewMessage(b"%d" % n) for n in range(200)])
        # First come, first served.
        found = await asyncio.gather(*tasks[:200])
        assert sorted(payload for (payload,) in found) == sorted(b"%d" % n for n in range(200))
        assert not any(task.done() for task in tasks[200:])
        calls.polls.stop()
        assert await asyncio.gather(*tasks[200:]) == [[]] * 100

    with_calls(ps, story, Limits(threads=1))


def test_a_message_from_another_thread_wakes_a_poll_at_once(ps: Penstock) -> None:
    async def story(calls: StoreCalls) -> None:
        task = asyncio.create_task(poll(calls))
        await waiting(calls, 1)
        began_s = time.perf_counter()
        await asyncio.to_thread(ps.queue("q").enqueue, b"x")
        assert await task == [b"x"]
        assert time.perf_counter() - began_s < 2

    with_calls(ps, story)


def test_a_delayed_message_and_a_lease_that_ends_wake_a_poll(ps: Penstock) -> None:
    async def story(calls: StoreCalls) -> None:
        ps.queue("q").enqueue(b"later", delay_s=0.2)
        assert await poll(calls) == [b"later"]
        ps.queue("q").enqueue(b"again")
        assert len(await calls.lease("q", 1, 0.2, 0, "", here)) == 1
        assert await poll(calls) == [b"again"]

    with_calls(ps, story)


def test_waiting_for_nothing_looks_a_few_times_and_ends_in_time(
    ps: Penstock, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[str] = []
    real = Queue.lease_or_due

    def counted(self: Queue, *args: Any) -> Any:
        looks.append("")
        return real(self, *args)

    monkeypatch.setattr(Queue, "lease_or_due", counted)
    ps.create_queue("slow")
    ps.throttles.set("key", 0.001, 1)
    ps.queue("slow").enqueue_many([NewMessage(b"x", throttle_keys=["key"])] * 3)

    async def story(calls: StoreCalls) -> None:
        assert await poll(calls, queue="slow") == [b"x"]
        began_s = time.perf_counter()
        both = await asyncio.gather(poll(calls, 0.3), poll(calls, 0.3, queue="slow"))
        assert list(both) == [[], []]
        assert 0.29 < time.perf_counter() - began_s < 1

    with_calls(ps, story)
    assert len(looks) <= 8


def test_nothing_is_leased_for_a_client_that_has_gone(ps: Penstock) -> None:
    async def story(calls: StoreCalls) -> None:
        gone = False
        first = asyncio.create_task(poll(calls, listening=lambda: not gone))
        second = asyncio.create_task(poll(calls))
        await waiting(calls, 2)
        gone = True
        await calls.enqueue("q", [NewMessage(b"x")])
        assert await second == [b"x"]
        assert await first == []

    with_calls(ps, story)
    assert ps.queue("q").stats().leased == 1


def test_what_was_leased_while_the_client_went_is_given_back_at_once(
    ps: Penstock, monkeypatch: pytest.MonkeyPatch
) -> None:
    ps.queue("q").enqueue(b"x")
    is_there = [True]
    real = Queue.lease_or_due

    def leaves(self: Queue, *args: Any) -> Any:
        found = real(self, *args)
        is_there[0] = False
        return found

    monkeypatch.setattr(Queue, "lease_or_due", leaves)

    async def story(calls: StoreCalls) -> None:
        assert await poll(calls, listening=lambda: is_there[0]) == []
        while ps.queue("q").stats().leased:
            await asyncio.sleep(0.005)
        monkeypatch.undo()
        assert await poll(calls, 5) == [b"x"]

    with_calls(ps, story)


def test_polls_with_different_terms_each_get_their_own(ps: Penstock) -> None:
    async def story(calls: StoreCalls) -> None:
        wants = [(1, 30.0, "a"), (2, 30.0, "a"), (1, 60.0, "b"), (600, None, "c")]
        tasks = [
            asyncio.create_task(calls.lease("q", most, lease_s, 10, who, here))
            for most, lease_s, who in wants
        ]
        await waiting(calls, 4)
        await calls.enqueue("q", [NewMessage(b"%d" % n) for n in range(10)])
        assert [len(found) for found in await asyncio.gather(*tasks)] == [1, 2, 1, 6]

    with_calls(ps, story)


def test_an_error_is_of_the_poll_that_caused_it(ps: Penstock) -> None:
    async def story(calls: StoreCalls) -> None:
        found = await asyncio.gather(
            calls.lease("q", 1, -1.0, 5, "", here), poll(calls, 0.05), return_exceptions=True
        )
        assert isinstance(found[0], penstock.PenstockError)
        assert found[1] == []
        with pytest.raises(QueueNotFound):
            await poll(calls, queue="nowhere")

    with_calls(ps, story)


def test_a_queue_that_is_deleted_ends_its_polls_and_one_made_anew_wakes_new_ones(ps: Penstock) -> None:
    async def story(calls: StoreCalls) -> None:
        task = asyncio.create_task(poll(calls))
        await waiting(calls, 1)
        await calls.run(ps.delete_queue, "q")
        with pytest.raises(QueueNotFound):
            await task
        await calls.run(ps.create_queue, "q")
        # One that was watched, and went while nobody waited.
        assert await poll(calls, 0.01) == []
        await calls.run(ps.delete_queue, "q")
        await calls.run(ps.create_queue, "q")
        await asyncio.sleep(0.01)
        task = asyncio.create_task(poll(calls))
        await waiting(calls, 1)
        await calls.enqueue("q", [NewMessage(b"new")])
        assert await asyncio.wait_for(task, 2) == [b"new"]

    with_calls(ps, story)


def test_polls_beyond_the_limit_are_told_to_come_later_or_not_to_wait(ps: Penstock) -> None:
    async def story(calls: StoreCalls) -> None:
        task = asyncio.create_task(poll(calls))
        await waiting(calls, 1)
        with pytest.raises(Busy) as caught:
            await poll(calls)
        assert caught.value.status == 429
        assert await poll(calls, 0) == []
        calls.polls.stop()
        assert await task == []

    with_calls(ps, story, Limits(max_polls=1))


def test_a_client_that_has_gone_takes_no_place_from_others(ps: Penstock) -> None:
    async def story(calls: StoreCalls) -> None:
        gone = False
        first = asyncio.create_task(poll(calls, listening=lambda: not gone))
        await waiting(calls, 1)
        gone = True
        second = asyncio.create_task(poll(calls))
        assert await first == []
        await waiting(calls, 1)
        await calls.enqueue("q", [NewMessage(b"x")])
        assert await second == [b"x"]

    with_calls(ps, story, Limits(max_polls=1))


def test_a_line_that_nobody_stands_in_is_forgotten_and_not_told_any_more(
    ps: Penstock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(polls, "LINGER_S", 0.01)

    async def story(calls: StoreCalls) -> None:
        assert await poll(calls, 0.01) == []
        while calls.polls._lines:
            await asyncio.sleep(0.005)
        ps.queue("q").enqueue(b"x")
        assert await poll(calls, 5) == [b"x"]

    with_calls(ps, story)


def test_a_client_that_hangs_up_while_it_waits_gets_no_lease(ps: Penstock) -> None:
    async def run() -> None:
        async with asyncio.timeout(20), running(ps) as server:
            _, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(message("GET", "/probe/lease?10"))
            await waiting(server.calls, 1)
            writer.close()
            while server.door.connections:
                await asyncio.sleep(0.005)
            ps.queue("q").enqueue(b"x")
            assert (await server.ask("GET", "/probe/lease?10")).body == b"x"

    asyncio.run(run())
    assert ps.queue("q").stats().leased == 1
