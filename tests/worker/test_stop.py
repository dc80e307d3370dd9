"""A worker that is told to stop gives everything unfinished back at once."""

from __future__ import annotations

import asyncio
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import Delivery, InvalidConfig, NewMessage, Penstock, PenstockError, Queue, Worker
from penstock.testing.background import Background, wait_until
from penstock.worker.worker import STOPPED
from tests.worker.conftest import MODES, in_mode
from tests.worker.handlers import notes, obey, order
from tests.worker.rig import Program, lives

every_mode = pytest.mark.parametrize("mode", MODES)

#: Far beyond what any of these tests takes: who has the message back did not wait for its lease.
LONG_S = 600.0


def make_store(tmp_path: Path, *payloads: bytes) -> Path:
    store = tmp_path / "store"
    with penstock.open(store) as ps:
        ps.create_queue("q", lease_s=LONG_S).enqueue_many([NewMessage(payload) for payload in payloads])
    return store


@every_mode
def test_sigterm_returns_unfinished_work_at_once(mode: str, tmp_path: Path, log: Path) -> None:
    store = make_store(tmp_path, *[order(do="sleep", for_s=LONG_S, log=log)] * 5)
    options: dict[str, Any] = {"handler": "obey", "mode": mode, "concurrency": 2, "stop_timeout_s": 0.2}
    with Program(store, **options) as program:
        wait_until(lambda: len(notes(log)) == 2)
        program.signal()
        if mode == "asyncio":
            # A coroutine that is cancelled ends; the thread that it waits for would keep the program.
            wait_until(lambda: "INFO:penstock.worker:SIGTERM: finishing what is running" in program.logged)
            wait_until(lambda: len([line for line in program.logged if "returned" in line]) == 2)
            program.kill()
        else:
            assert program.wait()["returned"] == 2
    with penstock.open(store) as ps:
        q = ps.queue("q")
        assert (q.stats().leased, q.stats().ready) == (0, 5)
        again = q.lease(10)
        assert sorted(delivery.attempts for delivery in again) == [1, 1, 1, 2, 2]
        assert [event.reason for event in q.events() if event.kind == "nacked"] == [STOPPED] * 2
    if mode == "processes":
        assert not any(lives(int(line.split()[-1])) for line in notes(log))


@every_mode
def test_a_message_that_a_stop_returned_before_its_handler_was_called_is_not_handled(
    mode: str, ps: Penstock, q: Queue, log: Path
) -> None:
    q.enqueue(order(log=log))
    starting, returned = threading.Event(), threading.Event()

    def on_start(delivery: Delivery) -> None:
        starting.set()
        assert returned.wait(LONG_S)

    worker = Worker(
        ps,
        "q",
        concurrency=2,
        stop_timeout_s=0,
        on_start=on_start,
        on_failure=lambda *_: returned.set(),
        **in_mode(mode, obey),
    )
    worker.start()
    assert starting.wait(LONG_S)
    worker.stop()
    threading.Event().wait(0.3)  # A thread or process that begins wrongly would do so now.
    assert notes(log) == []
    assert q.stats().ready == 1


@every_mode
def test_sigterm_lets_running_handlers_finish(mode: str, tmp_path: Path, log: Path) -> None:
    store = make_store(tmp_path, order(do="wait until stopping", log=log), order(log=log))
    with Program(store, handler="obey", mode=mode) as program:
        program.wait_started(1)
        program.signal()
        assert program.wait() == {"succeeded": 1, "returned": 0}
    with penstock.open(store) as ps:
        assert ps.queue("q").stats().ready == 1


def test_a_signal_that_interrupts_no_wait_is_heard(tmp_path: Path) -> None:
    store = make_store(tmp_path, order(do="be signalled"))
    with Program(store, handler="obey", mode="threads") as program:
        assert program.wait() == {"succeeded": 1, "returned": 0}


@pytest.mark.parametrize("first", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_stops_at_once(first: signal.Signals, tmp_path: Path, log: Path) -> None:
    store = make_store(tmp_path, order(do="sleep", for_s=LONG_S, log=log))
    with Program(store, handler="obey", mode="threads", stop_timeout_s=LONG_S) as program:
        wait_until(lambda: len(notes(log)) == 1)
        program.signal(first)
        wait_until(lambda: any("finishing what is running" in line for line in program.logged))
        program.signal(first)
        assert program.wait() == {"succeeded": 0, "returned": 1}


def test_an_idle_worker_ends_at_a_signal(tmp_path: Path) -> None:
    store = make_store(tmp_path, order())
    with Program(store, handler="obey", mode="processes") as program:
        program.wait_started(1)
        program.signal()
        assert program.wait() == {"succeeded": 1, "returned": 0}


@every_mode
def test_stop_from_the_program_returns_what_is_unfinished(
    mode: str, ps: Penstock, q: Queue, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    q.enqueue(order(do="wait", file=gate))
    failures: list[str] = []
    worker = Worker(ps, "q", on_failure=lambda _, reason: failures.append(reason), **in_mode(mode, obey))
    worker.start()
    wait_until(lambda: worker.stats.running == 1)
    stopping = Background(lambda: worker.stop(timeout_s=0))
    wait_until(lambda: q.stats().ready == 1)
    gate.touch()
    stopping.result()
    assert (worker.stats.state, worker.stats.returned, failures) == ("stopped", 1, [STOPPED])
    (again,) = q.lease()
    assert again.attempts == 2


def test_a_stop_cancels_the_tasks_that_it_does_not_wait_for(ps: Penstock, q: Queue) -> None:
    q.enqueue(b"")
    ends: list[str] = []
    started = threading.Event()

    async def handle(delivery: Delivery) -> None:
        started.set()
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            await asyncio.sleep(0.01)
            ends.append("tidied up")
            raise

    worker = Worker(ps, "q", handle)
    worker.start()
    assert started.wait(30)
    worker.stop(timeout_s=0)
    assert ends == ["tidied up"]
    assert q.stats().ready == 1


def test_leaving_the_context_waits_for_what_is_running(ps: Penstock, q: Queue) -> None:
    q.enqueue_many([NewMessage(b"") for _ in range(3)])
    with Worker(ps, "q", lambda _: threading.Event().wait(0.05), concurrency=3) as worker:
        wait_until(lambda: worker.stats.started == 3)
    assert (worker.stats.succeeded, worker.stats.returned) == (3, 0)


def test_a_message_that_was_leased_for_no_free_slot_goes_back_unstarted(ps: Penstock, q: Queue) -> None:
    other = ps.create_queue("other", lease_s=LONG_S)
    gate = threading.Event()
    started: list[str] = []

    def handle(delivery: Delivery) -> None:
        started.append(delivery.queue)
        gate.wait(30)

    worker = Worker(ps, ["q", "other"], handle, on_failure=lambda *_: started.append("failure"))
    worker.start()
    # Both queues are waited on; the first message takes the only slot, the second is leased for none.
    wait_until(lambda: worker.stats.state == "running")
    threading.Event().wait(0.1)
    q.enqueue(b"")
    wait_until(lambda: worker.stats.running == 1)
    other.enqueue(b"")
    wait_until(lambda: worker.stats.waiting == 1)
    stopping = Background(worker.stop)
    wait_until(lambda: other.stats().ready == 1)
    assert other.peek()[0].reason == STOPPED
    gate.set()
    stopping.result()
    assert started == ["q"]
    assert (worker.stats.succeeded, worker.stats.returned, worker.stats.waiting) == (1, 1, 0)


def test_a_message_that_is_leased_while_the_worker_stops_goes_back_unstarted(
    ps: Penstock, q: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = q._backend.lease
    leasing, go = threading.Event(), threading.Event()

    def late(*args: Any) -> Any:
        leasing.set()
        assert go.wait(30)
        return lease(*args)

    monkeypatch.setattr(q._backend, "lease", late)
    q.enqueue(b"")
    worker = Worker(ps, "q", lambda _: None)
    worker.start()
    assert leasing.wait(30)
    stopping = Background(worker.stop)
    wait_until(lambda: worker.stats.state == "stopping")
    go.set()
    stopping.result()
    assert (worker.stats.started, worker.stats.returned) == (0, 1)
    assert (q.peek()[0].attempts, q.peek()[0].reason) == (1, STOPPED)


def test_a_worker_is_used_once(ps: Penstock, q: Queue) -> None:
    worker = Worker(ps, "q", lambda _: None)
    worker.run(until_empty=True)
    with pytest.raises(InvalidConfig, match="stopped, and a worker is used once"):
        worker.start()


def test_a_worker_that_never_started_stops(ps: Penstock, q: Queue) -> None:
    worker = Worker(ps, "q", lambda _: None)
    worker.stop()
    worker.stop()
    assert worker.stats.state == "stopped"


def test_run_in_another_thread_ends_by_stop(ps: Penstock, q: Queue) -> None:
    worker = Worker(ps, "q", lambda _: None)
    run = Background(worker.run)
    q.enqueue(b"")
    wait_until(lambda: worker.stats.succeeded == 1)
    worker.stop()
    assert run.result().state == "stopped"


@pytest.mark.parametrize("mode", ["threads", "asyncio"])
def test_a_handler_may_stop_its_worker(mode: str, ps: Penstock, q: Queue) -> None:
    q.enqueue_many([NewMessage(b"") for _ in range(5)])

    def stop(delivery: Delivery) -> None:
        worker.stop()

    async def stop_on_loop(delivery: Delivery) -> None:
        worker.stop()

    worker = Worker(ps, "q", stop if mode == "threads" else stop_on_loop)
    stats = worker.run()
    assert (stats.succeeded, stats.returned, q.stats().ready) == (1, 0, 4)


@pytest.mark.parametrize("callback", ["on_start", "on_success", "on_failure", "on_timeout"])
def test_a_callback_may_stop_its_worker(callback: str, ps: Penstock, q: Queue) -> None:
    deeds = {"on_failure": order(do="fail"), "on_timeout": order(do="sleep", for_s=0.3)}
    q.enqueue(deeds.get(callback, order()))
    called: list[str] = []

    def stop(*_: object) -> None:
        called.append(callback)
        worker.stop()

    worker = Worker(ps, "q", obey, time_limit_s=0.1 if callback == "on_timeout" else 30, **{callback: stop})  # type: ignore[arg-type] # one of them
    assert worker.run().state == "stopped"
    assert called == [callback]


def test_a_worker_that_cannot_start_its_threads_says_so(
    ps: Penstock, q: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "penstock-worker-1":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    worker = Worker(ps, "q", lambda _: None, concurrency=3)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        worker.start()
    assert worker.stats.state == "failed"


def test_a_handler_that_stops_the_loop_ends_the_worker_with_an_error(ps: Penstock, q: Queue) -> None:
    q.enqueue_many([NewMessage(b""), NewMessage(b"")])

    async def stop(delivery: Delivery) -> None:
        asyncio.get_running_loop().stop()

    with pytest.raises(PenstockError, match="stopped the worker's event loop"):
        Worker(ps, "q", stop, stop_timeout_s=0.2).run()
    assert q.stats().leased == 0


def threads_of_workers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("penstock-worker")]


def test_no_thread_or_process_is_left_behind(ps: Penstock, q: Queue) -> None:
    pids: list[int] = []
    for mode in MODES:
        with Worker(ps, "q", concurrency=2, **in_mode(mode, obey)) as worker:
            q.enqueue(order())
            wait_until(lambda worker=worker: worker.stats.succeeded == 1)  # type: ignore[misc] # its own
            pids += [slot.pid for slot in worker.stats.slots if slot.pid is not None]
    assert pids
    wait_until(lambda: not any(lives(pid) for pid in pids) and not threads_of_workers())
