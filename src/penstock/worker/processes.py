"""Handlers in processes of their own: started, heard and replaced by one thread."""

from __future__ import annotations

import contextlib
import logging
import selectors
import socket
import threading
from collections.abc import Callable

from penstock.errors import InvalidConfig, PenstockError
from penstock.worker.hand import Hand
from penstock.worker.job import Job
from penstock.worker.options import Options
from penstock.worker.process import Process
from penstock.worker.runner import Done
from penstock.worker.stats import Tally
from penstock.worker.verdict import Verdict
from penstock.worker.wire import Begin, Broken, Finished, FromChild, Lost, Ready, Stopping, Work

log = logging.getLogger("penstock.worker")

DIED = "worker process died"
#: So many processes in a row that end before they are ready are a fault that another try does not mend.
MOST_FALSE_STARTS = 3


class _Place:
    """A slot, the process that is in it now, and the job that the process has or will have."""

    def __init__(self, slot: int) -> None:
        self.slot = slot
        self.process: Process | None = None
        self.job: Job | None = None
        #: The job is with the process, and dies with it; before, it waits for a process that is ready.
        self.sent = False
        #: A job whose process died. The slot is its own until the next process is ready.
        self.bereft: Job | None = None
        self.opened = False


class ProcessRunner:
    """A process for each slot; their parent leases, renews and settles, and runs no code of the user's."""

    def __init__(
        self,
        options: Options,
        hand: Hand,
        done: Done,
        tally: Tally,
        fail: Callable[[BaseException], None],
    ) -> None:
        self._options = options
        self._hand = hand
        self._done = done
        self._tally = tally
        self._fail = fail
        #: Guards the places.
        self._lock = threading.Lock()
        self._places = [_Place(slot) for slot in range(options.concurrency)]
        self._false_starts = 0
        self._closing = False
        self._thread = threading.Thread(target=self._serve, name="penstock-worker-processes", daemon=True)

    # -- called by the worker's other threads

    def start(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._waker, self._wakes = socket.socketpair()
        self._selector.register(self._wakes, selectors.EVENT_READ, None)
        self._thread.start()

    def submit(self, job: Job) -> None:
        assert job.slot is not None
        place = self._places[job.slot]
        with self._lock:
            # Whoever decided about it before this has found nothing here to end: it must not begin now.
            refused, process = job.claimed, place.process
            if not refused:
                place.job = job
                # One that has just died must not cost this job an attempt: it waits for the next process.
                place.sent = process is not None and process.ready and not process.ended
        if refused:
            self._hand.end(job)
        elif place.sent and process is not None:
            process.send(Work(job.deliveries))

    def abandon(self, job: Job) -> None:
        assert job.slot is not None
        place = self._places[job.slot]
        with self._lock:
            if place.job is not job:
                return
            if place.sent and place.process is not None:
                place.process.kill()  # The thread that hears of it does the rest.
                return
            place.job = None
        self._hand.end(job)

    def tell_lost(self, job: Job, message_id: str) -> None:
        assert job.slot is not None
        with self._lock:
            place = self._places[job.slot]
            process = place.process if place.job is job and place.sent else None
        if process is not None:
            process.send(Lost(message_id))

    def tell_stopping(self) -> None:
        with self._lock:
            processes = [place.process for place in self._places if place.process is not None]
        for process in processes:
            process.send(Stopping())

    def pids(self) -> dict[int, int | None]:
        with self._lock:
            return {
                place.slot: place.process.pid if place.process is not None and place.process.ready else None
                for place in self._places
            }

    def close(self) -> None:
        self._closing = True
        with contextlib.suppress(OSError):  # The thread may have ended, by a failure of its own.
            self._waker.send(b"x")
        self._thread.join()

    # -- the thread

    def _serve(self) -> None:
        try:
            for place in self._places:
                self._spawn(place)
            while not self._closing:
                self._turn()
        except BaseException as error:  # noqa: BLE001 (without this thread the worker would wait for ever)
            self._fail(error)
        finally:
            self._end_all()

    def _turn(self) -> None:
        spoke: dict[_Place, bool] = {}
        for key, _ in self._selector.select():
            if (place := key.data) is not None:
                spoke[place] = spoke.get(place, False) or key.fileobj == place.process.death
        for place, dead in spoke.items():
            assert place.process is not None
            frames, closed = place.process.receive()
            for frame in frames:
                self._act(place, frame)
            if dead or closed:
                self._bury(place)

    def _spawn(self, place: _Place) -> None:
        try:
            process = Process()
        except OSError as error:
            raise PenstockError(f"a worker process cannot be started: {error}") from error
        with self._lock:
            place.process = process
        for source in process.sources():
            self._selector.register(source, selectors.EVENT_READ, place)
        process.send(Begin(self._options.reference, self._options.batch))

    def _act(self, place: _Place, frame: FromChild) -> None:
        match frame:
            case Ready():
                self._false_starts = 0
                self._ready(place)
            case Finished(verdicts=verdicts):
                with self._lock:
                    job, place.job, place.sent = place.job, None, False
                if job is not None:
                    self._done(job, verdicts)
                    self._hand.end(job)
            case Broken(reason=reason):
                self._fail(InvalidConfig(f"a worker process cannot use its handler: {reason}"))

    def _ready(self, place: _Place) -> None:
        with self._lock:
            process, job, bereft = place.process, place.job, place.bereft
            assert process is not None
            process.ready, place.bereft, place.sent = True, None, job is not None
            first, place.opened = not place.opened, True
        if job is not None:
            process.send(Work(job.deliveries))
        elif bereft is not None:
            self._hand.end(bereft)
        elif first:
            self._hand.open(place.slot)

    def _bury(self, place: _Place) -> None:
        """Its job goes back at once, and another process takes its place."""
        with self._lock:
            process, place.process, job = place.process, None, None
            if place.sent:
                job, place.job, place.sent, place.bereft = place.job, None, False, place.job
        assert process is not None
        for source in process.sources():
            self._selector.unregister(source)
        how = process.end()
        if job is not None:
            self._done(job, [Verdict("died", f"{DIED} ({how})")] * len(job.deliveries))
        if self._closing or self._hand.closed:
            return
        log.warning("worker process %d of slot %d ended (%s)", process.pid, place.slot, how)
        if not process.ready:
            self._false_starts += 1
        if self._false_starts >= MOST_FALSE_STARTS:
            self._fail(
                InvalidConfig(
                    f"worker processes end before they are ready ({how}, {self._false_starts} in a row); "
                    f"import the module of {self._options.reference!r} by hand to see why"
                )
            )
            return
        self._tally.replace()
        self._spawn(place)

    def _end_all(self) -> None:
        with self._lock:
            processes = [place.process for place in self._places if place.process is not None]
            for place in self._places:
                place.process = None
        for process in processes:
            process.hang_up()
        for process in processes:
            process.end_in_peace()
        self._selector.close()
        self._waker.close()
        self._wakes.close()
