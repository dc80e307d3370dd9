"""What a worker takes from its queues: as much as it can run, at once, and through every outage."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import pytest

import penstock
from penstock import (
    BackendUnavailable,
    Delivery,
    NewMessage,
    Penstock,
    Queue,
    QueueNotFound,
    Retry,
    StorageError,
    StorageFull,
    Worker,
)
from penstock.testing.background import Background, wait_until


@pytest.mark.parametrize(("concurrency", "batch_size"), [(1, 1), (3, 1), (2, 5)])
def test_no_more_is_leased_than_can_run(concurrency: int, batch_size: int, ps: Penstock, q: Queue) -> None:
    q.enqueue_many([NewMessage(b"") for _ in range(100)])
    gate = threading.Event()
    room = concurrency * batch_size

    def handle(work: object) -> None:
        gate.wait(30)

    worker = Worker(ps, "q", handle, concurrency=concurrency, batch_size=batch_size)
    with worker:
        wait_until(lambda: worker.stats.running == room)
        threading.Event().wait(0.05)
        assert (q.stats().leased, q.stats().ready) == (room, 100 - room)
        gate.set()
        wait_until(lambda: worker.stats.succeeded == 100)


def test_no_more_is_ever_leased_than_can_run(ps: Penstock, q: Queue) -> None:
    q.enqueue_many([NewMessage(b"") for _ in range(2000)])
    most: list[int] = []
    worker = Worker(
        ps,
        "q",
        lambda _: None,
        concurrency=4,
        on_start=lambda _: most.append(q.stats().leased),
        on_success=lambda _: most.append(q.stats().leased),
    )
    worker.run(until_empty=True)
    assert len(most) == 4000
    assert 1 < max(most) <= 4


def test_among_several_queues_at_most_one_job_of_each_other_waits_for_a_slot(ps: Penstock, q: Queue) -> None:
    names = ["q", "b", "c"]
    queues = [q, ps.create_queue("b"), ps.create_queue("c")]
    gate = threading.Event()
    with Worker(ps, names, lambda _: gate.wait(30), concurrency=2) as worker:
        for _ in range(20):
            for one in queues:
                one.enqueue(b"")
        wait_until(lambda: worker.stats.running == 2)
        threading.Event().wait(0.05)
        assert sum(one.stats().leased for one in queues) <= 2 + len(queues) - 1
        gate.set()
        wait_until(lambda: worker.stats.succeeded == 60)


def test_every_queue_is_served_though_one_never_runs_dry(ps: Penstock, q: Queue) -> None:
    quiet = ps.create_queue("quiet")
    seen: Counter[str] = Counter()

    def handle(delivery: Delivery) -> None:
        seen[delivery.queue] += 1
        if delivery.queue == "q":
            q.enqueue(b"")

    with Worker(ps, ["q", "quiet"], handle) as worker:
        q.enqueue_many([NewMessage(b"") for _ in range(100)])
        for turn in range(1, 4):
            quiet.enqueue(b"")
            wait_until(lambda turn=turn: seen["quiet"] == turn)  # type: ignore[misc] # its own turn
    assert worker.stats.failed == 0


def test_work_is_taken_as_it_arrives_without_polling(ps: Penstock, q: Queue, monkeypatch: Any) -> None:
    calls: list[float] = []
    lease = q._backend.lease

    def counted(queue: str, most: int, lease_s: float | None, wait_s: float, consumer: str) -> Any:
        calls.append(wait_s)
        return lease(queue, most, lease_s, wait_s, consumer)

    monkeypatch.setattr(q._backend, "lease", counted)
    with Worker(ps, "q", lambda _: None) as worker:
        for turn in range(1, 6):
            q.enqueue(b"")
            wait_until(lambda turn=turn: worker.stats.succeeded == turn)  # type: ignore[misc] # its own turn
    assert 0 not in calls


def test_what_ends_while_the_queue_is_told_of_others_is_told_together(
    ps: Penstock, q: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    q.enqueue_many([NewMessage(b"%d" % number) for number in range(4)])
    sizes: list[int] = []
    acking, returned = threading.Event(), threading.Barrier(4)
    ack = q._backend.ack

    def slow(queue: str, receipts: Any) -> Any:
        sizes.append(len(receipts))
        if not acking.is_set():
            acking.set()
            returned.wait(30)
            wait_until(lambda: worker._settler._ended.qsize() == 3)
        return ack(queue, receipts)

    def handle(delivery: Delivery) -> None:
        if delivery.payload != b"0":
            acking.wait(30)
            returned.wait(30)

    monkeypatch.setattr(q._backend, "ack", slow)
    worker = Worker(ps, "q", handle, concurrency=4)
    worker.run(until_empty=True)
    assert sizes == [1, 3]


def test_until_empty_tries_failed_messages_again_and_leaves_delayed_ones(ps: Penstock) -> None:
    now = ps.create_queue("now", max_attempts=4)
    later = ps.create_queue("later", retry=Retry(policy="fixed", delay_s=3600))
    now.enqueue(b"")
    later.enqueue(b"")
    now.enqueue(b"tomorrow", delay_s=86_400)

    def handle(delivery: Delivery) -> None:
        raise ValueError

    stats = Worker(ps, ["now", "later"], handle, concurrency=3).run(until_empty=True)
    assert (stats.started, stats.dead) == (5, 1)
    assert (now.stats().dead, now.stats().delayed, later.stats().delayed) == (1, 1, 1)


def test_until_empty_does_what_handlers_enqueue(ps: Penstock, q: Queue) -> None:
    def handle(delivery: Delivery) -> None:
        if (number := int(delivery.payload)) > 0:
            q.enqueue(b"%d" % (number - 1))

    q.enqueue(b"10")
    assert Worker(ps, "q", handle, concurrency=3).run(until_empty=True).succeeded == 11


def test_until_empty_of_an_empty_queue_ends(ps: Penstock, q: Queue) -> None:
    assert Worker(ps, "q", lambda _: None).run(until_empty=True).started == 0


# -- outages


def failing(monkeypatch: pytest.MonkeyPatch, q: Queue, call: str, errors: list[Exception]) -> None:
    """The backend's call raises these, one after the other, and then works."""
    real = getattr(q._backend, call)

    def flaky(*args: Any) -> Any:
        if errors:
            raise errors.pop(0)
        return real(*args)

    monkeypatch.setattr(q._backend, call, flaky)


@pytest.mark.parametrize("call", ["lease", "ack", "nack", "reject"])
def test_a_worker_goes_on_when_the_store_comes_back(
    call: str, ps: Penstock, monkeypatch: pytest.MonkeyPatch
) -> None:
    q = ps.create_queue("q", max_attempts=1)
    q.enqueue_many([NewMessage(payload) for payload in (b"fail", b"reject", b"ack", b"ack")])
    errors: list[Exception] = [BackendUnavailable("away"), StorageFull("full"), BackendUnavailable("away")]
    failing(monkeypatch, q, call, errors)

    def handle(delivery: Delivery) -> None:
        if delivery.payload == b"reject":
            raise penstock.Reject("no")
        if delivery.payload == b"fail":
            raise ValueError

    stats = Worker(ps, "q", handle).run(until_empty=True)
    assert not errors
    assert (stats.succeeded, stats.dead, stats.lost) == (2, 2, 0)
    assert (q.stats().dead, q.length()) == (2, 0)


def test_an_error_that_will_not_pass_ends_the_worker_and_is_raised(
    ps: Penstock, q: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(monkeypatch, q, "lease", [StorageError("the disk is gone")])
    worker = Worker(ps, "q", lambda _: None)
    with pytest.raises(StorageError, match="the disk is gone"):
        worker.run()
    assert (worker.stats.state, worker.stats.failure) == ("failed", "the disk is gone")


def test_a_queue_that_is_deleted_ends_the_worker(ps: Penstock, q: Queue) -> None:
    worker = Worker(ps, "q", lambda _: None)
    run = Background(worker.run)
    wait_until(lambda: worker.stats.state == "running")
    ps.delete_queue("q")
    with pytest.raises(QueueNotFound):
        run.result()


def test_a_store_that_is_closed_ends_the_worker(q: Queue, ps: Penstock) -> None:
    gate = threading.Event()
    q.enqueue(b"")
    failures: list[str] = []
    worker = Worker(ps, "q", lambda _: gate.wait(30), on_failure=lambda _, why: failures.append(why))
    worker.start()
    wait_until(lambda: worker.stats.running == 1)
    ps.close()
    gate.set()
    wait_until(lambda: worker.stats.state == "failed")
    with pytest.raises(StorageError, match="closed"):
        worker.stop()
    assert (worker.stats.succeeded, worker.stats.lost, len(failures)) == (0, 1, 1)


def test_a_stop_does_not_wait_for_ever_for_a_store_that_is_away(
    ps: Penstock, q: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    from penstock.worker import worker as module

    monkeypatch.setattr(module, "LAST_WORDS_S", 0.1)
    failing(monkeypatch, q, "ack", [BackendUnavailable("away") for _ in range(1000)])
    q.enqueue(b"")
    worker = Worker(ps, "q", lambda _: None, stop_timeout_s=0.1)
    worker.start()
    wait_until(lambda: worker.stats.started == 1)
    with pytest.raises(BackendUnavailable):
        worker.stop()
    assert worker.stats.lost == 1
