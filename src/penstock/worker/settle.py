"""Tells the queues what became of their deliveries, everything that ended in the same moment together."""

from __future__ import annotations

import logging
import queue
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence

from penstock.errors import PenstockError
from penstock.message import Delivery, Outcome
from penstock.queue import Queue
from penstock.worker.hand import Hand
from penstock.worker.job import Job
from penstock.worker.patience import patiently
from penstock.worker.stats import End, Tally
from penstock.worker.verdict import DONE, Verdict

log = logging.getLogger("penstock.worker")

LOST = "the lease was lost: it ran out, or the message was taken or removed"

Ended = tuple[Job, list[Verdict]]
#: One call: the queue and what all its deliveries have in common.
Group = tuple[Queue, Verdict]
#: delivery, how it ended, why, and whether a handler had it
Report = Callable[[Delivery, End, str, bool], None]


class Settler(threading.Thread):
    """One thread, so that a handler never waits for the disk and what ends together is one call."""

    def __init__(
        self,
        hand: Hand,
        tally: Tally,
        max_attempts: dict[str, int],
        report: Report,
        fail: Callable[[BaseException], None],
    ) -> None:
        super().__init__(name="penstock-worker-settler", daemon=True)
        self._hand = hand
        self._tally = tally
        self._max_attempts = max_attempts
        self._report = report
        self._fail = fail
        self._ended: queue.SimpleQueue[Ended | None] = queue.SimpleQueue()
        #: Set when a store that does not answer is waited for no longer.
        self.give_up = threading.Event()

    def put(self, job: Job, verdicts: list[Verdict]) -> None:
        self._ended.put((job, verdicts))

    def finish(self) -> None:
        """End the thread once everything that was put before is settled."""
        self._ended.put(None)

    def run(self) -> None:
        open_ = True
        while open_:
            batch = [self._ended.get()]
            while not self._ended.empty():
                batch.append(self._ended.get())
            open_ = None not in batch
            self._settle([ended for ended in batch if ended is not None])

    def _settle(self, ended: list[Ended]) -> None:
        groups: dict[Group, list[tuple[Job, Delivery]]] = defaultdict(list)
        for job, verdicts in ended:
            for delivery, verdict in zip(job.deliveries, verdicts, strict=True):
                groups[job.queue, verdict].append((job, delivery))
        reports: list[tuple[Delivery, End, str, bool]] = []
        try:
            for (its_queue, verdict), members in groups.items():
                reports += self._tell(its_queue, verdict, members)
        finally:
            # Slots first: the next jobs need not wait for the callbacks of these.
            self._hand.settle([job for job, _ in ended])
        for report in reports:
            self._report(*report)

    def _tell(
        self, its_queue: Queue, verdict: Verdict, members: list[tuple[Job, Delivery]]
    ) -> list[tuple[Delivery, End, str, bool]]:
        receipts = [delivery.receipt for _, delivery in members]
        try:
            outcomes = patiently(
                lambda: _call(its_queue, verdict, receipts),
                f"settling {len(receipts)} deliveries of queue {its_queue.name!r}",
                self.give_up,
            )
        except Exception as error:  # noqa: BLE001 (whatever it is, other deliveries are waiting to be settled)
            log.error("%d deliveries of queue %r stay leased: %s", len(receipts), its_queue.name, error)
            self._fail(error)
            told = error if isinstance(error, PenstockError) else PenstockError(type(error).__name__)
            outcomes = [Outcome(told)] * len(receipts)
        reports: list[tuple[Delivery, End, str, bool]] = []
        for (job, delivery), outcome in zip(members, outcomes, strict=True):
            started = job.started_at_ns is not None
            if outcome.ok:
                reports.append((delivery, verdict.kind, verdict.reason, started))
            else:
                reports.append((delivery, "lost", f"{LOST} ({outcome.error})", started))
        self._tally.end((end, self._is_dead(delivery, end)) for delivery, end, _, _ in reports)
        return reports

    def _is_dead(self, delivery: Delivery, end: End) -> bool:
        if end in ("done", "lost"):
            return False
        # As the queue was set when the worker started: a screen's number, not a decision.
        return end == "rejected" or delivery.attempts >= self._max_attempts.get(delivery.queue, 1 << 62)


def _call(its_queue: Queue, verdict: Verdict, receipts: Sequence[str]) -> list[Outcome]:
    if verdict == DONE:
        return its_queue.ack(receipts)
    if verdict.kind == "rejected":
        return its_queue.reject(receipts, verdict.reason)
    return its_queue.nack(receipts, verdict.delay_s, verdict.reason)
