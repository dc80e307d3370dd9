"""A thread that acts on jobs when their time has come: renewals, and time limits."""

from __future__ import annotations

import threading
from collections.abc import Callable

from penstock.clock import Clock
from penstock.worker.hand import Hand
from penstock.worker.job import Job

NEVER_NS = 1 << 63


class Watch(threading.Thread):
    """Calls `act` with the jobs that are due. `due` says when that is; `act` must move or end it."""

    def __init__(
        self,
        name: str,
        clock: Clock,
        hand: Hand,
        due: Callable[[Job], int],
        act: Callable[[list[Job]], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        super().__init__(name=f"penstock-worker-{name}", daemon=True)
        self._clock = clock
        self._hand = hand
        self._due = due
        self._act = act
        self._fail = fail
        self._condition = threading.Condition()
        self._wakes_at_ns = 0
        self._ended = False

    def notice(self, job: Job) -> None:
        """A job that may be due before any other."""
        # Read without the lock: most jobs are due later, and those who start them are many.
        if self._due(job) < self._wakes_at_ns:
            with self._condition:
                self._wakes_at_ns = 0
                self._condition.notify()

    def end(self) -> None:
        with self._condition:
            self._ended = True
            self._condition.notify()

    def run(self) -> None:
        try:
            while not self._ended:
                self._look()
        except BaseException as error:  # noqa: BLE001 (without this thread the worker must not go on)
            self._fail(error)

    def _look(self) -> None:
        with self._condition:
            # Set first: a job that comes while this looks round is noticed, or seen.
            self._wakes_at_ns = NEVER_NS
        now_ns = self._clock.now_ns()
        times = [(self._due(job), job) for job in self._hand.unsettled()]
        if due := [job for at_ns, job in times if at_ns <= now_ns]:
            self._act(due)
        else:
            self._sleep(min((at_ns for at_ns, _ in times), default=NEVER_NS), now_ns)

    def _sleep(self, until_ns: int, now_ns: int) -> None:
        with self._condition:
            if self._ended or self._wakes_at_ns == 0:
                return
            self._wakes_at_ns = until_ns
            self._clock.wait(self._condition, None if until_ns == NEVER_NS else until_ns - now_ns)
