"""The worker's numbers: counted as things happen, shown as a snapshot."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Iterable
from typing import Literal

import msgspec

from penstock.clock import NS_PER_S, Clock
from penstock.worker.job import Job
from penstock.worker.verdict import Kind

#: The rate is that of so many seconds before the snapshot.
RATE_OVER_S = 10

End = Kind | Literal["lost"]
State = Literal["new", "running", "stopping", "stopped", "failed"]

_COUNTED: dict[str, str] = {
    "done": "succeeded",
    "failed": "failed",
    "rejected": "failed",
    "died": "failed",
    "timed out": "timed_out",
    "returned": "returned",
    "lost": "lost",
}


class SlotStats(msgspec.Struct, frozen=True, kw_only=True):
    """One place for a handler call.

    `overdue`: past its time limit, or lost, and still running. `starting`: its process is not ready yet.
    """

    slot: int
    doing: Literal["idle", "running", "overdue", "starting"]
    queue: str = ""
    message_id: str = ""
    messages: int = 0
    attempts: int = 0
    for_s: float = 0.0
    pid: int | None = None


class WorkerStats(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker has done and is doing.

    Counts are of deliveries. Each ends in one of `succeeded`, `failed`, `timed_out`, `returned` and `lost`.
    """

    state: State
    mode: str
    queues: tuple[str, ...]
    consumer: str
    concurrency: int
    batch_size: int
    uptime_s: float
    #: Handed to a handler.
    started: int
    #: In a handler now.
    running: int
    #: Leased, and waiting for a slot.
    waiting: int
    succeeded: int
    #: The handler raised or rejected it, or its process died.
    failed: int
    timed_out: int
    #: Given back unfinished by a stop.
    returned: int
    #: The lease was over before the queue could be told.
    lost: int
    #: Of all failures, those after which the message is not tried again.
    dead: int
    #: Handler processes that ended and were replaced.
    replaced: int
    #: Finished deliveries a second, of the last ten seconds.
    rate_per_s: float
    slots: tuple[SlotStats, ...]
    #: Why the worker has ended by itself.
    failure: str | None = None


class Tally:
    """Counts. Safe to call from any thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        #: second -> deliveries that ended in it, oldest first.
        self._by_second: deque[list[int]] = deque(maxlen=RATE_OVER_S + 1)
        self.started_at_ns = clock.now_ns()

    def start(self, deliveries: int) -> None:
        with self._lock:
            self._counts["started"] += deliveries

    def replace(self) -> None:
        with self._lock:
            self._counts["replaced"] += 1

    def end(self, ends: Iterable[tuple[End, bool]]) -> None:
        """How each delivery ended, and whether its message is dead."""
        second = self._clock.now_ns() // NS_PER_S
        with self._lock:
            ended = 0
            for end, dead in ends:
                self._counts[_COUNTED[end]] += 1
                self._counts["dead"] += dead
                ended += 1
            if not self._by_second or self._by_second[-1][0] != second:
                self._by_second.append([second, 0])
            self._by_second[-1][1] += ended

    def counts(self) -> Counter[str]:
        with self._lock:
            return self._counts.copy()

    def rate_per_s(self) -> float:
        now_ns = self._clock.now_ns()
        since_s = now_ns / NS_PER_S - RATE_OVER_S
        over_s = min(RATE_OVER_S, (now_ns - self.started_at_ns) / NS_PER_S)
        with self._lock:
            ended = sum(count for second, count in self._by_second if second >= since_s)
        return ended / over_s if over_s > 0 else 0.0


def slot_stats(slot: int, job: Job | None, now_ns: int, pids: dict[int, int | None]) -> SlotStats:
    pid = pids.get(slot)
    if pid is None and slot in pids:
        return SlotStats(slot=slot, doing="starting")
    if job is None or job.started_at_ns is None:
        return SlotStats(slot=slot, doing="idle", pid=pid)
    first = job.deliveries[0]
    return SlotStats(
        slot=slot,
        doing="overdue" if job.settled or job.context.lost else "running",
        queue=job.queue.name,
        message_id=first.id,
        messages=len(job.deliveries),
        attempts=first.attempts,
        for_s=(now_ns - job.started_at_ns) / NS_PER_S,
        pid=pid,
    )
