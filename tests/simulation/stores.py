"""The two stores that a simulation runs on.

In memory, every step is compared on a copy of the store that is opened anew, so that looking changes nothing
and what is stored is proved along with what memory holds; writes fail on request. On RocksDB, the open store
itself is looked at.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable
from typing import TypeVar
from unittest import mock

import penstock
from penstock import Penstock, StorageFull
from penstock.backends.embedded import opening
from penstock.backends.embedded.backend import EmbeddedBackend
from penstock.backends.embedded.keys import SPACES
from penstock.kv.memory import Faults, MemoryStore
from tests.simulation.comparing import agree
from tests.simulation.operations import Operation
from tests.simulation.system import Simulation

T = TypeVar("T")


class MemorySimulation(Simulation):
    """On the store in memory, which fails when told to."""

    def open(self) -> Penstock:
        self.faults = Faults(recovers=True)
        self.store = MemoryStore(SPACES, self.faults)
        return self.opened()

    def opened(self) -> Penstock:
        with mock.patch.object(opening, "MemoryStore", return_value=self.store):
            return penstock.open("memory:", clock=self.clock, rng=self.next_rng())

    def reopen(self) -> Penstock:
        self.ps.close()
        self.faults = Faults(recovers=True)
        self.store = self.store.reopen(self.faults)
        return self.opened()

    def failing(self, operation: Callable[[], T]) -> tuple[bool, T | None]:
        before = self.content()
        self.faults.fail_write_at = self.faults.writes + 1
        try:
            return False, operation()
        except StorageFull:
            agree("the store after a failed write", self.content(), before)
            return True, None
        finally:
            self.faults.fail_write_at = None

    def content(self) -> dict[str, list[tuple[bytes, bytes]]]:
        return {name: list(self.store.scan(self.store.space(name), b"", None)) for name in SPACES}

    def compare_after(self, operation: Operation) -> None:
        """With a copy, opened anew."""
        copy = EmbeddedBackend(
            self.store.reopen(), engine_name="memory", clock=self.clock, rng=random.Random(0)
        )
        agree("check", copy.check().problems, [])
        self.compare(copy)
        agree("check after looking", copy.check().problems, [])
        copy.close()


class RocksSimulation(Simulation):
    """On a folder, closed and opened again now and then."""

    def open(self) -> Penstock:
        self.folder = tempfile.TemporaryDirectory(prefix="penstock-simulation-")
        return self.opened()

    def opened(self) -> Penstock:
        url = f"rocksdb:{self.folder.name}/store?durability=os"
        return penstock.open(url, clock=self.clock, rng=self.next_rng())

    def reopen(self) -> Penstock:
        self.ps.close()
        return self.opened()

    def compare_after(self, operation: Operation) -> None:
        # After time has passed, looking would do what the next operation has to do by itself.
        if operation.what != "advance":
            self.compare(self.backend)
            agree("check", self.ps.check().problems, [])

    def close(self) -> None:
        super().close()
        self.folder.cleanup()
