"""A job: the deliveries that one call of the handler gets, and what the handler can ask while it runs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from penstock.message import Delivery
from penstock.queue import Queue

#: A lease is renewed when so much of it has passed: two tries are left if the first one fails.
RENEW_AFTER = 1 / 3


class Context:
    """What a running handler can ask: is its work still wanted?"""

    __slots__ = ("_lost", "_stopping")

    def __init__(self, stopping: threading.Event) -> None:
        self._stopping = stopping
        self._lost: frozenset[str] = frozenset()

    @property
    def lost(self) -> bool:
        """A lease of this call is over: somebody else may be at work on its message."""
        return bool(self._lost)

    @property
    def lost_ids(self) -> frozenset[str]:
        """Which messages of the call are lost."""
        return self._lost

    @property
    def stopping(self) -> bool:
        """The worker has been told to stop: what is not done within its `stop_timeout_s` goes back."""
        return self._stopping.is_set()

    def lose(self, message_id: str) -> None:
        self._lost |= {message_id}


_current: ContextVar[Context] = ContextVar("penstock_worker_context")


def context() -> Context:
    """The context of the handler call that this is called from; `LookupError` anywhere else."""
    return _current.get()


@contextmanager
def running_in(its: Context) -> Iterator[None]:
    """For the length of a handler call, `context()` is this."""
    token = _current.set(its)
    try:
        yield
    finally:
        _current.reset(token)


class Job:
    """Deliveries of one queue that one handler call gets. Its fields are guarded by `Hand`."""

    __slots__ = (
        "claimed",
        "context",
        "deadline_ns",
        "deliveries",
        "ended",
        "lease_ns",
        "queue",
        "renew_at_ns",
        "settled",
        "slot",
        "started_at_ns",
    )

    def __init__(self, queue: Queue, deliveries: list[Delivery], context: Context) -> None:
        first = deliveries[0]
        self.queue = queue
        self.deliveries = deliveries
        self.context = context
        self.lease_ns = first.lease_expires_at_ns - first.leased_at_ns
        self.renew_at_ns = first.leased_at_ns + round(self.lease_ns * RENEW_AFTER)
        self.slot: int | None = None
        self.started_at_ns: int | None = None
        self.deadline_ns: int | None = None
        #: It is decided what becomes of it: by the handler, the time limit or the stop, whichever was first.
        self.claimed = False
        #: The queue has been told.
        self.settled = False
        #: The handler has returned.
        self.ended = False
