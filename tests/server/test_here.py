"""Calls that are made on the loop: as others are, and only where they hold up nobody."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import ManualClock, NewMessage, Penstock
from penstock.errors import QueueNotFound
from penstock.queue import Queue
from penstock.server import heard, here, serving
from penstock.server.calls import StoreCalls
from penstock.server.credentials import NoCredentials
from penstock.server.heard import Heard
from penstock.server_config import Limits, ServerSettings
from penstock.testing.harness import START_NS
from tests.server.running import message, running

#: Good for either hook.
SCRIPT = "function on_enqueue(message) end function on_failure(message, error) end"


@asynccontextmanager
async def lone(ps: Penstock) -> AsyncIterator[tuple[StoreCalls, list[str]]]:
    """The calls of a server that hears one client, and the names of the threads that store and lease."""
    calls, threads = StoreCalls(ps, Limits()), []
    calls.here.is_one = lambda: True
    for name in ("_enqueue_now", "_ack_now"):
        made = getattr(calls, name)

        def noted(*args: object, made: object = made) -> object:
            threads.append(threading.current_thread().name)
            return made(*args)  # type: ignore[operator]

        setattr(calls, name, noted)
        together = calls._enqueue if name == "_enqueue_now" else calls._ack
        together._call = noted  # type: ignore[assignment]
    try:
        yield calls, threads
    finally:
        calls.polls.stop()
        await asyncio.to_thread(calls.close)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy the machine is, nothing takes too long for the loop unless a test says so."""
    monkeypatch.setattr(here, "LONG_S", 60.0)
    monkeypatch.setattr(here, "LONG_TOGETHER_S", 60.0)


def on_loop(threads: list[str]) -> list[bool]:
    return [name == threading.current_thread().name for name in threads]


async def enqueued(calls: StoreCalls, count: int = 1, size_bytes: int = 1) -> None:
    results = await calls.enqueue("q", [NewMessage(b"x" * size_bytes) for _ in range(count)])
    assert [one.ok for one in results] == [True] * count


def test_what_one_client_sends_receives_and_deletes_takes_no_thread(ps: Penstock) -> None:
    async def story() -> None:
        async with lone(ps) as (calls, threads):
            await enqueued(calls)
            [delivery] = await calls.lease("q", 1, None, 20, "c", lambda: True)
            assert [one.ok for one in await calls.ack("q", [delivery.receipt])] == [True]
            assert await calls.lease("q", 1, None, 0, "c", lambda: True) == []
            assert on_loop(threads) == [True, True]
            with pytest.raises(QueueNotFound):
                await calls.enqueue("none", [NewMessage(b"x")])
            assert calls.running == 0

    asyncio.run(story())


def test_what_is_large_takes_a_thread(ps: Penstock) -> None:
    async def story() -> None:
        async with lone(ps) as (calls, threads):
            await enqueued(calls, here.MOST_TOGETHER)
            await enqueued(calls, here.MOST_TOGETHER + 1)
            await enqueued(calls, 1, here.MOST_BYTES)
            await enqueued(calls, 1, here.MOST_BYTES + 1)
            assert on_loop(threads) == [True, False, True, False]

    asyncio.run(story())


@pytest.mark.parametrize("is_one", [True, False])
def test_while_somebody_holds_the_store_a_call_waits_in_a_thread_and_the_loop_is_free(
    ps: Penstock, is_one: bool
) -> None:
    async def story() -> None:
        async with lone(ps) as (calls, threads):
            calls.here.is_one = lambda: is_one
            lock = calls.here._store.engine.lock  # type: ignore[union-attr]
            held, let_go = threading.Event(), threading.Event()

            def hold() -> None:
                with lock:
                    held.set()
                    let_go.wait(20)

            holder = threading.Thread(target=hold)
            holder.start()
            held.wait(20)
            waiting = asyncio.create_task(enqueued(calls))
            await asyncio.sleep(0.05)  # The loop turns meanwhile.
            assert not waiting.done()
            let_go.set()
            await waiting
            holder.join()
            assert on_loop(threads) == [False]

    asyncio.run(story())


@pytest.mark.parametrize("is_one", [True, False])
def test_after_a_call_that_took_long_the_next_ones_take_threads(
    ps: Penstock, monkeypatch: pytest.MonkeyPatch, is_one: bool
) -> None:
    now_s = [0.0]
    monkeypatch.setattr(here, "perf_counter", lambda: now_s[0])
    long_s = 2 * (here.LONG_S if is_one else here.LONG_TOGETHER_S)

    async def story() -> None:
        async with lone(ps) as (calls, threads):
            calls.here.is_one = lambda: is_one

            def slow() -> None:
                now_s[0] += long_s

            if is_one:
                calls.here.make_alone(slow)
            else:
                await calls.here.make(slow, "q", 1)
            await enqueued(calls)
            now_s[0] += long_s * here.REST
            await enqueued(calls)
            assert on_loop(threads) == [False, True]

    asyncio.run(story())


def test_a_call_does_not_overtake_those_that_wait(ps: Penstock, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        async with lone(ps) as (calls, threads):
            calls.here.is_one = lambda: False
            monkeypatch.setattr(here, "MOST_TOGETHER", 0)  # They are made in threads.
            first = asyncio.create_task(enqueued(calls))
            await asyncio.sleep(0)
            calls.here.is_one = lambda: True
            await enqueued(calls)
            await first
            assert threads
            assert not any(on_loop(threads))
            calls.here.is_one = lambda: False
            for delivery in await calls.lease("q", 2, None, 0, "c", lambda: True):
                await calls.ack("q", [delivery.receipt])
            waiting = asyncio.create_task(calls.lease("q", 1, None, 20, "first", lambda: True))
            await asyncio.sleep(0.05)
            calls.here.is_one = lambda: True
            second = asyncio.create_task(calls.lease("q", 1, None, 20, "second", lambda: True))
            await asyncio.sleep(0.05)
            await enqueued(calls)
            [delivery] = await waiting
            assert delivery.consumer == "first"
            assert not second.done()
            await enqueued(calls)
            assert len(await second) == 1

    asyncio.run(story())


def test_nothing_is_leased_for_a_client_that_has_gone(ps: Penstock) -> None:
    async def story() -> None:
        async with lone(ps) as (calls, _):
            await enqueued(calls)
            assert list(await calls.lease("q", 1, None, 0, "c", lambda: False)) == []
            assert ps.queue("q").stats().ready == 1

    asyncio.run(story())


@pytest.mark.parametrize("settings", [{"on_enqueue": SCRIPT}, {"on_failure": SCRIPT}])
def test_what_may_wait_for_a_script_takes_a_thread(ps: Penstock, settings: dict[str, str]) -> None:
    ps.update_queue("q", **settings)

    async def story() -> None:
        async with lone(ps) as (calls, threads):
            for is_one in (True, False):
                calls.here.is_one = lambda is_one=is_one: is_one  # type: ignore[misc]
                await enqueued(calls)
            assert on_loop(threads) == [False, False]

    asyncio.run(story())


@pytest.mark.parametrize("is_one", [True, False])
def test_a_lease_that_has_other_things_to_settle_first_takes_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_one: bool
) -> None:
    """Leases of any queue that ended, delays and lives that are over, lanes that are not known yet."""
    threads: list[str] = []
    real = Queue.lease_or_due

    def noted(self: Queue, *args: Any) -> Any:
        threads.append(threading.current_thread().name)
        return real(self, *args)

    monkeypatch.setattr(Queue, "lease_or_due", noted)
    clock = ManualClock(START_NS)

    def leased(ps: Penstock) -> bool:
        """Whether a lease of `q` was made on the loop."""

        async def story() -> None:
            async with lone(ps) as (calls, _):
                calls.here.is_one = lambda: is_one
                await calls.lease("q", 1, None, 0, "c", lambda: True)

        threads.clear()
        asyncio.run(story())
        return threads == ["MainThread"]

    store = f"rocksdb:{tmp_path}/store?durability=os"
    with penstock.open(store, clock=clock) as ps:
        q, other = ps.create_queue("q"), ps.create_queue("other", lease_s=10)
        other.enqueue_many([NewMessage(b"x")] * 3)
        q.enqueue_many([NewMessage(b"x", fairness_key=str(n)) for n in range(3)])
        other.lease(1)
        q.lease(1)
        assert leased(ps)
        clock.advance(11)
        assert not leased(ps), "a lease of another queue has ended"
        assert leased(ps)
        other.enqueue(b"x", delay_s=5)
        clock.advance(6)
        assert not leased(ps), "a delay is over"
        other.enqueue(b"x", ttl_s=5)
        clock.advance(6)
        assert not leased(ps), "something has expired"
    with penstock.open(store, clock=clock) as ps:
        assert not leased(ps), "the queue is not read yet"


@pytest.mark.parametrize("is_one", [True, False])
def test_a_queue_that_is_to_be_read_first_takes_a_thread(tmp_path: Path, is_one: bool) -> None:
    async def story(ps: Penstock) -> None:
        async with lone(ps) as (calls, threads):
            calls.here.is_one = lambda: is_one
            for _ in range(2):
                await enqueued(calls)
            assert on_loop(threads) == [False, True]

    for _ in range(2):
        with penstock.open(f"rocksdb:{tmp_path}/store?durability=os") as ps:
            if not ps.queues():
                ps.create_queue("q")
            asyncio.run(story(ps))


def test_stores_that_may_wait_for_others_are_called_in_threads(tmp_path: Path) -> None:
    both = tmp_path / "penstock.yaml"
    both.write_text(f"storage: {{path: {tmp_path}/one}}\nbackends: {{b: {{url: 'memory:'}}}}\n")
    with penstock.open(both) as ps:
        assert StoreCalls(ps, Limits()).here._store is None
    # One that another process has, as long as it lives.
    script = "import sys, penstock; ps = penstock.open(sys.argv[1]); print(); input()"
    owner = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "two")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert owner.stdout is not None
        assert owner.stdout.readline()
        with penstock.open(tmp_path / "two") as ps:
            assert ps.info().default.attached_to == owner.pid
            assert StoreCalls(ps, Limits()).here._store is None
    finally:
        owner.communicate(b"\n", timeout=20)


def test_one_is_alone_when_nobody_else_was_heard_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [100.0]
    monkeypatch.setattr(heard, "monotonic", lambda: now_s[0])
    ears = Heard()
    one, other = object(), object()
    ears(one)
    assert not ears.is_one()
    now_s[0] += 2 * heard.ALONE_S
    ears(one)
    assert ears.is_one()
    ears(other)
    assert not ears.is_one()
    now_s[0] += 2 * heard.ALONE_S
    ears.forget(other)
    ears(other)
    assert not ears.is_one()


class Ears(Heard):
    """Remembers everybody."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[object] = []

    def __call__(self, connection: object) -> None:
        super().__call__(connection)
        self.told.append(connection)


def test_the_door_hears_who_sends_requests(ps: Penstock) -> None:
    async def story() -> None:
        async with asyncio.timeout(20), running(ps) as server:
            server.door.heard = ears = Ears()
            for _ in range(2):
                reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
                writer.write(message("GET", "/probe/echo", close=False) * 2)
                await reader.readuntil(b"\r\n\r\n")
                await reader.readuntil(b"\r\n\r\n")
                writer.close()
            assert (len(ears.told), len(set(map(id, ears.told)))) == (4, 2)

    asyncio.run(story())


def test_a_server_knows_from_its_door_who_is_alone(ps: Penstock, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[StoreCalls] = []

    class Calls(StoreCalls):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            made.append(self)

    stops: list[asyncio.Event] = []
    monkeypatch.setattr(serving, "_on_signals", lambda loop, stopping: stops.append(stopping))
    # This process goes on when its server has ended.
    monkeypatch.setattr(serving, "_end_at_latest", lambda within_s: None)
    monkeypatch.setattr("penstock.server.calls.StoreCalls", Calls)
    settings = ServerSettings(port=0, log="off")
    with serving.bind(settings) as door:
        started = serving._serve(ps, settings, NoCredentials(), None, door, lambda _: stops[0].set())
        asyncio.run(asyncio.wait_for(started, 20))
    assert isinstance(getattr(made[0].here.is_one, "__self__", None), Heard)
