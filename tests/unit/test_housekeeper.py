"""The threads of a store: syncs keep their time, whatever there is to sweep."""

from __future__ import annotations

import threading
from typing import Any, cast

from penstock.backends.embedded.housekeeper import housekeepers
from penstock.errors import StorageError
from penstock.testing.background import LIMIT_S


class House:
    """A backend whose sweep takes as long as the test likes."""

    def __init__(self, durability: str) -> None:
        self.durability = durability
        self.engine = self.upkeep = cast(Any, self)
        self.closed = threading.Event()
        self.stopped: StorageError | None = None
        self.sweeping, self.swept = threading.Event(), threading.Event()
        self.synced = threading.Semaphore(0)
        self.failures = 0

    def tidy(self, budget: int) -> int:
        self.sweeping.set()
        self.swept.wait(LIMIT_S)
        return 0

    def sync(self) -> None:
        self.synced.release()
        if self.failures:
            self.failures -= 1
            raise StorageError("injected")

    def close(self, threads: list[threading.Thread]) -> None:
        self.swept.set()
        self.closed.set()
        for thread in threads:
            thread.join(LIMIT_S)
        assert not any(thread.is_alive() for thread in threads)


def test_a_long_sweep_keeps_no_sync_waiting() -> None:
    house = House("interval")
    threads = housekeepers(house, 0.005)
    assert house.sweeping.wait(LIMIT_S)
    while house.synced.acquire(blocking=False):
        pass
    assert all(house.synced.acquire(timeout=LIMIT_S) for _ in range(3))
    assert not house.swept.is_set()
    house.close(threads)


def test_only_interval_mode_has_syncs_of_its_own() -> None:
    house = House("os")
    threads = housekeepers(house, 0.001)
    assert house.sweeping.wait(LIMIT_S)
    house.close(threads)
    assert not house.synced.acquire(blocking=False)


def test_a_sync_that_fails_is_tried_again_until_the_store_has_stopped() -> None:
    house = House("interval")
    house.failures = 1
    threads = housekeepers(house, 0.001)
    assert all(house.synced.acquire(timeout=LIMIT_S) for _ in range(3))
    house.stopped, house.failures = StorageError("stopped"), 1
    syncing = next(thread for thread in threads if "sync" in thread.name)
    syncing.join(LIMIT_S)
    assert not syncing.is_alive()
    house.close(threads)
