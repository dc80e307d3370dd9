"""One of many processes on a folder: works until it is killed, and writes down each answer that it gets.

A line is written once the answer is there, by one system call: it survives the process.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from random import Random

import penstock
from penstock import EnqueueResult, NewMessage, Outcome

QUEUE = "q"
LEASE_S = 600.0


class Child:
    """Enqueues, leases, acks and nacks, in batches."""

    def __init__(self, folder: str, log_path: str, name: str, seed: int) -> None:
        self._log = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._name, self._rng, self._number = name, Random(seed), 0
        self._q = penstock.open(f"rocksdb:{folder}?durability=os").queue(QUEUE)

    def step(self) -> None:
        what = self._rng.random()
        if what < 0.4:
            self._enqueue(self._rng.randint(1, 10))
        else:
            self._consume(self._rng.randint(1, 12), fails=what < 0.5)

    def _enqueue(self, count: int) -> None:
        texts = [f"{self._name}-{self._number + i}" for i in range(count)]
        self._number += count
        self._say("enqueueing", *texts)
        results = self._q.enqueue_many([NewMessage(text.encode()) for text in texts])
        for text, result in zip(texts, results, strict=True):
            if result.ok:
                self._say("enqueued", text, str(result.id))
        self._say_failures(results)

    def _consume(self, count: int, fails: bool) -> None:
        deliveries = self._q.lease(count, lease_s=LEASE_S, wait_s=0.2, consumer=self._name)
        for d in deliveries:
            self._say("leased", d.payload.decode(), d.id, str(d.attempts))
        receipts = [d.receipt for d in deliveries]
        outcomes = self._q.nack(receipts, delay_s=0, reason="again") if fails else self._q.ack(receipts)
        for d, outcome in zip(deliveries, outcomes, strict=True):
            if outcome.ok and not fails:
                self._say("acked", d.payload.decode(), d.id)
        self._say_failures(outcomes)

    def _say_failures(self, results: Sequence[EnqueueResult | Outcome]) -> None:
        for result in results:
            if not result.ok:
                self._say("failed", str(result.error))

    def _say(self, *words: str) -> None:
        os.write(self._log, (" ".join(words) + "\n").encode())


if __name__ == "__main__":
    child = Child(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
    while True:
        child.step()
