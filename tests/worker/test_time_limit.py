"""A message whose handler takes too long goes back at once; the handler ends where the mode can end it."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from penstock import Delivery, NewMessage, Penstock, Queue, Worker
from penstock.message import State
from penstock.testing.background import Background, wait_until
from tests.worker.conftest import MODES, in_mode
from tests.worker.handlers import notes, obey, order
from tests.worker.rig import lives


@pytest.mark.parametrize("mode", MODES)
def test_a_message_that_takes_too_long_goes_back_and_is_tried_again(
    mode: str, ps: Penstock, q: Queue, log: Path
) -> None:
    q.enqueue(order(do="sleep first", for_s=2, log=log))
    timed_out: list[Delivery] = []
    worker = Worker(
        ps, "q", concurrency=2, time_limit_s=1.5, on_timeout=timed_out.append, **in_mode(mode, obey)
    )
    stats = worker.run(until_empty=True)
    assert (stats.timed_out, stats.succeeded, stats.failed) == (1, 1, 0)
    assert [delivery.attempts for delivery in timed_out] == [1]
    reasons = [event.reason for event in q.events() if event.reason]
    assert reasons == ["timed out after 1.5 s"]


def test_a_message_that_always_takes_too_long_ends_dead(ps: Penstock, q: Queue) -> None:
    message_id = q.enqueue(order(do="sleep", for_s=60))
    stats = Worker(ps, "q", obey, mode="processes", time_limit_s=0.05).run(until_empty=True)
    assert (stats.timed_out, stats.dead, stats.replaced) == (3, 1, 3)
    dead = q.get(message_id)
    assert (dead.state, dead.reason) == (State.DEAD, "timed out after 0.05 s")


def test_a_process_past_its_time_limit_is_killed_with_what_it_started(
    ps: Penstock, q: Queue, log: Path, tmp_path: Path
) -> None:
    pids = tmp_path / "pids"
    q.enqueue(order(do="start a program", pids=pids, log=log))
    ps.update_queue("q", max_attempts=1)
    worker = Worker(ps, "q", obey, mode="processes", time_limit_s=3)
    run = Background(lambda: worker.run(until_empty=True))
    wait_until(lambda: bool(notes(pids)) and worker.stats.timed_out == 1)
    handler, program = int(notes(log)[0].split()[-1]), int(notes(pids)[0])
    wait_until(lambda: not lives(handler) and not lives(program))
    assert run.result().succeeded == 0


def test_a_thread_past_its_time_limit_keeps_its_slot_and_is_shown(ps: Penstock, q: Queue) -> None:
    gate = threading.Event()
    seen: list[int] = []

    def handle(delivery: Delivery) -> None:
        seen.append(delivery.attempts)
        if delivery.attempts == 1:
            gate.wait(30)

    q.enqueue(b"")
    worker = Worker(ps, "q", handle, concurrency=2, time_limit_s=0.1)
    with worker:
        # The message is done in the other slot, while the first handler is still at it.
        wait_until(lambda: worker.stats.succeeded == 1)
        assert sorted(slot.doing for slot in worker.stats.slots) == ["idle", "overdue"]
        assert seen == [1, 2]
        gate.set()
        wait_until(lambda: [slot.doing for slot in worker.stats.slots] == ["idle", "idle"])
    stats = worker.stats
    assert (stats.timed_out, stats.succeeded, stats.lost) == (1, 1, 0)
    assert q.stats().acked_total == 1


def test_a_task_that_refuses_to_be_cancelled_keeps_its_slot(ps: Penstock, q: Queue) -> None:
    import asyncio

    release = threading.Event()

    async def stubborn(delivery: Delivery) -> None:
        while not release.is_set():
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                continue

    ps.update_queue("q", max_attempts=1)
    q.enqueue(b"")
    with Worker(ps, "q", stubborn, time_limit_s=0.05) as worker:
        wait_until(lambda: worker.stats.timed_out == 1)
        assert worker.stats.slots[0].doing == "overdue"
        release.set()
        wait_until(lambda: worker.stats.slots[0].doing == "idle")


def test_a_batch_has_one_time_limit(ps: Penstock, q: Queue) -> None:
    ps.update_queue("q", max_attempts=1)
    q.enqueue_many([NewMessage(b"") for _ in range(3)])
    gate = threading.Event()
    stats = Worker(ps, "q", lambda batch: gate.wait(1), batch_size=3, time_limit_s=0.1).run(until_empty=True)
    assert (stats.timed_out, stats.dead) == (3, 3)


def test_a_handler_within_its_limit_is_left_alone(ps: Penstock, q: Queue) -> None:
    q.enqueue_many([NewMessage(order()) for _ in range(50)])
    stats = Worker(ps, "q", obey, concurrency=3, time_limit_s=30).run(until_empty=True)
    assert (stats.succeeded, stats.timed_out) == (50, 0)
