"""What a handler does is what becomes of its message, in every mode."""

from __future__ import annotations

import pytest

from penstock import Delivery, NewMessage, Penstock, Queue, Reject, Retry, RetryLater, Worker
from penstock.backends.arguments import check_reason
from penstock.message import State
from penstock.worker.reason import MAX_REASON_BYTES
from tests.worker.conftest import MODES, in_mode
from tests.worker.handlers import obey, obey_all, order

every_mode = pytest.mark.parametrize("mode", MODES)


def fail(delivery: Delivery) -> None:
    raise ValueError("no such product")


@every_mode
def test_a_handler_that_returns_acks(mode: str, ps: Penstock, q: Queue) -> None:
    q.enqueue_many([NewMessage(order()) for _ in range(20)])
    stats = Worker(ps, "q", concurrency=2, **in_mode(mode, obey)).run(until_empty=True)
    assert (stats.started, stats.succeeded, stats.failed) == (20, 20, 0)
    assert q.stats().acked_total == 20
    assert q.length() == 0


@every_mode
def test_a_poison_message_ends_dead_with_its_traceback_as_the_reason(
    mode: str, ps: Penstock, q: Queue
) -> None:
    message_id = q.enqueue(order(do="fail"))
    stats = Worker(ps, "q", **in_mode(mode, obey)).run(until_empty=True)
    dead = q.get(message_id)
    assert (dead.state, dead.attempts) == (State.DEAD, 3)
    assert dead.reason is not None
    first, *_, last = dead.reason.splitlines()
    assert first == "Traceback (most recent call last):"
    assert last == "ValueError: no such product"
    assert "handlers.py" in dead.reason
    assert "in _fail" in dead.reason
    assert "penstock/worker" not in dead.reason, "the worker's own frames tell nothing"
    assert (stats.failed, stats.dead, stats.succeeded) == (3, 1, 0)


@every_mode
def test_a_failed_message_is_tried_again(mode: str, ps: Penstock, q: Queue) -> None:
    q.enqueue(order(do="fail first"))
    stats = Worker(ps, "q", **in_mode(mode, obey)).run(until_empty=True)
    assert (stats.failed, stats.succeeded, stats.dead) == (1, 1, 0)


@every_mode
def test_reject_kills_at_once_with_its_reason(mode: str, ps: Penstock, q: Queue) -> None:
    message_id = q.enqueue(order(do="reject"))
    stats = Worker(ps, "q", **in_mode(mode, obey)).run(until_empty=True)
    dead = q.get(message_id)
    assert (dead.state, dead.attempts, dead.reason) == (State.DEAD, 1, "unknown product")
    assert (stats.failed, stats.dead) == (1, 1)


@every_mode
def test_retry_later_says_when(mode: str, ps: Penstock, q: Queue) -> None:
    message_id = q.enqueue(order(do="retry"))
    Worker(ps, "q", **in_mode(mode, obey)).run(until_empty=True)
    later = q.get(message_id)
    assert (later.state, later.reason) == (State.DELAYED, "the shop is closed")
    assert later.visible_at_ns - later.enqueued_at_ns >= 3_600 * 10**9


@every_mode
def test_whatever_a_handler_gives_as_its_reason_the_slot_goes_on(mode: str, ps: Penstock, q: Queue) -> None:
    rejected = q.enqueue(order(do="reject with an error"))
    later = q.enqueue(order(do="retry with a number"))
    strange = q.enqueue(order(do="fail strangely"))
    q.enqueue(order())
    stats = Worker(ps, "q", concurrency=1, **in_mode(mode, obey)).run(until_empty=True)
    assert stats.succeeded == 1
    assert (q.get(rejected).state, q.get(rejected).reason) == (State.DEAD, "no such product")
    assert (q.get(later).state, q.get(later).reason) == (State.DELAYED, "503")
    assert "_Strange" in (q.get(strange).reason or "")


def test_an_error_that_cannot_be_looked_at_is_a_failure_all_the_same(ps: Penstock, q: Queue) -> None:
    class Odd(Reject):
        def __init__(self) -> None: ...

        @property
        def reason(self) -> str:  # type: ignore[override]
            raise RuntimeError

    def handle(delivery: Delivery) -> None:
        raise Odd

    message_id = q.enqueue(b"")
    Worker(ps, "q", handle, concurrency=1).run(until_empty=True)
    assert q.get(message_id).reason == "Odd, which cannot be shown: RuntimeError"
    assert q.get(message_id).state == State.DEAD


def test_groups_of_groups_of_errors_do_not_occupy_the_slot(ps: Penstock, q: Queue) -> None:
    error: Exception = ValueError("one of very many")
    for _ in range(7):
        error = ExceptionGroup("several", [error] * 12)

    def handle(delivery: Delivery) -> None:
        raise error

    message_id = q.enqueue(b"")
    Worker(ps, "q", handle, concurrency=1).run(until_empty=True)
    assert "one of very many" in (q.get(message_id).reason or "")


@every_mode
def test_leaving_the_program_is_a_failure_of_the_message_alone(mode: str, ps: Penstock, q: Queue) -> None:
    message_id = q.enqueue(order(do="exit politely"))
    q.enqueue(order())
    stats = Worker(ps, "q", **in_mode(mode, obey)).run(until_empty=True)
    assert stats.succeeded == 1
    assert (q.get(message_id).reason or "").endswith("SystemExit: enough")


def test_retries_wait_as_the_queue_says(ps: Penstock) -> None:
    slow = ps.create_queue("slow", retry=Retry(policy="fixed", delay_s=3600))
    message_id = slow.enqueue(b"")
    Worker(ps, "slow", fail).run(until_empty=True)
    assert slow.get(message_id).state == State.DELAYED


def test_a_dead_letter_carries_the_traceback(ps: Penstock) -> None:
    graves = ps.create_queue("graves")
    ps.create_queue("orders", dead_letter="graves", max_attempts=1).enqueue(b"")
    Worker(ps, "orders", fail).run(until_empty=True)
    (letter,) = graves.peek()
    assert letter.headers["penstock-reason"].endswith("ValueError: no such product")


@every_mode
def test_a_batch_handler_answers_for_each_delivery(mode: str, ps: Penstock, q: Queue) -> None:
    wanted = {
        "good": order(),
        "bad": order(do="fail"),
        "rejected": order(do="reject"),
        "later": order(do="retry"),
    }
    ids = {name: q.enqueue(payload) for name, payload in wanted.items()}
    stats = Worker(ps, "q", batch_size=10, **in_mode(mode, obey_all)).run(until_empty=True)
    assert q.get(ids["bad"]).state == State.DEAD
    assert (q.get(ids["rejected"]).attempts, q.get(ids["rejected"]).state) == (1, State.DEAD)
    assert q.get(ids["later"]).state == State.DELAYED
    assert (stats.succeeded, stats.dead) == (1, 2)


def test_a_batch_handler_gets_up_to_so_many_of_one_queue(ps: Penstock, q: Queue) -> None:
    other = ps.create_queue("other")
    for each in (q, other):
        each.enqueue_many([NewMessage(b"") for _ in range(25)])
    sizes: list[int] = []

    def handle(deliveries: list[Delivery]) -> None:
        assert len({delivery.queue for delivery in deliveries}) == 1
        sizes.append(len(deliveries))

    Worker(ps, ["q", "other"], handle, batch_size=10).run(until_empty=True)
    assert sorted(sizes) == [5, 5, 10, 10, 10, 10]


def test_a_batch_handler_that_raises_fails_all_of_its_batch(ps: Penstock, q: Queue) -> None:
    q.enqueue_many([NewMessage(b"") for _ in range(3)])

    def handle(deliveries: list[Delivery]) -> None:
        raise RuntimeError("all of them")

    stats = Worker(ps, "q", handle, batch_size=10).run(until_empty=True)
    assert (stats.failed, stats.dead) == (9, 3)


@pytest.mark.parametrize("answer", [[None], "ok", 7, [None, None, "fine"]])
def test_a_batch_handlers_answer_that_fits_nothing_is_a_failure_that_says_so(
    answer: object, ps: Penstock
) -> None:
    once = ps.create_queue("once", max_attempts=1)
    once.enqueue_many([NewMessage(b"") for _ in range(3)])
    stats = Worker(ps, "once", lambda deliveries: answer, batch_size=3).run(until_empty=True)
    reasons = [message.reason or "" for message in once.iter("dead")]
    assert reasons
    assert stats.succeeded == 3 - len(reasons)
    assert all("TypeError: a batch handler" in reason for reason in reasons)


def test_a_fifo_queue_is_worked_in_order_whatever_the_concurrency(ps: Penstock) -> None:
    steps = ps.create_queue("steps", fifo=True)
    for number in range(20):
        steps.enqueue(b"%d" % number, fairness_key="account")
    seen: list[bytes] = []
    Worker(ps, "steps", lambda delivery: seen.append(delivery.payload), concurrency=4).run(until_empty=True)
    assert seen == [b"%d" % number for number in range(20)]


# -- reasons


def reason_of(ps: Penstock, payload: bytes, handler: object, **headers: str) -> str:
    queue = ps.create_queue("reasons", max_attempts=1)
    message_id = queue.enqueue(payload, headers=headers)
    Worker(ps, "reasons", handler).run(until_empty=True)  # type: ignore[arg-type] # some are lambdas
    reason = queue.get(message_id).reason
    assert reason is not None
    check_reason(reason)
    return reason


def test_a_reason_is_bounded_and_keeps_both_ends(ps: Penstock) -> None:
    def handle(delivery: Delivery) -> None:
        raise ValueError("é" * 100_000 + " the end")

    reason = reason_of(ps, b"", handle)
    assert len(reason.encode()) <= MAX_REASON_BYTES
    assert reason.startswith("Traceback")
    assert reason.endswith("the end")
    assert "left out" in reason


def test_a_reason_that_utf8_cannot_write_is_written_all_the_same(ps: Penstock) -> None:
    def handle(delivery: Delivery) -> None:
        raise ValueError("half a pair: \ud800")

    assert "\\ud800" in reason_of(ps, b"", handle)


@pytest.mark.parametrize(
    "payload", [b"card 4242424242424242", b"\xff\x00 binary secret", b"x" * 500, "geheim: ß".encode()]
)
def test_a_reason_does_not_repeat_the_payload(payload: bytes, ps: Penstock) -> None:
    def handle(delivery: Delivery) -> None:
        text = delivery.payload.decode(errors="replace")
        raise ValueError(f"cannot use {text} or {delivery.payload!r}; sorry")

    reason = reason_of(ps, payload, handle)
    assert payload.decode(errors="replace")[:20] not in reason
    assert repr(payload)[2:20] not in reason
    assert "<payload>" in reason


def test_a_reason_does_not_repeat_what_the_interpreter_quotes(ps: Penstock) -> None:
    secret = b"number " * 100
    reason = reason_of(ps, secret, lambda delivery: int(delivery.payload))
    assert "number number" not in reason
    assert "ValueError: invalid literal for int()" in reason


def test_a_reason_does_not_repeat_header_values(ps: Penstock) -> None:
    def handle(delivery: Delivery) -> None:
        raise KeyError(delivery.headers["authorization"])

    reason = reason_of(ps, b"", handle, authorization="Bearer abcdef")
    assert "abcdef" not in reason
    assert "<header authorization>" in reason


def test_a_reason_has_the_causes_and_the_parts_of_a_group(ps: Penstock) -> None:
    def handle(delivery: Delivery) -> None:
        try:
            raise OSError("the disk")
        except OSError as error:
            raise ExceptionGroup("both", [ValueError("one"), KeyError("two")]) from error

    reason = reason_of(ps, b"", handle)
    for part in (
        "OSError: the disk",
        "direct cause",
        "ExceptionGroup: both",
        "ValueError: one",
        "KeyError: 'two'",
    ):
        assert part in reason


def test_an_error_that_cannot_be_shown_still_fails_its_message(ps: Penstock) -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    def handle(delivery: Delivery) -> None:
        raise Mute

    assert "Mute" in reason_of(ps, b"", handle)


def test_instructions_are_checked_where_they_are_given() -> None:
    with pytest.raises(Exception, match="delay_s"):
        RetryLater(-1)
    assert str(Reject()) == "the handler rejects the message"
