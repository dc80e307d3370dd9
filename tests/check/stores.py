"""Stores with something of everything in them, and a hand that reaches behind the facade."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import penstock
from penstock import Entry, ManualClock, NewMessage, Penstock
from penstock.backends.embedded.engine import Engine

QUEUES = ("jobs", "line", "kept", "slow", "bystander")

#: queue, state, payload by id: what a repair may not change of a message that it has no business with.
Contents = dict[str, tuple[str, str, bytes]]


def fill(ps: Penstock) -> None:
    """Messages in every state, with everything that a message can have, and worlds."""
    ps.create_queue("buried")
    jobs = ps.create_queue("jobs", retention_s=900, dead_retention_s=5000, dedup_window_s=600)
    line = ps.create_queue("line", fifo=True, dead_letter="buried", max_attempts=1)
    kept = ps.create_queue("kept")
    kept.cursor("archive", required=True)
    for n in range(40):
        jobs.enqueue(b"job %d" % n, headers={"type": "t"}, fairness_key=f"k{n % 4}", priority=n % 10)
    jobs.enqueue_many([NewMessage(b"once %d" % n, dedup_id=f"d{n}", ttl_s=4000 + n) for n in range(5)])
    jobs.enqueue_many([NewMessage(b"later %d" % n, delay_s=800 + n) for n in range(5)])
    taken = jobs.lease(12, lease_s=600, consumer="w")
    jobs.ack([taken[0].receipt, taken[1].receipt])
    jobs.nack([taken[2].receipt], delay_s=0, reason="again")
    jobs.nack([taken[3].receipt], delay_s=700, reason="in a while")
    jobs.reject([taken[4].receipt, taken[5].receipt], reason="no")
    jobs.extend([taken[6].receipt], 700)
    line.enqueue_many([NewMessage(b"line %d" % n, fairness_key=f"f{n % 3}") for n in range(9)])
    line.nack([delivery.receipt for delivery in line.lease(2)][:1])
    kept.enqueue_many([NewMessage(b"kept %d" % n) for n in range(6)])
    kept.ack([delivery.receipt for delivery in kept.lease(2)])
    slow = ps.create_queue("slow", fifo=True, delay_s=300)
    slow.enqueue_many([NewMessage(b"slow %d" % n, fairness_key=f"f{n % 2}") for n in range(5)])
    bystander = ps.create_queue("bystander")
    bystander.enqueue_many([NewMessage(b"by %d" % n) for n in range(10)])
    bystander.lease(2, lease_s=600)
    for n in range(3):
        ps.journal("w").append([Entry("k", b"entry %d" % n, ["l"], vector=[1.0]), Entry("k2", b"x")])
    ps.state.put("user", b"value")
    ps.throttles.set("api", rate_per_s=0.5, burst=3)
    bystander.enqueue_many([NewMessage(b"throttled %d" % n, throttle_keys=["api"]) for n in range(5)])
    bystander.lease(20, lease_s=600)


@contextmanager
def filled(target: str | Path, seed: int = 1) -> Iterator[Penstock]:
    with penstock.open(target, clock=ManualClock(), rng=random.Random(seed)) as ps:
        fill(ps)
        yield ps


def engine_of(ps: Penstock) -> Engine:
    engine: Engine = ps._default.engine  # type: ignore[attr-defined]  # the rows behind the facade
    return engine


def contents(ps: Penstock) -> Contents:
    return {
        message.id: (settings.name, str(message.state), message.payload)
        for settings in ps.queues()
        for message in ps.queue(settings.name).iter()
    }


class Raw:
    """Rows of an open store, read and written without its knowing; what it has in memory is dropped."""

    def __init__(self, ps: Penstock) -> None:
        self._engine = engine_of(ps)
        self._kv = self._engine.kv

    def rows(self, space: str, prefix: bytes = b"") -> list[tuple[bytes, bytes]]:
        rows = self._kv.scan(self._kv.space(space), prefix, None)
        return [row for row in rows if row[0].startswith(prefix)]

    def row(self, space: str, test: Callable[[bytes, bytes], bool] | None = None) -> tuple[bytes, bytes]:
        """The first row that passes a test."""
        return next(row for row in self.rows(space) if test is None or test(*row))

    def put(self, space: str, key: bytes, value: bytes) -> None:
        self._write(lambda batch: batch.put(key, value, self._kv.space(space)))

    def delete(self, space: str, key: bytes) -> None:
        self._write(lambda batch: batch.delete(key, self._kv.space(space)))

    def _write(self, change: Callable[[Any], None]) -> None:
        batch = self._kv.batch()
        change(batch)
        self._kv.write(batch)
        for q in self._engine.by_qid.values():
            q.unload()

    def number(self, queue: str) -> int:
        return self._engine.queues[queue].qid


def flipped(raw: bytes, at: int, bit: int = 0) -> bytes:
    """The bytes with one bit the other way."""
    at %= len(raw)
    return raw[:at] + bytes((raw[at] ^ 1 << bit,)) + raw[at + 1 :]
