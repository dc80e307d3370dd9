"""What a program sees of its worker: callbacks, numbers, and refusals of options that cannot be used."""

from __future__ import annotations

import logging
import threading
from typing import Any

import msgspec
import pytest

from penstock import Delivery, InvalidConfig, NewMessage, Penstock, Queue, QueueNotFound, Worker
from penstock.testing.background import wait_until
from penstock.worker import WorkerStats
from tests.worker.conftest import MODES, in_mode
from tests.worker.handlers import obey, order


@pytest.mark.parametrize("mode", MODES)
def test_each_delivery_that_started_has_one_end(mode: str, ps: Penstock, q: Queue) -> None:
    good, bad = q.enqueue(order()), q.enqueue(order(do="fail"))
    calls: list[tuple[str, str, int]] = []

    def note(what: str) -> Any:
        return lambda delivery, *reason: calls.append((what, delivery.id, delivery.attempts))

    Worker(
        ps,
        "q",
        on_start=note("start"),
        on_success=note("success"),
        on_failure=note("failure"),
        on_timeout=note("timeout"),
        **in_mode(mode, obey),
    ).run(until_empty=True)
    assert sorted(calls) == sorted(
        [("start", good, 1), ("success", good, 1)]
        + [(what, bad, attempt) for attempt in (1, 2, 3) for what in ("start", "failure")]
    )


def test_success_is_reported_when_the_queue_knows_it(ps: Penstock, q: Queue) -> None:
    q.enqueue(b"")
    lengths: list[int] = []
    Worker(ps, "q", lambda _: None, on_success=lambda _: lengths.append(q.length())).run(until_empty=True)
    assert lengths == [0]


def test_a_failure_is_reported_with_its_reason(ps: Penstock, q: Queue) -> None:
    q.enqueue(order(do="reject"))
    reasons: list[str] = []
    Worker(ps, "q", obey, on_failure=lambda _, reason: reasons.append(reason)).run(until_empty=True)
    assert reasons == ["unknown product"]


@pytest.mark.parametrize("error", [ValueError, SystemExit, KeyboardInterrupt])
def test_a_callback_that_fails_does_not_disturb_the_worker(
    error: type[BaseException], ps: Penstock, q: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    q.enqueue_many([NewMessage(order(do="fail first")) for _ in range(3)])

    def fail(*_: object) -> None:
        raise error("secret of the payload")

    stats = Worker(ps, "q", obey, on_start=fail, on_success=fail, on_failure=fail).run(until_empty=True)
    assert (stats.succeeded, stats.failed) == (3, 3)
    complaints = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert len(complaints) == 12
    assert not any("secret" in complaint for complaint in complaints)


def test_nothing_of_payloads_headers_and_errors_is_logged(
    ps: Penstock, q: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    q.enqueue(b"payload-secret", headers={"token": "header-secret"})

    def handle(delivery: Delivery) -> None:
        raise ValueError(f"{delivery.payload!r} {delivery.headers} error-secret")

    Worker(ps, "q", handle).run(until_empty=True)
    assert caplog.records
    assert "secret" not in caplog.text


def test_stats_show_what_each_slot_does(ps: Penstock, q: Queue) -> None:
    gate = threading.Event()
    message_id = q.enqueue(b"")
    with Worker(ps, "q", lambda _: gate.wait(30), concurrency=2, consumer="me") as worker:
        wait_until(lambda: worker.stats.running == 1)
        stats = worker.stats
        assert (stats.state, stats.mode, stats.queues, stats.consumer) == ("running", "threads", ("q",), "me")
        busy, idle = stats.slots
        assert (busy.doing, busy.queue, busy.message_id, busy.attempts) == ("running", "q", message_id, 1)
        assert (idle.doing, idle.queue, idle.pid) == ("idle", "", None)
        wait_until(lambda: worker.stats.slots[0].for_s > busy.for_s)
        gate.set()
        wait_until(lambda: worker.stats.succeeded == 1)
        assert worker.stats.rate_per_s > 0
    assert worker.stats.state == "stopped"


def test_a_snapshot_can_be_written_as_json(ps: Penstock, q: Queue) -> None:
    stats = Worker(ps, "q", lambda _: None).stats
    assert stats.state == "new"
    assert msgspec.json.decode(msgspec.json.encode(stats), type=WorkerStats) == stats


def test_leases_carry_the_workers_name(ps: Penstock, q: Queue) -> None:
    q.enqueue(b"")
    Worker(ps, "q", lambda _: None, consumer="me").run(until_empty=True)
    assert [event.consumer for event in q.events() if event.kind == "leased"] == ["me"]


def test_the_workers_lease_overrides_the_queues(ps: Penstock, q: Queue) -> None:
    q.enqueue(b"")
    seen: list[Delivery] = []
    Worker(ps, "q", seen.append, lease_s=7).run(until_empty=True)
    assert seen[0].lease_expires_at_ns - seen[0].leased_at_ns == 7 * 10**9


async def coroutine(delivery: Delivery) -> None: ...


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"concurrency": 0}, "concurrency is 0; accepted: whole numbers from 1 to"),
        ({"concurrency": True}, "concurrency is True"),
        ({"batch_size": "10"}, "batch_size is '10'"),
        ({"lease_s": 0}, "lease_s is 0; accepted: 0.001 to"),
        ({"time_limit_s": -1}, "time_limit_s is -1"),
        ({"stop_timeout_s": float("nan")}, "stop_timeout_s is nan"),
        ({"mode": "fibers"}, "mode is 'fibers'; accepted: threads, processes, asyncio"),
        ({"queues": []}, "at least one"),
        ({"queues": [1]}, "a list of names"),
        ({"consumer": "a\0b"}, "consumer"),
        ({"handler": "nocolon"}, "'nocolon' is not of the form 'module:function'"),
        ({"handler": "nocolon", "mode": "processes"}, "not of the form"),
        ({"handler": "no.such.module:f"}, "'no.such.module:f' cannot be imported: No module named"),
        ({"handler": "json:nothing"}, "'json:nothing' cannot be imported"),
        ({"handler": "json:__name__"}, "is a str, not a function"),
        ({"handler": 7}, "must be a function or 'module:function'"),
        ({"handler": coroutine, "mode": "threads"}, "mode 'threads' runs plain functions"),
        ({"handler": obey, "mode": "asyncio"}, "mode 'asyncio' runs async def functions"),
    ],
)
def test_options_that_cannot_be_used_are_refused_by_name(
    options: dict[str, Any], said: str, ps: Penstock, q: Queue
) -> None:
    given = {"queues": "q", "handler": obey, **options}
    with pytest.raises(InvalidConfig) as refusal:
        Worker(ps, given.pop("queues"), given.pop("handler"), **given)
    assert said in str(refusal.value)


def test_a_queue_that_does_not_exist_is_refused(ps: Penstock) -> None:
    with pytest.raises(QueueNotFound):
        Worker(ps, "nowhere", obey)


def test_a_handler_may_be_named(ps: Penstock, q: Queue) -> None:
    q.enqueue(order())
    assert Worker(ps, "q", "tests.worker.handlers:obey").run(until_empty=True).succeeded == 1


def test_a_coroutine_function_chooses_its_mode(ps: Penstock, q: Queue) -> None:
    assert Worker(ps, "q", coroutine).stats.mode == "asyncio"
    assert Worker(ps, "q", obey).stats.mode == "threads"
