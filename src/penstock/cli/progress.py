"""Progress bars: on standard error, only on a terminal, and only for what takes over a second."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING

from penstock.cli.text import neutral

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

DELAY_S = 1.0


class Bar:
    """A callable `(what, done, total)`; a total of 0 says that nobody knows.

    With `counts`, `done` and `total` are shown too: they number things that people count.
    """

    def __init__(self, *, counts: bool = True, shown: bool | None = None) -> None:
        self._counts = counts
        self._shown = sys.stderr.isatty() if shown is None else shown
        self._began = time.monotonic()
        self._progress: Progress | None = None
        self._task: TaskID | None = None

    @property
    def is_begun(self) -> bool:
        """Whether it has been shown."""
        return self._progress is not None

    def __enter__(self) -> Bar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.stop()

    def __call__(self, what: str, done: int, total: int) -> None:
        if not self._shown or time.monotonic() - self._began < DELAY_S:
            return
        what = neutral(what)  # It may name a queue.
        if self._progress is None:
            self._progress = _progress(counts=self._counts)
            self._progress.start()
        if self._task is None:
            self._task = self._progress.add_task(what, total=total or None)
        self._progress.update(self._task, description=what, completed=done, total=total or None)


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """For one call that nobody hears from until it is done: a sign of life after a second."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    status = Console(stderr=True, markup=False, emoji=False).status(neutral(what))
    begin = threading.Timer(DELAY_S, status.start)
    begin.daemon = True
    begin.start()
    try:
        yield
    finally:
        begin.cancel()
        begin.join()
        status.stop()


def _progress(*, counts: bool) -> Progress:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        SpinnerColumn,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    amount = TextColumn("{task.completed:,.0f}", markup=False)
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        *((amount,) if counts else ()),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(elapsed_when_finished=True),
        console=Console(stderr=True),
        transient=True,
    )
