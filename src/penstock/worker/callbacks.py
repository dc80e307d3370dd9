"""Calls what the user wants to hear about; nothing that happens in there disturbs the worker."""

from __future__ import annotations

import logging
from collections.abc import Callable

from penstock.message import Delivery
from penstock.worker.stats import End

log = logging.getLogger("penstock.worker")


class Callbacks:
    """Every delivery that `on_start` was called for has exactly one of the others called, at its end."""

    def __init__(
        self,
        on_start: Callable[[Delivery], object] | None,
        on_success: Callable[[Delivery], object] | None,
        on_failure: Callable[[Delivery, str], object] | None,
        on_timeout: Callable[[Delivery], object] | None,
    ) -> None:
        self._on_start = on_start
        self._on_success = on_success
        self._on_failure = on_failure
        self._on_timeout = on_timeout

    def start(self, deliveries: list[Delivery]) -> None:
        if self._on_start is not None:
            for delivery in deliveries:
                _call(self._on_start, delivery)

    def end(self, delivery: Delivery, end: End, reason: str, started: bool) -> None:
        """How it ended. The reason is not logged: it may hold what a user's error says."""
        if end == "done":
            if self._on_success is not None:
                _call(self._on_success, delivery)
            return
        log.info(
            "message %s of queue %r: %s, attempt %d", delivery.id, delivery.queue, end, delivery.attempts
        )
        if end == "timed out":
            if self._on_timeout is not None:
                _call(self._on_timeout, delivery)
        elif started and self._on_failure is not None:
            _call(self._on_failure, delivery, reason)


def _call(callback: Callable[..., object], delivery: Delivery, *more: str) -> None:
    try:
        callback(delivery, *more)
    except BaseException as error:  # noqa: BLE001 (whatever it is, the work goes on)
        # Its type alone: what it says may repeat a payload.
        name = getattr(callback, "__name__", "callback")
        log.error("%s failed for message %s: %s", name, delivery.id, type(error).__name__)
