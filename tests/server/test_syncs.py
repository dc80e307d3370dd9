"""What several clients have sent is written on the loop and synced together; nobody is told before that."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import cast

import pytest

import penstock
from penstock import NewMessage, Penstock
from penstock.backends.embedded.backend import EmbeddedBackend
from penstock.backends.embedded.engine import Engine
from penstock.errors import StorageError
from penstock.message import EnqueueResult
from penstock.server import here, syncs
from penstock.server.calls import StoreCalls
from penstock.server_config import Limits


class Disk:
    """Counts the syncs of a store, and holds or fails them."""

    def __init__(self, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
        self.threads: list[str] = []
        self.entered, self.go_on = threading.Event(), threading.Event()
        self.go_on.set()
        self.error: StorageError | None = None
        real = engine.kv.sync

        def sync() -> None:
            self.threads.append(threading.current_thread().name)
            self.entered.set()
            assert self.go_on.wait(20)
            if self.error is not None:
                raise self.error
            real()

        monkeypatch.setattr(engine.kv, "sync", sync)


@pytest.fixture
def ps(tmp_path: Path) -> Iterator[Penstock]:
    with penstock.open(f"rocksdb:{tmp_path}/store?durability=sync") as ps:
        for name in ("a", "b"):
            ps.create_queue(name).stats()  # Which reads it.
        yield ps


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy the machine is, nothing takes too long for the loop."""
    monkeypatch.setattr(here, "LONG_TOGETHER_S", 60.0)
    monkeypatch.setattr(syncs, "QUICK_S", 60.0)


@pytest.fixture
def engine(ps: Penstock) -> Engine:
    return cast(EmbeddedBackend, ps.backends["default"]).engine


@pytest.fixture
def disk(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(engine, monkeypatch)


def told(ps: Penstock, story: Callable[[StoreCalls], Awaitable[None]]) -> None:
    async def run() -> None:
        calls = StoreCalls(ps, Limits())
        try:
            async with asyncio.timeout(20):
                await story(calls)
        finally:
            calls.polls.stop()
            await asyncio.to_thread(calls.close)

    asyncio.run(run())


async def sent(calls: StoreCalls, queue: str, payload: bytes = b"x") -> EnqueueResult:
    [result] = await calls.enqueue(queue, [NewMessage(payload)])
    return result


@pytest.mark.usefixtures("patient")
def test_calls_of_several_queues_that_came_together_share_a_sync(ps: Penstock, disk: Disk) -> None:
    ps.queue("b").enqueue_many([NewMessage(b"%d" % n) for n in range(5)])
    receipts = [one.receipt for one in ps.queue("b").lease(2)]
    disk.threads.clear()

    async def story(calls: StoreCalls) -> None:
        results, outcomes, leased = await asyncio.gather(
            asyncio.gather(*(sent(calls, "a") for _ in range(20))),
            asyncio.gather(*(calls.ack("b", [receipt]) for receipt in receipts)),
            asyncio.gather(*(calls.lease("b", 1, None, 0, "c", lambda: True) for _ in range(3))),
        )
        assert all(one.ok for one in results)
        assert all(one.ok for [one] in outcomes)
        assert sorted(one.payload for [one] in leased) == [b"2", b"3", b"4"]

    told(ps, story)
    assert disk.threads == ["MainThread"]


def test_while_a_slow_disk_syncs_the_loop_is_free_and_what_comes_has_the_next_sync(
    ps: Penstock, disk: Disk
) -> None:
    async def story(calls: StoreCalls) -> None:
        assert calls.here._syncs is not None
        calls.here._syncs._is_quick = False
        disk.go_on.clear()
        first = asyncio.create_task(sent(calls, "a", b"first"))
        await asyncio.to_thread(disk.entered.wait, 20)
        others = [asyncio.create_task(sent(calls, queue, b"other")) for queue in ("a", "b", "b")]
        for _ in range(20):
            await asyncio.sleep(0.001)
        assert not any(one.done() for one in (first, *others)), "told before it was synced"
        # It is written, and seen by others meanwhile, as decisions/0002 has it.
        assert ps.queue("b").stats().ready == 2
        disk.go_on.set()
        assert all(one.ok for one in [await first, *await asyncio.gather(*others)])

    told(ps, story)
    assert len(disk.threads) in (2, 3)  # What waits for its turn at one queue may miss the second.
    assert "MainThread" not in disk.threads[:2]


def test_a_call_that_wrote_nothing_says_nothing_of_the_disk(
    ps: Penstock, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(syncs, "QUICK_S", -1.0)  # No sync is quick.

    async def story(calls: StoreCalls) -> None:
        for _ in range(4):
            await sent(calls, "a")
            assert not await calls.lease("b", 1, None, 0, "c", lambda: True)

    told(ps, story)
    assert disk.threads.count("MainThread") <= 1  # The first, of which nothing was known.
    assert len(disk.threads) == 4


def test_after_a_quick_sync_in_a_thread_the_next_are_made_on_the_loop(ps: Penstock, disk: Disk) -> None:
    async def story(calls: StoreCalls) -> None:
        assert calls.here._syncs is not None
        calls.here._syncs._is_quick = False
        for _ in range(1000):
            await sent(calls, "a")
            if disk.threads[-1] == "MainThread":
                return
        pytest.fail("no sync of a thousand was quick")

    told(ps, story)


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("is_quick", [True, False])
def test_a_sync_that_fails_is_everybodys_error_and_stops_the_store(
    ps: Penstock, engine: Engine, disk: Disk, is_quick: bool
) -> None:
    async def story(calls: StoreCalls) -> None:
        assert calls.here._syncs is not None
        calls.here._syncs._is_quick = is_quick
        disk.error = StorageError("the disk is gone")
        found = await asyncio.gather(
            *(sent(calls, queue) for queue in ("a", "a", "b")),
            calls.lease("a", 1, None, 0, "c", lambda: True),
            return_exceptions=True,
        )
        assert [type(one) for one in found] == [StorageError] * 4
        with pytest.raises(StorageError, match="stopped"):
            await sent(calls, "a")

    told(ps, story)
    assert engine.stopped is not None


@pytest.mark.usefixtures("patient")
def test_an_error_of_one_queue_is_nobody_elses(ps: Penstock, disk: Disk) -> None:
    async def story(calls: StoreCalls) -> None:
        good, bad = await asyncio.gather(sent(calls, "a"), sent(calls, "none"), return_exceptions=True)
        assert isinstance(good, EnqueueResult)
        assert good.ok
        assert type(bad).__name__ == "QueueNotFound"

    told(ps, story)
    assert disk.threads == ["MainThread"]


def test_a_client_that_goes_while_it_is_synced_takes_nothing_from_the_others(
    ps: Penstock, disk: Disk
) -> None:
    async def story(calls: StoreCalls) -> None:
        assert calls.here._syncs is not None
        calls.here._syncs._is_quick = False
        disk.go_on.clear()
        gone, stays = (asyncio.create_task(sent(calls, "a")) for _ in range(2))
        await asyncio.to_thread(disk.entered.wait, 20)
        gone.cancel()
        await asyncio.sleep(0)
        disk.go_on.set()
        assert (await stays).ok

    told(ps, story)
    assert ps.queue("a").stats().ready == 2
