"""How far Spark is with what it does now: told now and then, from a thread, to whoever shows it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType

from pyspark.sql import SparkSession

#: (what, done, total)
Progress = Callable[[str, int, int], None]

EVERY_S = 0.25


class Watch:
    """While it is open, tells how many tasks of what runs are done; call it to say what they are for."""

    def __init__(self, spark: SparkSession, told: Progress, what: str) -> None:
        self._tracker = spark.sparkContext.statusTracker()
        self._told = told
        self._what = what
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="penstock-watch", daemon=True)

    def __call__(self, what: str, done: int, total: int) -> None:
        self._what = f"{what} ({min(done + 1, total)} of {total})"

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(EVERY_S):
            stages = [self._tracker.getStageInfo(stage) for stage in self._tracker.getActiveStageIds()]
            done = sum(stage.numCompletedTasks for stage in stages if stage is not None)
            total = sum(stage.numTasks for stage in stages if stage is not None)
            self._told(self._what, done, total)
