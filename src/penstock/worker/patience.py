"""Calls of a store that may be away for a while: tried again, with pauses, until it answers."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TypeVar

from penstock.errors import PenstockError

log = logging.getLogger("penstock.worker")

T = TypeVar("T")

FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 2.0


def patiently(call: Callable[[], T], what: str, give_up: threading.Event) -> T:
    """The call's answer; raises an error that is not retryable, and any once `give_up` is set."""
    pause_s = FIRST_PAUSE_S
    while True:
        try:
            return call()
        except PenstockError as error:
            if not error.retryable:
                raise
            log.warning("%s failed, trying again in %.2f s: %s", what, pause_s, error)
            if give_up.wait(pause_s):
                raise
        pause_s = min(pause_s * 2, LONGEST_PAUSE_S)
