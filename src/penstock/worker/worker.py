"""Worker: runs a handler on the messages of queues, from the first lease to the last answer."""

from __future__ import annotations

import logging
import queue
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from types import TracebackType
from typing import Any

from penstock.clock import NS_PER_S, Clock, SystemClock, to_ns
from penstock.errors import InvalidConfig
from penstock.message import Delivery
from penstock.penstock import Penstock
from penstock.worker.callbacks import Callbacks
from penstock.worker.dispatch import Dispatcher
from penstock.worker.hand import Hand
from penstock.worker.job import Job
from penstock.worker.options import Mode, checked_options
from penstock.worker.renewal import Renewal
from penstock.worker.runner import Runner
from penstock.worker.settle import Settler
from penstock.worker.stats import State, Tally, WorkerStats, slot_stats
from penstock.worker.verdict import Verdict
from penstock.worker.watch import NEVER_NS, Watch

log = logging.getLogger("penstock.worker")

STOPPED = "the worker stopped before it was done"
#: What a stop grants a store that does not answer, beyond the time that handlers have.
LAST_WORDS_S = 5.0
#: How late a signal is heard at worst.
HEARING_S = 0.5
_ENDED = "ended"


class Worker:
    """Leases from one or more queues, calls the handler, and tells the queues what became of it.

    `handler(delivery)`: returning acks, an exception nacks with its traceback as the reason. With
    `batch_size` above 1 it is `handler(deliveries)` and may answer for each of them. It is a function, or
    `"module:function"`. A worker is used once: `run`, or `start` and `stop`, or as a context manager.
    """

    def __init__(
        self,
        ps: Penstock,
        queues: str | list[str] | tuple[str, ...],
        handler: Callable[..., Any] | str,
        *,
        concurrency: int = 1,
        mode: Mode | None = None,
        batch_size: int = 1,
        lease_s: float | None = None,
        time_limit_s: float | None = None,
        stop_timeout_s: float = 10.0,
        consumer: str | None = None,
        group: str | None = None,
        on_start: Callable[[Delivery], object] | None = None,
        on_success: Callable[[Delivery], object] | None = None,
        on_failure: Callable[[Delivery, str], object] | None = None,
        on_timeout: Callable[[Delivery], object] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._options = options = checked_options(
            queues,
            handler,
            mode,
            concurrency=concurrency,
            batch_size=batch_size,
            lease_s=lease_s,
            time_limit_s=time_limit_s,
            stop_timeout_s=stop_timeout_s,
            consumer=consumer,
            group=group,
        )
        self._clock = clock or SystemClock()
        self._queues = [ps.queue(name) for name in options.queues]
        self._callbacks = Callbacks(on_start, on_success, on_failure, on_timeout)
        self._hand = Hand()
        self._tally = Tally(self._clock)
        self._stopping = threading.Event()
        max_attempts = {one.name: one.max_attempts for one in ps.queues() if one.name in options.queues}
        self._settler = Settler(self._hand, self._tally, max_attempts, self._callbacks.end, self._fail)
        self._runner = self._make_runner()
        renewal = Renewal(self._clock, self._runner.tell_lost, self._fail)
        self._renewer = Watch("renewer", self._clock, self._hand, renewal.due, renewal.act, self._fail)
        self._limiter = Watch("limiter", self._clock, self._hand, _deadline_ns, self._time_out, self._fail)
        self._dispatcher = Dispatcher(
            options, self._clock, self._hand, self._stopping, self._begin, self._renewer.notice, self._return
        )
        self._dispatchers: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._state: State = "new"
        self._failure: BaseException | None = None
        self._stopper: threading.Thread | None = None
        #: For `run`: names of signals, and the end. Not a lock: a signal may interrupt whoever holds it.
        self._news: queue.SimpleQueue[str] = queue.SimpleQueue()

    def __repr__(self) -> str:
        options = self._options
        queues = ", ".join(map(repr, options.queues))
        return f"Worker({queues}, {options.reference}, {options.mode} × {options.concurrency})"

    # -- life

    def run(self, until_empty: bool = False) -> WorkerStats:
        """Work until SIGTERM or SIGINT, or `stop` from another thread; a second signal waits for nothing.

        With `until_empty`: until nothing is ready and nothing is running; delayed messages are left alone.
        Signals are handled if this is the main thread. An error that ended the worker is raised.
        """
        with _signals(self._news):
            self._start(until_empty)
            while (news := self._hear()) != _ENDED:
                if self._stopping.is_set():
                    log.warning("%s again: not waiting for handlers", news)
                    self._hand.hurry()
                else:
                    log.info("%s: finishing what is running", news)
                    self._begin_stop(None)
        self.stop()
        return self.stats

    def _hear(self) -> str:
        """Waits in pieces: a signal that comes just before a wait is noted by Python, but does not end it."""
        while True:
            with suppress(queue.Empty):
                return self._news.get(timeout=HEARING_S)

    def start(self) -> None:
        """Work in the background until `stop`."""
        self._start(until_empty=False)

    def stop(self, timeout_s: float | None = None) -> None:
        """Lease nothing more, wait for handlers, give back what is left; raise what had ended the worker.

        Handlers have `timeout_s`, or else the worker's `stop_timeout_s`. Called from a handler or a callback,
        this does not wait.
        """
        stopper = self._begin_stop(timeout_s)
        if self._hand.owns(threading.current_thread()):
            return
        if stopper is not None:
            stopper.join()
        if self._failure is not None:
            raise self._failure

    def __enter__(self) -> Worker:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def stats(self) -> WorkerStats:
        """What it has done so far and what each slot does now."""
        options, counts, now_ns = self._options, self._tally.counts(), self._clock.now_ns()
        in_slots, pids = self._hand.in_slots(), self._runner.pids()
        slots = tuple(
            slot_stats(slot, in_slots.get(slot), now_ns, pids) for slot in range(options.concurrency)
        )
        return WorkerStats(
            state=self._state,
            mode=options.mode,
            queues=options.queues,
            consumer=options.consumer,
            concurrency=options.concurrency,
            batch_size=options.batch_size,
            uptime_s=(now_ns - self._tally.started_at_ns) / NS_PER_S,
            started=counts["started"],
            running=sum(slot.messages for slot in slots),
            waiting=sum(len(job.deliveries) for job in self._hand.unsettled() if job.slot is None),
            succeeded=counts["succeeded"],
            failed=counts["failed"],
            timed_out=counts["timed_out"],
            returned=counts["returned"],
            lost=counts["lost"],
            dead=counts["dead"],
            replaced=counts["replaced"],
            rate_per_s=self._tally.rate_per_s(),
            slots=slots,
            failure=None if self._failure is None else str(self._failure),
        )

    # -- starting

    def _make_runner(self) -> Runner:
        # Each mode is imported by those who use it: the command line should not wait for asyncio.
        options = self._options
        if options.mode == "processes":
            from penstock.worker.processes import ProcessRunner

            return ProcessRunner(options, self._hand, self._done, self._tally, self._fail)
        assert options.handler is not None
        if options.mode == "asyncio":
            from penstock.worker.tasks import TaskRunner

            return TaskRunner(options, options.handler, self._hand, self._done, self._fail)
        from penstock.worker.threads import ThreadRunner

        return ThreadRunner(options, options.handler, self._hand, self._done)

    def _start(self, until_empty: bool) -> None:
        with self._lock:
            if self._state != "new":
                raise InvalidConfig(f"this worker is {self._state}, and a worker is used once; make another")
            self._state = "running"
        self._hand.adopt(self._settler).start()
        self._renewer.start()
        if self._options.time_limit_s is not None:
            self._limiter.start()
        try:
            self._runner.start()
        except BaseException as error:  # noqa: BLE001 (raised by `stop`; too many threads, say)
            self._fail(error)
            self.stop()
        alone = len(self._queues) == 1
        if until_empty:
            self._dispatch(partial(self._dispatcher.drain, self._queues))
        else:
            for its_queue in self._queues:
                self._dispatch(partial(self._dispatcher.serve, its_queue, alone))

    def _dispatch(self, work: Callable[[], None]) -> None:
        def dispatch() -> None:
            try:
                work()
            except BaseException as error:  # noqa: BLE001 (a worker that leases nothing must say why)
                self._fail(error)
            else:
                self._begin_stop(None)

        thread = threading.Thread(target=dispatch, name="penstock-worker-dispatcher", daemon=True)
        self._dispatchers.append(thread)
        self._hand.adopt(thread).start()

    # -- what happens to jobs

    def _begin(self, job: Job) -> None:
        """It has a slot."""
        if job.claimed:  # The stop was faster.
            self._hand.end(job)
            return
        self._tally.start(len(job.deliveries))
        self._callbacks.start(job.deliveries)
        if self._options.time_limit_s is not None:
            # From here on: what a callback takes is not the handler's.
            job.deadline_ns = self._clock.now_ns() + to_ns(self._options.time_limit_s)
            self._limiter.notice(job)
        self._runner.submit(job)

    def _done(self, job: Job, verdicts: list[Verdict]) -> None:
        if self._hand.claim(job):
            self._settler.put(job, verdicts)

    def _time_out(self, jobs: list[Job]) -> None:
        limit = Verdict("timed out", f"timed out after {self._options.time_limit_s:g} s")
        for job in jobs:
            if self._hand.claim(job):
                self._runner.abandon(job)
                self._settler.put(job, [limit] * len(job.deliveries))

    def _return(self, job: Job) -> None:
        """It goes back unfinished, to whoever is there to do it now."""
        if self._hand.claim(job):
            self._settler.put(job, [Verdict("returned", STOPPED, 0.0)] * len(job.deliveries))

    # -- stopping

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            first, self._failure = self._failure is None, self._failure or error
        if first:
            log.error("the worker ends: %s: %s", type(error).__name__, error)
        self._begin_stop(None)

    def _begin_stop(self, timeout_s: float | None) -> threading.Thread | None:
        """The thread that stops the worker; there is one at most, whoever asks."""
        with self._lock:
            if self._state == "new":
                self._state = "stopped"
            elif self._state == "running":
                self._state = "stopping"
                wait_s = self._options.stop_timeout_s if timeout_s is None else timeout_s
                self._stopper = threading.Thread(
                    target=self._shut_down, args=(wait_s,), name="penstock-worker-stopper", daemon=True
                )
                self._stopping.set()
                self._hand.close()
                self._stopper.start()
            return self._stopper

    def _shut_down(self, wait_s: float) -> None:
        try:
            self._wind_up(wait_s)
        except BaseException as error:  # Whoever waits for the end must hear of it.
            log.exception("the worker did not end in good order")
            self._failure = self._failure or error
        self._state = "stopped" if self._failure is None else "failed"
        self._news.put(_ENDED)

    def _wind_up(self, wait_s: float) -> None:
        self._runner.tell_stopping()
        self._hand.wait_settled(wait_s)
        for job in self._hand.claim_all():
            if job.slot is not None:
                self._runner.abandon(job)
            self._settler.put(job, [Verdict("returned", STOPPED, 0.0)] * len(job.deliveries))
        for thread in self._dispatchers:
            thread.join()
        self._settler.finish()
        self._settler.join(LAST_WORDS_S)
        self._settler.give_up.set()
        self._settler.join()
        self._renewer.end()
        self._limiter.end()
        self._renewer.join()
        self._runner.close()


def _deadline_ns(job: Job) -> int:
    return NEVER_NS if job.claimed or job.deadline_ns is None else job.deadline_ns


@contextmanager
def _signals(news: queue.SimpleQueue[str]) -> Iterator[None]:
    """SIGTERM and SIGINT become news, if this is the main thread: no other may handle signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def note(number: int, frame: object) -> None:
        news.put(signal.Signals(number).name)

    before = {number: signal.signal(number, note) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)
