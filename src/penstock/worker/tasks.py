"""Handlers that are coroutines: tasks of one event loop, which has a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable

from penstock.errors import PenstockError
from penstock.worker.hand import Hand
from penstock.worker.job import Job, running_in
from penstock.worker.options import Options
from penstock.worker.runner import Done
from penstock.worker.verdict import AsyncHandler, verdicts_of_async

#: For tasks that take their time over being cancelled.
CLOSING_S = 2.0


class TaskRunner:
    """A task past its time limit is cancelled; one that refuses keeps its slot until it returns."""

    def __init__(
        self,
        options: Options,
        handler: AsyncHandler,
        hand: Hand,
        done: Done,
        fail: Callable[[BaseException], None],
    ) -> None:
        self._options = options
        self._handler = handler
        self._hand = hand
        self._done = done
        self._fail = fail
        self._closing = False
        self._tasks: dict[Job, asyncio.Task[None]] = {}
        self._thread = hand.adopt(
            threading.Thread(target=self._serve, name="penstock-worker-loop", daemon=True)
        )

    def start(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread.start()
        for slot in range(self._options.concurrency):
            self._hand.open(slot)

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        if not self._closing:
            self._fail(
                PenstockError("a handler has stopped the worker's event loop, and nothing can run on it")
            )
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()

    def submit(self, job: Job) -> None:
        self._loop.call_soon_threadsafe(self._begin, job)

    def _begin(self, job: Job) -> None:
        if job.claimed:  # By the time limit or a stop, which found no task to cancel.
            self._hand.end(job)
            return
        task = self._tasks[job] = self._loop.create_task(self._run(job))
        # Not a finally in the task: one that is cancelled before its first step never gets there.
        task.add_done_callback(lambda _: self._forget(job))

    async def _run(self, job: Job) -> None:
        with running_in(job.context):
            verdicts = await verdicts_of_async(self._handler, job.deliveries, batch=self._options.batch)
        self._done(job, verdicts)

    def _forget(self, job: Job) -> None:
        del self._tasks[job]
        self._hand.end(job)

    def abandon(self, job: Job) -> None:
        with contextlib.suppress(RuntimeError):  # A handler has stopped the loop.
            self._loop.call_soon_threadsafe(self._cancel, job)

    def _cancel(self, job: Job) -> None:
        if (task := self._tasks.get(job)) is not None:
            task.cancel()

    def tell_lost(self, job: Job, message_id: str) -> None:
        pass

    def tell_stopping(self) -> None:
        pass

    def pids(self) -> dict[int, int | None]:
        return {}

    def close(self) -> None:
        self._closing = True
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._stop_when_quiet)
        self._thread.join(CLOSING_S)

    def _stop_when_quiet(self) -> None:
        """What is left was cancelled by the stop, and may be tidying up."""
        if self._tasks:
            self._loop.call_later(CLOSING_S / 100, self._stop_when_quiet)
        else:
            self._loop.stop()
