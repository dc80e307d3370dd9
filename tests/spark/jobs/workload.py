"""A working day of a small company's queues, on a clock that is moved: something to report on."""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Iterator

from penstock import Delivery, ManualClock, NewMessage, Penstock, Queue, Retry

TICK_S = 5.0
TENANTS = {"acme": 5, "globex": 2, "initech": 1, "umbrella": 1, "hooli": 1}
TRACEBACK = """Traceback (most recent call last):
  File "mail.py", line 12, in send
TimeoutError: smtp.example did not answer"""
REASONS = (TRACEBACK, "connection reset by peer", "429 Too Many Requests")


class Day:
    """Producers and workers of three queues; `play` moves the clock through so many hours."""

    def __init__(self, ps: Penstock, clock: ManualClock, seed: int) -> None:
        self._ps, self._clock, self._rng = ps, clock, random.Random(seed)
        ps.create_queue("emails-dead")
        ps.create_queue(
            "emails", dead_letter="emails-dead", max_attempts=3, lease_s=60, retry=Retry(delay_s=20)
        )
        ps.create_queue("thumbnails", lease_s=45, max_attempts=4)
        ps.create_queue("invoices", lease_s=120)
        #: (when, number, queue, delivery): what is being worked on, and when its work is over.
        self._working: list[tuple[int, int, Queue, Delivery]] = []
        self._number = 0

    def play(self, hours: float) -> None:
        ticks = int(hours * 3600 / TICK_S)
        for tick in range(ticks):
            part = tick / ticks
            self._produce(part)
            self._finish()
            for name, hands in (("emails", 24), ("thumbnails", 10), ("invoices", 6)):
                # For a while at noon nobody looks at thumbnails.
                if not (name == "thumbnails" and 0.55 < part < 0.68):
                    self._take(name, hands)
            self._clock.advance(TICK_S)
            self._ps.sweep()

    def _produce(self, part: float) -> None:
        rng = self._rng
        wave = 1 + math.sin(part * 2 * math.pi - 1)
        burst = 6 if 0.3 < part < 0.36 else 1
        for name, rate in (("emails", 3.0 * wave * burst), ("thumbnails", 1.6 * wave), ("invoices", 0.5)):
            count = int(rate) + (rng.random() < rate % 1)
            self._ps.queue(name).enqueue_many([self._message(name) for _ in range(count)])

    def _message(self, name: str) -> NewMessage:
        if name != "emails":
            return NewMessage(payload=b"x" * self._rng.randrange(20, 200))
        tenant = self._rng.choice(tuple(TENANTS))
        return NewMessage(payload=b"hello", fairness_key=tenant, weight=TENANTS[tenant])

    def _take(self, name: str, hands: int) -> None:
        q = self._ps.queue(name)
        busy = sum(queue.name == name for _, _, queue, _ in self._working)
        for delivery in q.lease(max_messages=max(1, hands - busy), consumer="w") if busy < hands else ():
            seconds = self._rng.lognormvariate(
                *{"emails": (2.4, 0.5), "thumbnails": (2.6, 0.9)}.get(name, (3.2, 0.4))
            )
            if delivery.fairness_key == "umbrella":
                seconds *= 2.5
            self._number += 1
            due_ns = self._clock.now_ns() + int(seconds * 1e9)
            heapq.heappush(self._working, (due_ns, self._number, q, delivery))

    def _finish(self) -> None:
        for q, delivery in self._over():
            luck = self._rng.random()
            if luck < 0.05:
                q.nack([delivery.receipt], reason=self._rng.choice(REASONS))
            elif luck < 0.06:
                q.reject(
                    [delivery.receipt], reason="550 no such user" if q.name == "emails" else "not an image"
                )
            else:
                q.ack([delivery.receipt])

    def _over(self) -> Iterator[tuple[Queue, Delivery]]:
        while self._working and self._working[0][0] <= self._clock.now_ns():
            _, _, q, delivery = heapq.heappop(self._working)
            yield q, delivery
