"""Leases as much as there are free slots for, and starts it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

from penstock.clock import Clock
from penstock.errors import PenstockError
from penstock.message import Delivery
from penstock.queue import Queue
from penstock.worker.hand import Hand
from penstock.worker.job import Context, Job
from penstock.worker.options import Options
from penstock.worker.patience import patiently

log = logging.getLogger("penstock.worker")

#: How long a lease waits for work. A stop waits for it, so it is short; the wait costs nothing.
POLL_S = 0.5


class Dispatcher:
    """Turns free slots into running jobs. Each queue has a thread; `drain` has one for all of them."""

    def __init__(
        self,
        options: Options,
        clock: Clock,
        hand: Hand,
        stopping: threading.Event,
        begin: Callable[[Job], None],
        held: Callable[[Job], None],
        give_back: Callable[[Job], None],
    ) -> None:
        self._options = options
        self._clock = clock
        self._hand = hand
        self._stopping = stopping
        self._begin = begin
        self._held = held
        self._give_back = give_back

    def serve(self, queue: Queue, alone: bool) -> None:
        """One queue, until the worker stops."""
        while not self._hand.closed:
            if alone:
                self._fill(queue, POLL_S)
            elif self._fill(queue, 0) == 0:
                self._await(queue)

    def drain(self, queues: Sequence[Queue]) -> None:
        """All queues, until nothing is ready in them and nothing is in hand."""
        while not self._hand.closed:
            settlements, idle = self._hand.settlements, not self._hand.unsettled()
            if sum(self._fill(queue, 0) for queue in queues):
                continue
            if idle:
                return
            self._hand.wait_settlement(settlements)

    def _fill(self, queue: Queue, wait_s: float) -> int:
        """Lease for every free slot; how many jobs that made."""
        slots = self._hand.take()
        jobs: list[Job] = []
        if not slots:
            return 0
        try:
            jobs = self._lease(queue, len(slots) * self._options.batch_size, wait_s)
        finally:
            self._hand.give_back(slots[len(jobs) :])
        for job, slot in zip(jobs, slots, strict=False):
            self._start(job, slot)
        return len(jobs)

    def _await(self, queue: Queue) -> None:
        """Wait for work of one queue among several, without keeping a slot from the others."""
        for job in self._lease(queue, self._options.batch_size, POLL_S):
            slots = self._hand.take(1)
            if slots:
                self._start(job, slots[0])
            else:
                self._give_back(job)

    def _lease(self, queue: Queue, count: int, wait_s: float) -> list[Job]:
        options = self._options
        try:
            deliveries = patiently(
                lambda: queue.lease(count, options.lease_s, wait_s, options.consumer, options.group),
                f"leasing from queue {queue.name!r}",
                self._stopping,
            )
        except PenstockError as error:
            if error.retryable:
                return []  # The worker stops.
            raise
        jobs = [self._job(queue, part) for part in _parts(deliveries, options.batch_size)]
        self._hand.hold(jobs)
        for job in jobs:
            self._held(job)
        return jobs

    def _job(self, queue: Queue, deliveries: list[Delivery]) -> Job:
        return Job(queue, deliveries, Context(self._stopping))

    def _start(self, job: Job, slot: int) -> None:
        if len(job.context.lost_ids) == len(job.deliveries):
            self._hand.give_back([slot])
            self._give_back(job)
            return
        if self._hand.place(job, slot, self._clock.now_ns()):
            self._begin(job)
        else:
            self._give_back(job)


def _parts(deliveries: list[Delivery], size: int) -> list[list[Delivery]]:
    return [deliveries[at : at + size] for at in range(0, len(deliveries), size)]
