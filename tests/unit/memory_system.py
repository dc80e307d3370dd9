"""A backend in memory, its clock, and the rows beneath it: for tests of what no call can bring about."""

from __future__ import annotations

import random
from typing import Any

from penstock import Queue
from penstock.backends.embedded import keys
from penstock.backends.embedded.backend import EmbeddedBackend
from penstock.backends.embedded.engine import Durability, Engine
from penstock.backends.embedded.keys import SPACES
from penstock.backends.embedded.worlds import Worlds
from penstock.clock import ManualClock
from penstock.kv.base import Row
from penstock.kv.memory import MemoryStore
from penstock.message import parse_id
from penstock.settings import queue_settings

GARBAGE = b"\x09 garbage"


class MemorySystem:
    """An opened store and its parts."""

    def __init__(
        self,
        store: MemoryStore | None = None,
        durability: Durability = "os",
        clock: ManualClock | None = None,
    ) -> None:
        self.clock = clock or ManualClock()
        self.store = store or MemoryStore(SPACES)
        self.backend = EmbeddedBackend(
            self.store,
            engine_name="memory",
            clock=self.clock,
            rng=random.Random(1),
            durability=durability,
        )

    @property
    def engine(self) -> Engine:
        return self.backend.engine

    def create(self, name: str, **settings: Any) -> Queue:
        self.backend.create_queue(queue_settings(name, settings))
        return Queue(self.backend, name)

    def sweep(self) -> None:
        """Until there is nothing left to do."""
        while self.backend.sweep(100):
            pass

    def problems(self) -> list[str]:
        return [problem.what for problem in self.backend.check().problems]

    # -- rows

    def rows(self, space: str) -> list[Row]:
        return list(self.store.scan(self.store.space(space), b"", None))

    def put(self, space: str, key: bytes, value: bytes) -> None:
        batch = self.store.batch()
        batch.put(key, value, self.store.space(space))
        self.store.write(batch)

    def clear(self, space: str) -> None:
        batch = self.store.batch()
        batch.delete_range(b"", b"\xff" * 32, self.store.space(space))
        self.store.write(batch)

    def damage(self, space: str, name: str, last: bytes = b"") -> None:
        """Overwrite the rows of a queue or world, or those of one message in it."""
        numbers = {q.name: q.qid for q in self.engine.by_qid.values()}
        numbers |= {world: row.number for world, row in Worlds(self.engine).all()}
        prefix = keys.u32(numbers[name])
        damaged = [key for key, _ in self.rows(space) if key.startswith(prefix) and key.endswith(last)]
        assert damaged, f"{name!r} has no such row in {space!r}"
        for key in damaged:
            self.put(space, key, GARBAGE)

    def damage_body(self, queue: str, message_id: str) -> None:
        self.damage("messages", queue, parse_id(message_id))
