"""Enqueues that wait together become one write: each producer has its own answers, in one order for all."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from penstock import EnqueueResult, NewMessage, Queue, StorageCorrupt
from penstock.backends.embedded.keys import SPACES
from penstock.kv.base import Batch
from penstock.kv.memory import Faults, MemoryStore
from penstock.testing.background import LIMIT_S, Background, wait_until
from tests.unit.memory_system import MemorySystem


class SlowDisk(MemoryStore):
    """Its syncs wait until they are let go."""

    def __init__(self) -> None:
        super().__init__(SPACES, Faults())
        self.writes = 0
        self.syncing = threading.Event()
        self.go = threading.Event()
        self.go.set()

    def write(self, batch: Batch, *, sync: bool = False) -> None:
        super().write(batch, sync=sync)
        self.writes += 1

    def sync(self) -> None:
        self.syncing.set()
        self.go.wait()
        super().sync()


class Producers:
    """Batches that are enqueued while the disk is busy, and so by one write."""

    def __init__(self) -> None:
        self.disk = SlowDisk()
        self.system = MemorySystem(self.disk, durability="sync")
        self.q = self.system.create("q")

    def together(self, *batches: Sequence[NewMessage]) -> list[list[EnqueueResult]]:
        waiting = self.system.engine._group._waiting
        self.disk.syncing.clear()
        self.disk.go.clear()
        busy = Background(lambda: self.q.enqueue(b"busy"))
        assert self.disk.syncing.wait(LIMIT_S)
        threads = []
        for place, batch in enumerate(batches, start=1):
            threads.append(Background(lambda batch=batch: self.q.enqueue_many(batch)))  # type: ignore[misc]
            wait_until(lambda place=place: len(waiting) == place)  # type: ignore[misc]
        before = self.disk.writes
        self.disk.go.set()
        busy.result()
        results = [thread.result() for thread in threads]
        assert self.disk.writes == before + 1
        return results


def payload_of(q: Queue, result: EnqueueResult) -> bytes:
    assert result.id is not None
    return q.get(result.id).payload


def test_producers_that_wait_together_are_one_write_and_each_has_its_own_ids() -> None:
    producers = Producers()
    batches = [[NewMessage(b"%d-%d" % (n, i)) for i in range(n)] for n in (1, 3, 0, 2)]
    results = producers.together(*batches)
    found = [[payload_of(producers.q, result) for result in some] for some in results]
    assert found == [[message.payload for message in batch] for batch in batches]
    events = producers.q.events()
    assert [event.seq for event in events] == list(range(1, 8))
    assert [event.message_id for event in events[1:]] == [result.id for some in results for result in some]
    delivered = [delivery.payload for delivery in producers.q.lease(9)]
    assert delivered == [b"busy", *(payload for some in found for payload in some)]
    assert producers.system.problems() == []


def test_what_one_producer_has_wrong_is_answered_to_that_one() -> None:
    producers = Producers()
    damaged = producers.q.enqueue(b"damaged")
    producers.system.damage_body("q", damaged)
    refused, corrupt, *good = producers.together(
        [NewMessage(b"", priority=10), NewMessage(b"1")],
        [NewMessage(b"", id=damaged)],
        [NewMessage(b"2", dedup_id="d")],
        [NewMessage(b"3", dedup_id="d")],
        [NewMessage(b"4")],
    )
    assert [result.ok for result in refused] == [False, True]
    assert isinstance(corrupt[0].error, StorageCorrupt)
    assert [(some[0].ok, some[0].duplicate) for some in good] == [(True, False), (True, True), (True, False)]
    assert good[0][0].id == good[1][0].id
