"""A worker process of the demonstration: works until it is killed, by itself or by others.

It says what it did in lines of JSON: what it finished, by shop, what failed, and what it was too late for.
"""

from __future__ import annotations

import json
import os
import random
import signal
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import penstock
from penstock import Delivery, Queue
from penstock.demo.shops import BROKEN, LEASE_S, QUEUE

#: What a worker pretends to need for a batch, so that there is something to watch.
WORK_S = 0.08


@dataclass(frozen=True)
class Manner:
    """How a worker behaves."""

    what: str
    fails: float = 0.0
    rejects: float = 0.0
    dawdles: float = 0.0
    crashes: float = 0.0


MANNERS = {
    "crashing": Manner("dies with its hands full", crashes=0.08),
    "steady": Manner("does its work"),
    "clumsy": Manner("fails now and then", fails=0.05, rejects=0.003),
    "dawdling": Manner("lets leases run out", dawdles=0.15),
}


class Worker:
    """Leases a batch, works on it after its manner, answers for it."""

    def __init__(self, queue: Queue, kind: str, batch: int, rng: random.Random) -> None:
        self._queue, self._kind, self._manner = queue, kind, MANNERS[kind]
        self._batch, self._rng = batch, rng
        self._pause = threading.Event()

    def step(self) -> None:
        held = self._queue.lease(self._batch, wait_s=0.5, consumer=f"{self._kind}-{os.getpid()}")
        if not held:
            return
        if self._happens(self._manner.crashes):
            os.kill(os.getpid(), signal.SIGKILL)
        self._pause.wait(LEASE_S * 1.3 if self._happens(self._manner.dawdles) else WORK_S)
        self._answer(held)

    def _happens(self, chance: float) -> bool:
        return self._rng.random() < chance

    def _answer(self, held: Sequence[Delivery]) -> None:
        good: list[Delivery] = []
        broken: list[str] = []
        jammed: list[str] = []
        unknown: list[str] = []
        for delivery in held:
            if delivery.headers == BROKEN:
                broken.append(delivery.receipt)
            elif self._happens(self._manner.fails):
                jammed.append(delivery.receipt)
            elif self._happens(self._manner.rejects):
                unknown.append(delivery.receipt)
            else:
                good.append(delivery)
        failures = [
            *self._queue.nack(broken, reason="label cannot be printed"),
            *self._queue.nack(jammed, reason="printer jam"),
            *self._queue.reject(unknown, reason="no such address"),
        ]
        outcomes = self._queue.ack([delivery.receipt for delivery in good])
        acked = Counter(d.fairness_key for d, outcome in zip(good, outcomes, strict=True) if outcome.ok)
        late = sum(not outcome.ok for outcome in [*outcomes, *failures])
        print(json.dumps({"acked": acked, "failed": len(failures), "late": late}), flush=True)


def run(folder: str, kind: str, batch: str, seed: str) -> None:
    """With the words of a command line."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # The demonstration ends its workers itself.
    worker = Worker(penstock.open(folder).queue(QUEUE), kind, int(batch), random.Random(seed))
    print(json.dumps({"opened": os.getpid()}), flush=True)
    while True:
        worker.step()
