"""The contract of a mode: where handlers run, and how one is made to end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from penstock.worker.job import Job
from penstock.worker.verdict import Verdict

#: The handler has ended; ignored if the job was decided about before.
Done = Callable[[Job, list[Verdict]], None]


class Runner(Protocol):
    """Runs a job in each slot that it has opened. Called from several threads."""

    def start(self) -> None:
        """Open the slots, each as soon as it can take a job."""
        ...

    def submit(self, job: Job) -> None:
        """Run the job in its slot."""
        ...

    def abandon(self, job: Job) -> None:
        """Nobody wants its result any more: end it, as far as that can be done."""
        ...

    def tell_lost(self, job: Job, message_id: str) -> None:
        """The job's context knows already; tell a handler that has another one."""
        ...

    def tell_stopping(self) -> None:
        """The same of the worker's stop."""
        ...

    def pids(self) -> dict[int, int | None]:
        """For each slot that has a process of its own: its number, or None until it is ready."""
        ...

    def close(self) -> None:
        """No handler is running, except those that cannot be ended."""
        ...
