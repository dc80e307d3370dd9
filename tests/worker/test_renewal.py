"""Leases of running work are kept, whatever the handler does; one that is lost all the same is known."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import BackendUnavailable, Delivery, Kind, ManualClock, NewMessage, Penstock, Queue, Worker
from penstock.testing.background import Background, wait_until
from penstock.worker import context
from tests.worker.conftest import MODES, in_mode
from tests.worker.handlers import burn, notes, obey, order

LEASE_S = 1.0


def extensions(q: Queue) -> int:
    return len(q.events(limit=10_000, kinds=[Kind.EXTENDED]))


def test_a_running_handlers_lease_never_runs_out() -> None:
    clock = ManualClock()
    gate = threading.Event()
    with penstock.open("memory:", clock=clock) as ps:
        q = ps.create_queue("q", lease_s=30)
        q.enqueue_many([NewMessage(b""), NewMessage(b"")])
        worker = Worker(ps, "q", lambda delivery: gate.wait(30), concurrency=2, clock=clock)
        run = Background(lambda: worker.run(until_empty=True))
        wait_until(lambda: worker.stats.running == 2)
        for turn in range(1, 10):
            clock.advance(10)
            wait_until(lambda turn=turn: extensions(q) == 2 * turn)  # type: ignore[misc] # its own turn
            assert q.lease() == []
        gate.set()
        assert run.result().succeeded == 2
        assert q.stats().failed_total == 0


def test_leases_are_renewed_in_one_call_for_each_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    gate = threading.Event()
    calls: list[int] = []
    with penstock.open("memory:", clock=clock) as ps:
        q = ps.create_queue("q", lease_s=30)
        q.enqueue_many([NewMessage(b"") for _ in range(20)])
        extend = q._backend.extend

        def counted(queue: str, receipts: Any, lease_s: float) -> Any:
            calls.append(len(receipts))
            return extend(queue, receipts, lease_s)

        monkeypatch.setattr(q._backend, "extend", counted)
        worker = Worker(ps, "q", lambda delivery: gate.wait(30), concurrency=20, clock=clock)
        run = Background(lambda: worker.run(until_empty=True))
        wait_until(lambda: worker.stats.running == 20)
        clock.advance(10)
        wait_until(lambda: bool(calls))
        gate.set()
        run.result()
        assert calls == [20]


async def burn_on_the_loop(delivery: Delivery) -> None:
    await asyncio.sleep(0)
    obey(delivery)


@pytest.mark.parametrize(
    ("mode", "handler", "deed"),
    [
        ("threads", obey, "burn"),
        ("asyncio", burn_on_the_loop, "burn"),
        ("processes", obey, "burn"),
        ("processes", obey, "burn holding the interpreter"),
    ],
)
def test_a_handler_that_burns_cpu_for_three_leases_is_run_once(
    mode: Any, handler: Any, deed: str, tmp_path: Path, log: Path
) -> None:
    with penstock.open(tmp_path / "store") as ps:
        q = ps.create_queue("q", lease_s=LEASE_S)
        q.enqueue(order(do=deed, for_s=3.2 * LEASE_S, log=log))
        # A second slot stands by to take the message, should its lease run out.
        stats = Worker(ps, "q", handler, mode=mode, concurrency=2).run(until_empty=True)
        assert (stats.started, stats.succeeded, stats.lost) == (1, 1, 0)
        assert [line.split()[0] for line in notes(log)] == ["start", "end"]
        assert extensions(q) >= 3


def test_many_burning_threads_keep_their_leases(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "store") as ps:
        q = ps.create_queue("q", lease_s=2 * LEASE_S)
        q.enqueue_many([NewMessage(b"") for _ in range(8)])
        stats = Worker(ps, "q", lambda delivery: burn(4 * LEASE_S), concurrency=8).run(until_empty=True)
        assert (stats.started, stats.succeeded, stats.lost) == (8, 8, 0)


@pytest.mark.parametrize("mode", MODES)
def test_a_handler_is_told_that_its_lease_is_lost_and_does_not_count_as_done(mode: str, ps: Penstock) -> None:
    q = ps.create_queue("q", lease_s=0.3)
    q.enqueue(order(do="wait until lost"))
    failures: list[str] = []
    worker = Worker(
        ps, "q", on_failure=lambda delivery, reason: failures.append(reason), **in_mode(mode, obey)
    )
    run = Background(lambda: worker.run(until_empty=True))
    wait_until(lambda: worker.stats.running == 1)
    assert q.purge("leased") == 1
    stats = run.result()
    assert (stats.succeeded, stats.lost) == (0, 1)
    assert "the lease was lost" in failures[0]


def test_a_batch_handler_is_told_which_of_its_leases_are_lost() -> None:
    clock = ManualClock()
    lost: list[frozenset[str]] = []
    with penstock.open("memory:", clock=clock) as ps:
        q = ps.create_queue("q", lease_s=30)
        ids = [result.id for result in q.enqueue_many([NewMessage(b""), NewMessage(b"")])]
        holding: list[Delivery] = []

        def handle(deliveries: list[Delivery]) -> None:
            holding.extend(deliveries)
            while not context().lost:
                threading.Event().wait(0.001)
            lost.append(context().lost_ids)

        worker = Worker(ps, "q", handle, batch_size=2, clock=clock)
        run = Background(lambda: worker.run(until_empty=True))
        wait_until(lambda: len(holding) == 2)
        q.reject([holding[1].receipt], "taken away")
        clock.advance(10)
        stats = run.result()
        assert lost == [{ids[1]}]
        assert (stats.succeeded, stats.lost) == (1, 1)


def test_there_is_no_context_outside_of_a_handler() -> None:
    with pytest.raises(LookupError):
        context()


def test_finished_work_keeps_its_lease_while_the_store_does_not_take_the_ack(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = ManualClock()
    away = threading.Event()
    away.set()
    with penstock.open("memory:", clock=clock) as ps:
        q = ps.create_queue("q", lease_s=30)
        q.enqueue(b"")
        ack = q._backend.ack

        def refused(queue: str, receipts: Any) -> Any:
            if away.is_set():
                raise BackendUnavailable("the store is away")
            return ack(queue, receipts)

        monkeypatch.setattr(q._backend, "ack", refused)
        run = Background(lambda: Worker(ps, "q", lambda _: None, clock=clock).run(until_empty=True))
        wait_until(lambda: q.stats().leased == 1)
        for turn in range(1, 7):
            clock.advance(10)
            wait_until(lambda turn=turn: extensions(q) == turn)  # type: ignore[misc] # its own turn
        away.clear()
        stats = run.result()
        assert (stats.started, stats.succeeded, stats.lost) == (1, 1, 0)


def test_a_renewal_that_fails_is_tried_again_before_the_lease_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    gate = threading.Event()
    tries: list[int] = []
    with penstock.open("memory:", clock=clock) as ps:
        q = ps.create_queue("q", lease_s=30)
        q.enqueue(b"")
        extend = q._backend.extend

        def sometimes(queue: str, receipts: Any, lease_s: float) -> Any:
            tries.append(clock.now_ns())
            if len(tries) < 3:
                raise BackendUnavailable("the store is away")
            return extend(queue, receipts, lease_s)

        monkeypatch.setattr(q._backend, "extend", sometimes)
        worker = Worker(ps, "q", lambda delivery: gate.wait(30), clock=clock)
        run = Background(lambda: worker.run(until_empty=True))
        wait_until(lambda: worker.stats.running == 1)
        for advance_s, turn in ((10, 1), (3, 2), (3, 3)):
            clock.advance(advance_s)
            wait_until(lambda turn=turn: len(tries) == turn)  # type: ignore[misc] # its own turn
        wait_until(lambda: extensions(q) == 1)
        gate.set()
        assert run.result().succeeded == 1


def test_work_that_is_settled_while_its_lease_is_renewed_is_not_called_lost(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock()
    gate, renewing = threading.Event(), threading.Event()
    with penstock.open("memory:", clock=clock) as ps:
        q = ps.create_queue("q", lease_s=30)
        q.enqueue(b"")
        extend = q._backend.extend

        def slow(queue: str, receipts: Any, lease_s: float) -> Any:
            renewing.set()
            wait_until(lambda: q.stats().acked_total == 1)
            return extend(queue, receipts, lease_s)

        monkeypatch.setattr(q._backend, "extend", slow)
        worker = Worker(ps, "q", lambda delivery: gate.wait(30), clock=clock)
        run = Background(lambda: worker.run(until_empty=True))
        wait_until(lambda: worker.stats.running == 1)
        clock.advance(10)
        assert renewing.wait(30)
        gate.set()
        stats = run.result()
    assert (stats.succeeded, stats.lost) == (1, 0)
    assert "is lost" not in caplog.text
