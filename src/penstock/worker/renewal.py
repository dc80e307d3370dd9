"""Keeps the leases of everything in hand, and finds out which of them are lost."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable

from penstock.clock import NS_PER_S, Clock
from penstock.errors import PenstockError
from penstock.message import Delivery
from penstock.queue import Queue
from penstock.worker.job import RENEW_AFTER, Job

log = logging.getLogger("penstock.worker")

#: After a renewal that failed, the next try comes when so much of the lease has passed.
TRY_AGAIN_AFTER = 1 / 10


class Renewal:
    """What the renewing thread does. No code of the user's runs in that thread."""

    def __init__(
        self,
        clock: Clock,
        tell_lost: Callable[[Job, str], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        self._clock = clock
        self._tell_lost = tell_lost
        self._fail = fail

    @staticmethod
    def due(job: Job) -> int:
        return job.renew_at_ns

    def act(self, jobs: list[Job]) -> None:
        """One call for each queue and length of lease."""
        groups: dict[tuple[Queue, int], list[Job]] = defaultdict(list)
        for job in jobs:
            groups[job.queue, job.lease_ns].append(job)
        for (queue, lease_ns), members in groups.items():
            self._extend(queue, lease_ns, members)

    def _extend(self, queue: Queue, lease_ns: int, jobs: list[Job]) -> None:
        held = [(job, one) for job in jobs for one in job.deliveries if one.id not in job.context.lost_ids]
        now_ns, after = self._clock.now_ns(), RENEW_AFTER
        try:
            outcomes = queue.extend([one.receipt for _, one in held], lease_ns / NS_PER_S)
            lost = [pair for pair, outcome in zip(held, outcomes, strict=True) if not outcome.ok]
            self._lose(lost)
        except PenstockError as error:
            after = TRY_AGAIN_AFTER
            log.warning("renewing %d leases of queue %r failed: %s", len(held), queue.name, error)
            if not error.retryable:
                self._fail(error)
        for job in jobs:
            job.renew_at_ns = now_ns + max(round(lease_ns * after), 1)

    def _lose(self, lost: list[tuple[Job, Delivery]]) -> None:
        for job, delivery in lost:
            # Claimed: it was settled while this call was under way, and has no lease for that reason.
            if not job.claimed:
                log.warning("the lease of message %s of queue %r is lost", delivery.id, delivery.queue)
                job.context.lose(delivery.id)
                if job.slot is not None:
                    self._tell_lost(job, delivery.id)
