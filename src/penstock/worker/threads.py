"""Handlers in threads: one for each slot."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

from penstock.worker.hand import Hand
from penstock.worker.job import Job, running_in
from penstock.worker.options import Options
from penstock.worker.runner import Done
from penstock.worker.verdict import verdicts_of


class ThreadRunner:
    """A thread cannot be ended from outside: one past its time limit keeps its slot until it returns."""

    def __init__(self, options: Options, handler: Callable[[Any], object], hand: Hand, done: Done) -> None:
        self._options = options
        self._handler = handler
        self._hand = hand
        self._done = done
        self._inboxes: list[queue.SimpleQueue[Job | None]] = []

    def start(self) -> None:
        for slot in range(self._options.concurrency):
            inbox: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
            self._inboxes.append(inbox)
            # A daemon: a handler that never returns must not keep the program from ending.
            thread = threading.Thread(
                target=self._run, args=(inbox,), name=f"penstock-worker-{slot}", daemon=True
            )
            self._hand.adopt(thread).start()
            self._hand.open(slot)

    def _run(self, inbox: queue.SimpleQueue[Job | None]) -> None:
        handler, batch = self._handler, self._options.batch
        while (job := inbox.get()) is not None:
            if not job.claimed:  # By the time limit or a stop, before it came here.
                with running_in(job.context):
                    verdicts = verdicts_of(handler, job.deliveries, batch=batch)
                self._done(job, verdicts)
            self._hand.end(job)

    def submit(self, job: Job) -> None:
        assert job.slot is not None
        self._inboxes[job.slot].put(job)

    def abandon(self, job: Job) -> None:
        pass

    def tell_lost(self, job: Job, message_id: str) -> None:
        pass

    def tell_stopping(self) -> None:
        pass

    def pids(self) -> dict[int, int | None]:
        return {}

    def close(self) -> None:
        for inbox in self._inboxes:
            inbox.put(None)
