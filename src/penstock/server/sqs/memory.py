"""What a server remembers while it runs, within bounds: first receives, attempts to receive, purges."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from penstock.clock import NS_PER_S, Clock
from penstock.message import Delivery
from penstock.server.sqs.errors import SqsError

#: Messages whose first receive is known, and attempts whose answer is.
MOST_FIRSTS = 100_000
MOST_ATTEMPTS = 10_000
#: How long an attempt to receive may be repeated, and how long a queue is purged.
ATTEMPT_NS = 300 * NS_PER_S
PURGE_NS = 60 * NS_PER_S

#: Queue, who asks, and what it calls its attempt.
Attempt = tuple[str, str, str]
Answer = asyncio.Future[Sequence[Delivery]]


class Memory:
    """Used on one event loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._firsts: dict[bytes, int] = {}
        self._attempts: dict[Attempt, tuple[int, Answer]] = {}
        self._purges: dict[str, int] = {}

    # -- first receives

    def first_ns(self, one: Delivery) -> int:
        """When the message was first received; of one that is not remembered, this time."""
        first_ns = self._firsts.get(one.raw_id)
        if first_ns is None or one.attempts == 1:
            first_ns = self._firsts[one.raw_id] = one.leased_at_ns
            if len(self._firsts) > MOST_FIRSTS:
                del self._firsts[next(iter(self._firsts))]
        return first_ns

    def deleted(self, raw_id: bytes) -> None:
        self._firsts.pop(raw_id, None)

    # -- attempts to receive

    def attempt(self, attempt: Attempt) -> Answer | None:
        """What was answered to it, or is about to be; None if it is new, or too old."""
        since_ns, answer = self._attempts.get(attempt, (0, None))
        return answer if self._clock.now_ns() - since_ns < ATTEMPT_NS else None

    def begin(self, attempt: Attempt) -> Answer:
        """Whoever repeats it from now on is answered by this."""
        self._attempts.pop(attempt, None)
        answer: Answer = asyncio.get_running_loop().create_future()
        self._attempts[attempt] = self._clock.now_ns(), answer
        if len(self._attempts) > MOST_ATTEMPTS:
            del self._attempts[next(iter(self._attempts))]
        return answer

    # -- purges

    @contextmanager
    def purging(self, queue: str) -> Iterator[None]:
        now_ns = self._clock.now_ns()
        self._purges = {name: at_ns for name, at_ns in self._purges.items() if now_ns - at_ns < PURGE_NS}
        if queue in self._purges:
            raise SqsError(
                "PurgeQueueInProgress", "Only one PurgeQueue operation is allowed every 60 seconds."
            )
        self._purges[queue] = now_ns
        try:
            yield
        except BaseException:
            self._purges.pop(queue, None)
            raise

    def forget(self, queue: str) -> None:
        """It was deleted: one that is made anew has been purged by nobody."""
        self._purges.pop(queue, None)
