"""Interrupts, at every place where a signal handler can raise: after a call, and at the start of a function.

A profiler is told of just these places, and an exception that it raises comes up there.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import TypeVar

import sortedcontainers  # type: ignore[import-untyped,unused-ignore]

import penstock

#: Where it may come: in the code of Penstock; and in what its memory store is written in.
EMBEDDED = (str(Path(penstock.__file__).parent / "backends"),)
MEMORY = (str(Path(penstock.__file__).parent / "kv"), str(Path(sortedcontainers.__file__).parent))

T = TypeVar("T")


class Interrupt(BaseException):
    """What Ctrl-C raises, by another name: nothing else in the test handles it."""


class Interrupter:
    """Raises at the n-th place inside some folders that a call comes by."""

    def __init__(self, at: int, within: tuple[str, ...] = EMBEDDED) -> None:
        self._left = at
        self._within = within

    @property
    def over(self) -> bool:
        """Whether the call was through before its place came."""
        return self._left > 0

    def run(self, call: Callable[[], T]) -> T | None:
        """The call's answer; None if it was interrupted."""
        before = sys.getprofile()
        sys.setprofile(self._event)
        try:
            return call()
        except Interrupt:
            return None
        finally:
            sys.setprofile(before)

    def _event(self, frame: FrameType, event: str, _: object) -> None:
        if event in ("call", "c_return") and frame.f_code.co_filename.startswith(self._within):
            self._left -= 1
            if self._left == 0:
                raise Interrupt
