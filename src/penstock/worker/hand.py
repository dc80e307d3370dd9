"""What the worker has in hand: its slots, the jobs in them, and who may decide about a job."""

from __future__ import annotations

import heapq
import threading
from collections.abc import Sequence

from penstock.worker.job import Job


class Hand:
    """Shared by the worker's threads; every change of a job or slot goes through here."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        #: A heap: the lowest number first, so that little work stays in few slots.
        self._free: list[int] = []
        self._in_slots: dict[int, Job] = {}
        self._unsettled: dict[Job, None] = {}
        self._closed = False
        self._hurried = False
        self._settlements = 0
        self._threads: set[threading.Thread] = set()

    def adopt(self, thread: threading.Thread) -> threading.Thread:
        """A thread of this worker's: it must not be made to wait for the worker's end."""
        self._threads.add(thread)
        return thread

    def owns(self, thread: threading.Thread) -> bool:
        return thread in self._threads

    # -- slots

    def open(self, slot: int) -> None:
        """A slot can take a job."""
        with self._changed:
            heapq.heappush(self._free, slot)
            self._changed.notify_all()

    def take(self, most: int | None = None) -> list[int]:
        """Free slots, as soon as there is one; none when no more jobs are wanted."""
        with self._changed:
            while not self._free and not self._closed:
                self._changed.wait()
            if self._closed:
                return []
            count = len(self._free) if most is None else min(most, len(self._free))
            return [heapq.heappop(self._free) for _ in range(count)]

    def give_back(self, slots: Sequence[int]) -> None:
        """Slots that were taken and not needed."""
        if slots:
            with self._changed:
                for slot in slots:
                    heapq.heappush(self._free, slot)
                self._changed.notify_all()

    # -- jobs

    def hold(self, jobs: Sequence[Job]) -> None:
        """Leased: from now on renewed, until they are settled."""
        with self._changed:
            for job in jobs:
                self._unsettled[job] = None

    def place(self, job: Job, slot: int, started_at_ns: int) -> bool:
        """The job starts in a slot, unless it is to go back."""
        with self._changed:
            if self._closed or job.claimed:
                heapq.heappush(self._free, slot)
                return False
            job.slot, job.started_at_ns = slot, started_at_ns
            self._in_slots[slot] = job
            return True

    def claim(self, job: Job) -> bool:
        """Whether the caller is the first to decide what becomes of the job."""
        with self._changed:
            first, job.claimed = not job.claimed, True
            return first

    def claim_all(self) -> list[Job]:
        """Whatever nobody has decided about."""
        with self._changed:
            found = [job for job in self._unsettled if not job.claimed]
            for job in found:
                job.claimed = True
            return found

    def end(self, job: Job) -> None:
        """Its slot can run another, once the queue knows of this one."""
        with self._changed:
            job.ended = True
            self._release(job)

    def settle(self, jobs: Sequence[Job]) -> None:
        """The queue has been told, or will not be."""
        with self._changed:
            for job in jobs:
                job.settled = True
                self._unsettled.pop(job, None)
                self._release(job)
            self._settlements += 1
            self._changed.notify_all()

    def _release(self, job: Job) -> None:
        # Both: a handler past its time limit is settled, and still has its thread.
        if job.ended and job.settled and job.slot is not None:
            del self._in_slots[job.slot]
            heapq.heappush(self._free, job.slot)
            self._changed.notify_all()

    # -- looking

    def unsettled(self) -> list[Job]:
        with self._changed:
            return list(self._unsettled)

    def in_slots(self) -> dict[int, Job]:
        with self._changed:
            return dict(self._in_slots)

    @property
    def settlements(self) -> int:
        """Grows whenever something was settled."""
        return self._settlements

    @property
    def closed(self) -> bool:
        return self._closed

    # -- the end

    def close(self) -> None:
        """No more jobs."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def hurry(self) -> None:
        """Whoever waits for handlers waits no longer."""
        with self._changed:
            self._hurried = True
            self._changed.notify_all()

    def wait_settled(self, timeout_s: float) -> None:
        """Until nothing is left, it takes too long, or someone is in a hurry."""
        with self._changed:
            self._changed.wait_for(lambda: not self._unsettled or self._hurried, timeout_s)

    def wait_settlement(self, after: int) -> None:
        """Until something was settled since `settlements` was that, or no more jobs are wanted."""
        with self._changed:
            self._changed.wait_for(lambda: self._settlements != after or self._closed)
