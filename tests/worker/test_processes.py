"""Handler processes: their death costs one attempt of one message, and nothing else."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

import penstock
from penstock import Delivery, InvalidConfig, NewMessage, Penstock, Queue, Worker
from penstock.message import State
from penstock.testing.background import wait_until
from tests.worker import handlers
from tests.worker.handlers import notes, obey, order
from tests.worker.rig import kill


def pid_of(worker: Worker, slot: int = 0) -> int:
    wait_until(lambda: worker.stats.slots[slot].pid is not None)
    pid = worker.stats.slots[slot].pid
    assert pid is not None
    return pid


def test_the_message_of_a_killed_process_goes_back_at_once(ps: Penstock, log: Path, tmp_path: Path) -> None:
    q = ps.create_queue("q", lease_s=600)
    gate = tmp_path / "gate"
    message_id = q.enqueue(order(do="wait", file=gate, log=log))
    with Worker(ps, "q", obey, mode="processes") as worker:
        wait_until(lambda: len(notes(log)) == 1)
        kill(pid_of(worker))
        wait_until(lambda: len(notes(log)) == 2)
        assert q.get(message_id).attempts == 2
        assert [event.reason for event in q.events() if event.reason] == ["worker process died (SIGKILL)"]
        gate.touch()
        wait_until(lambda: worker.stats.succeeded == 1)
    assert (worker.stats.failed, worker.stats.replaced) == (1, 1)


def test_a_message_that_kills_its_process_ends_dead(ps: Penstock, q: Queue) -> None:
    ids = [q.enqueue(order(do=deed)) for deed in ("kill", "exit")]
    q.enqueue_many([NewMessage(order()) for _ in range(20)])
    stats = Worker(ps, "q", obey, mode="processes", concurrency=2).run(until_empty=True)
    assert [q.get(one).state for one in ids] == [State.DEAD] * 2
    assert [q.get(one).reason for one in ids] == [
        "worker process died (SIGKILL)",
        "worker process died (exit status 7)",
    ]
    assert (stats.succeeded, stats.failed, stats.dead) == (20, 6, 2)


def test_an_idle_process_that_dies_is_replaced_and_no_message_pays_for_it(ps: Penstock, q: Queue) -> None:
    with Worker(ps, "q", obey, mode="processes") as worker:
        for turn in range(3):
            q.enqueue(order())
            wait_until(lambda turn=turn: worker.stats.succeeded == turn + 1)  # type: ignore[misc] # its own turn
            kill(pid_of(worker))
            wait_until(lambda turn=turn: worker.stats.replaced == turn + 1)  # type: ignore[misc] # its own turn
    assert (worker.stats.succeeded, worker.stats.failed) == (3, 0)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_a_handler_process_is_left_to_its_parent(
    number: signal.Signals, ps: Penstock, q: Queue, log: Path, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    q.enqueue(order(do="wait", file=gate, log=log))
    with Worker(ps, "q", obey, mode="processes") as worker:
        wait_until(lambda: len(notes(log)) == 1)
        os.kill(pid_of(worker), number)
        gate.touch()
        wait_until(lambda: worker.stats.succeeded + worker.stats.failed == 1)
    assert (worker.stats.succeeded, worker.stats.replaced) == (1, 0)


def test_a_handler_that_cannot_be_imported_is_an_error_with_its_reason(ps: Penstock, q: Queue) -> None:
    q.enqueue(b"")
    worker = Worker(ps, "q", "tests.worker.broken:handle", mode="processes", concurrency=2)
    with pytest.raises(InvalidConfig, match="RuntimeError: no database here"):
        worker.run()
    assert worker.stats.state == "failed"
    assert "no database here" in (worker.stats.failure or "")
    assert q.get(q.peek()[0].id).attempts == 0


def test_a_handler_that_is_not_there_is_an_error(ps: Penstock, q: Queue) -> None:
    with pytest.raises(InvalidConfig, match="nowhere"):
        Worker(ps, "q", "tests.worker.handlers:nowhere", mode="processes").run()


def test_processes_that_end_at_start_are_an_error_and_not_a_loop(ps: Penstock, q: Queue) -> None:
    worker = Worker(ps, "q", "tests.worker.deadly:handle", mode="processes")
    with pytest.raises(InvalidConfig, match=r"end before they are ready \(exit status 9, 3 in a row\)"):
        worker.run()


def test_stop_raises_what_ended_a_worker_in_the_background(ps: Penstock, q: Queue) -> None:
    worker = Worker(ps, "q", "tests.worker.broken:handle", mode="processes")
    worker.start()
    wait_until(lambda: worker.stats.state == "failed")
    with pytest.raises(InvalidConfig, match="no database here"):
        worker.stop()


def local() -> object:
    def inner(delivery: Delivery) -> None: ...

    return inner


@pytest.mark.parametrize("handler", [lambda delivery: None, local(), Path("x").exists])
def test_a_function_that_no_other_process_can_find_is_refused(
    handler: object, ps: Penstock, q: Queue
) -> None:
    with pytest.raises(InvalidConfig, match=r"cannot be imported by another process; put it"):
        Worker(ps, "q", handler, mode="processes")  # type: ignore[arg-type] # that is the point


def show(delivery: Delivery) -> None:
    """What arrived, as text."""
    handlers.note(delivery.headers["log"], repr((delivery.receipt, len(delivery.payload), delivery.headers)))
    handlers.note(delivery.headers["log"], repr([getattr(delivery, name) for name in FIELDS]))


FIELDS = [name for name in Delivery.__struct_fields__ if name not in ("payload", "headers")]


def test_a_delivery_arrives_in_the_process_as_it_was_leased(ps: Penstock, q: Queue, log: Path) -> None:
    seen: list[Delivery] = []
    q.enqueue(
        bytes(range(256)) * 40_000,
        headers={"log": str(log), "ü": "ß\x00"},
        fairness_key="tenant",
        weight=3,
        priority=7,
        ttl_s=600,
        dedup_id="one",
    )
    Worker(ps, "q", show, mode="processes", on_start=seen.append).run(until_empty=True)
    (one,) = seen
    assert notes(log) == [
        repr((one.receipt, len(one.payload), one.headers)),
        repr([getattr(one, name) for name in FIELDS]),
    ]


def list_open_files(delivery: Delivery) -> None:
    for name in os.listdir("/proc/self/fd"):
        try:
            handlers.note(delivery.headers["log"], os.readlink(f"/proc/self/fd/{name}"))
        except FileNotFoundError:
            continue  # The one that the listing itself had open.


def test_a_process_inherits_nothing_of_the_store(tmp_path: Path, log: Path) -> None:
    with penstock.open(tmp_path / "store") as ps:
        ps.create_queue("q").enqueue(b"", headers={"log": str(log)})
        Worker(ps, "q", list_open_files, mode="processes").run(until_empty=True)
    assert notes(log)
    assert [line for line in notes(log) if str(tmp_path / "store") in line] == []
