"""The process that is killed: it opens the store, runs the load, and writes down what it was told."""

from __future__ import annotations

import os
import signal
import threading
import traceback
from pathlib import Path
from random import Random
from typing import Any, Literal
from unittest import mock

import msgspec

import penstock
from penstock.backends.embedded import opening
from penstock.clock import SystemClock
from penstock.kv.rocksdb import RocksStore
from tests.crash import bulk
from tests.crash.load import THREADS, Worker, set_up
from tests.crash.record import Failed, FileLog, Synced

ENDED = 3
"""Exit status of a child that was not killed."""
STEPS = 100_000
"""A child that nobody kills ends by itself."""


class Order(msgspec.Struct, tag="child", kw_only=True):
    """One round: what the child is to do."""

    path: str
    logs: str
    seed: int
    round: int
    durability: Literal["sync", "interval", "os"] = "sync"
    mode: Literal["high_throughput", "low_space"] = "high_throughput"
    heavy: bool = False
    #: A bulk operation to run instead of the load.
    bulk: str = ""
    #: The child's own death, at a write or sync of the store: a moment that a timer seldom meets.
    kill_at_step: int | None = None
    kill_moment: Literal["before", "after"] = "before"


class WatchedStore(RocksStore):
    """Counts writes and syncs, dies at one of them, and writes down how much of the log was synced."""

    order: Order
    syncs: FileLog
    steps = 0

    def write(self, batch: Any, *, sync: bool = False) -> None:
        self._step("before")
        super().write(batch, sync=sync)
        self._step("after")

    def sync(self) -> None:
        # Taken first: what other threads append while the sync runs may not be covered by it.
        sizes = log_sizes(Path(self.order.path))
        self._step("before")
        super().sync()
        self.syncs.write(Synced(sizes))
        self._step("after")

    def _step(self, moment: str) -> None:
        if moment == "before":
            WatchedStore.steps += 1
        if self.order.kill_at_step == WatchedStore.steps and self.order.kill_moment == moment:
            os.kill(os.getpid(), signal.SIGKILL)


def log_sizes(store: Path) -> dict[str, int]:
    """The write-ahead log's files and their lengths."""
    sizes: dict[str, int] = {}
    for file in store.glob("*.log"):
        try:
            sizes[file.name] = file.stat().st_size
        except FileNotFoundError:
            continue  # The engine has just removed it: its rows are in tables.
    return sizes


def run(order: Order, opened: int) -> None:
    """Runs until it is killed. A byte on `opened` says that the store is open."""
    if order.bulk:
        run_bulk(order)
        return
    logs = Path(order.logs)
    WatchedStore.order, WatchedStore.syncs = order, FileLog(logs / "syncs")
    mock.patch.object(opening, "RocksStore", WatchedStore).start()  # This process has one purpose.
    setup_log = FileLog(logs / "setup")
    try:
        system = penstock.open(f"rocksdb:{order.path}?durability={order.durability}&mode={order.mode}")
        os.write(opened, b"opened\n")
        set_up(system, setup_log)
    except BaseException:
        setup_log.write(Failed(traceback.format_exc()))
        raise
    threads = [
        threading.Thread(target=_work, args=(order, system, thread, logs)) for thread in range(THREADS)
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join()


def run_bulk(order: Order) -> None:
    """One bulk operation, with no other writer beside it: steps then mean the same in every run."""
    WatchedStore.order, WatchedStore.syncs = order, FileLog(Path(order.logs) / "syncs")
    mock.patch.object(opening, "RocksStore", WatchedStore).start()  # This process has one purpose.
    bulk.run(penstock.open(order.path, clock=SystemClock()), order.bulk)


def _work(order: Order, system: penstock.Penstock, thread: int, logs: Path) -> None:
    log = FileLog(logs / f"thread-{thread}")
    rng = Random(f"{order.seed} {order.round} {thread}")
    try:
        worker = Worker(system, log, rng, order.round, thread, heavy=order.heavy, waits=True)
        for _ in range(STEPS):
            worker.step()
    except BaseException:
        log.write(Failed(traceback.format_exc()))
        raise
