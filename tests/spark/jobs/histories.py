"""Stores with a history: one that is written down here, and random ones of the simulation."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path

import penstock
from penstock import Delivery, ManualClock, NewMessage, Penstock, Queue
from penstock.testing.folding import read_events
from tests.simulation.operations import Operation, draw_operation
from tests.simulation.stores import RocksSimulation
from tests.spark.jobs.stored import Tables, renamed, tables_of, together


def opened(folder: Path, clock: ManualClock) -> Penstock:
    return penstock.open(f"rocksdb:{folder}?durability=os", clock=clock, rng=random.Random(1))


class Told:
    """A short history with a part for every kind of event, and the ids of those who play one."""

    def __init__(self, ps: Penstock, clock: ManualClock) -> None:
        self.ps, self.clock = ps, clock
        self.ids: dict[str, str] = {}
        ps.create_queue("dead")
        self.q = ps.create_queue("q", dead_letter="dead", max_attempts=3, lease_s=30)
        self.other = ps.create_queue("other", max_attempts=2, retention_s=3600)
        for name in ("dead", "q", "other"):
            ps.queue(name).enqueue(b"before all others")
            self._tick()

    def tell(self) -> None:
        for part in (
            self._done,
            self._retried,
            self._extended,
            self._died,
            self._moved,
            self._waits,
            self._held,
        ):
            part()
            self._tick()

    def _tick(self, seconds: float = 1) -> None:
        self.clock.advance(seconds)

    def _enqueued(self, name: str, **settings: object) -> Delivery:
        """A message with this name, leased at once: it goes before all others."""
        self.ids[name] = self.q.enqueue(name.encode(), priority=9, **settings)  # type: ignore[arg-type]
        self._tick()
        return self._leased(self.q)

    def _leased(self, q: Queue) -> Delivery:
        (delivery,) = q.lease(consumer="worker")
        self._tick()
        return delivery

    def _done(self) -> None:
        self.q.ack([self._enqueued("done").receipt])

    def _retried(self) -> None:
        delivery = self._enqueued("retried")
        self._tick(40)  # Its lease runs out.
        second = self._leased(self.q)
        assert second.id == delivery.id
        self.q.nack([second.receipt], delay_s=0, reason="busy")
        self._tick()
        self.q.ack([self._leased(self.q).receipt])

    def _extended(self) -> None:
        delivery = self._enqueued("extended")
        self.q.extend([delivery.receipt], lease_s=60)
        self._tick()
        self.q.ack([delivery.receipt])

    def _died(self) -> None:
        self.q.reject([self._enqueued("died").receipt], reason="no such user")

    def _moved(self) -> None:
        self.ids["moved"] = self.q.enqueue(b"moved", headers={"type": "mail"})
        self._tick()
        self.q.move([self.ids["moved"]], target="other")
        self._tick()
        (stays,) = self.other.lease(consumer="worker")
        self.other.ack([stays.receipt])

    def _waits(self) -> None:
        self.ids["waits"] = self.q.enqueue(b"waits", headers={"a": "1", "b": "2"}, priority=0)
        self._tick()
        self.q.upsert([NewMessage(id=self.ids["waits"], payload=b"waits still", priority=0)])
        self.ids["delayed"] = self.q.enqueue(b"delayed", delay_s=500)

    def _held(self) -> None:
        self._enqueued("held")


@contextmanager
def _quiet(sim: RocksSimulation):  # type: ignore[no-untyped-def]
    try:
        yield sim
    finally:
        sim.close()


class _Unwatched(RocksSimulation):
    """Compared with its model elsewhere: here only its history matters."""

    def compare_after(self, operation: Operation) -> None:
        pass

    def look(self) -> None:
        pass


def random_history(seed: int, operations: int) -> Tables:
    """Of queues that are made, changed, emptied and deleted, with retention that removes events."""
    rng = random.Random(seed)
    with _quiet(_Unwatched()) as sim:
        for _ in range(operations):
            sim.do(draw_operation(rng.choice))
        return tables_of(sim.ps)


def random_histories(seeds: range, operations: int) -> Tables:
    return together(renamed(random_history(seed, operations), _numbered(seed)) for seed in seeds)


def _numbered(seed: int) -> Callable[[str], str]:
    return lambda name: f"{seed}:{name}"


def kinds_of(q: Queue, message_id: str) -> list[str]:
    return [str(event.kind) for event in read_events(q) if event.message_id == message_id]
