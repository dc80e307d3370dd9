"""Threads of a test: their results and errors come back, and none is waited for without a limit."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")

#: Only a test that fails waits so long.
LIMIT_S = 30.0


class Background(Generic[T]):
    """A call in a thread of its own, started at once."""

    def __init__(self, call: Callable[[], T]) -> None:
        self._call = call
        self._results: list[T] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._results.append(self._call())
        except BaseException as error:  # noqa: BLE001
            self._error = error

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def result(self) -> T:
        """What the call returned; what it raised is raised here."""
        self._thread.join(LIMIT_S)
        assert not self._thread.is_alive(), f"a thread did not end within {LIMIT_S:.0f} s"
        if self._error is not None:
            raise self._error
        return self._results[0]


def together(*calls: Callable[[], T]) -> list[T]:
    """Run these at the same time; their results, in order."""
    start = threading.Barrier(len(calls))

    def behind_the_barrier(call: Callable[[], T]) -> Callable[[], T]:
        def run() -> T:
            start.wait(LIMIT_S)
            return call()

        return run

    threads = [Background(behind_the_barrier(call)) for call in calls]
    return [thread.result() for thread in threads]


def wait_until(condition: Callable[[], bool]) -> None:
    """Return as soon as another thread has made it so."""
    deadline_s = time.monotonic() + LIMIT_S
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < deadline_s, f"not so after {LIMIT_S:.0f} s"
        pause.wait(0.0002)
