"""A script that is stopped again and again rests: what is answered meanwhile, and how it comes back."""

from __future__ import annotations

from typing import Any

import pytest

import penstock
from penstock import HookError, ManualClock, NewMessage, Penstock, Queue
from penstock.clock import NS_PER_S
from penstock.hooks.breaker import MOST_STOPS, REST_NS, WITHIN_NS, Breaker
from tests.hooks.running import BOMB

LOOPS = """
  if message.payload == 'loop' then while true do end end
  if message.payload == 'error' then error('x') end
"""
REST_S = REST_NS / NS_PER_S


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def ps(clock: ManualClock) -> Any:
    with penstock.open("memory:", clock=clock) as opened:
        yield opened


def guarded(ps: Penstock) -> Queue:
    return ps.create_queue("q", on_enqueue=f"function on_enqueue(message) {LOOPS} end")


def attempt(q: Queue, *payloads: bytes) -> list[str]:
    """What became of each: stored, stopped, rests or failed."""
    out = []
    for result in q.enqueue_many([NewMessage(payload) for payload in payloads]):
        assert result.error is None or isinstance(result.error, HookError)
        said = str(result.error)
        rests = "rests after too many stops" in said
        out.append(
            "stored" if result.ok else "rests" if rests else "stopped" if "stopped" in said else "failed"
        )
        assert result.error is None or result.error.retryable == rests
    return out


def test_after_too_many_stops_a_script_rests_and_lets_nothing_in(ps: Penstock, clock: ManualClock) -> None:
    q = guarded(ps)
    assert attempt(q, *[b"loop"] * 4, b"fine", b"loop", b"fine", b"loop") == [
        *["stopped"] * 4,
        "stored",
        "stopped",
        "rests",
        "rests",
    ]
    assert attempt(q, b"fine") == ["rests"]
    assert ps.health().status == "degraded"
    assert "queue 'q': on_enqueue was stopped too often and rests; last: on_enqueue:2" in str(
        ps.health().reasons
    )


def test_it_is_tried_again_after_its_rest_and_comes_back(ps: Penstock, clock: ManualClock) -> None:
    q = guarded(ps)
    attempt(q, *[b"loop"] * MOST_STOPS)
    clock.advance(REST_S - 0.001)
    assert attempt(q, b"fine") == ["rests"]
    clock.advance(0.001)
    assert attempt(q, b"fine", b"loop", b"fine") == ["stored", "stopped", "stored"]
    assert ps.health().status == "healthy"


def test_one_more_stop_after_its_rest_and_it_rests_again(ps: Penstock, clock: ManualClock) -> None:
    q = guarded(ps)
    attempt(q, *[b"loop"] * MOST_STOPS)
    clock.advance(REST_S)
    assert attempt(q, b"loop", b"fine") == ["stopped", "rests"]
    clock.advance(REST_S)
    assert attempt(q, b"fine") == ["stored"]


def test_errors_are_their_messages_own_and_never_make_it_rest(ps: Penstock) -> None:
    q = guarded(ps)
    assert attempt(q, *[b"error"] * 50, b"fine") == [*["failed"] * 50, "stored"]
    assert ps.health().status == "healthy"
    attempt(q, *[b"error"] * 50)
    assert "on_enqueue failed 50 times in a row; last: on_enqueue:3: x" in str(ps.health().reasons)


def test_a_resting_script_is_its_own_queues_alone(ps: Penstock) -> None:
    q = guarded(ps)
    other = ps.create_queue("other", on_enqueue=f"function on_enqueue(message) {LOOPS} end")
    attempt(q, *[b"loop"] * MOST_STOPS)
    assert (attempt(q, b"fine"), attempt(other, b"fine")) == (["rests"], ["stored"])


def test_a_changed_script_starts_anew(ps: Penstock) -> None:
    q = guarded(ps)
    attempt(q, *[b"loop"] * MOST_STOPS)
    ps.update_queue("q", on_enqueue="function on_enqueue(message) end")
    assert attempt(q, b"loop") == ["stored"]


def test_library_functions_that_do_not_end_count_too(ps: Penstock) -> None:
    q = ps.create_queue("q", on_enqueue=f"function on_enqueue(message) {BOMB} end")
    assert attempt(q, *[b"x"] * 7) == [*["stopped"] * MOST_STOPS, "rests", "rests"]


def test_while_on_failure_rests_the_queues_settings_decide(ps: Penstock, clock: ManualClock) -> None:
    body = "if message.payload == 'loop' then while true do end end return 'drop'"
    q = ps.create_queue("q", on_failure=f"function on_failure(message) {body} end", retry={"delay_s": 5})

    def fail(payload: bytes) -> None:
        q.enqueue(payload)
        (delivery,) = q.lease()
        assert q.nack([delivery.receipt])[0].ok

    for _ in range(MOST_STOPS):
        fail(b"loop")
    fail(b"fine")
    assert q.stats().delayed == MOST_STOPS + 1
    clock.advance(REST_S)
    q.purge()
    fail(b"fine")
    assert (q.length(), [str(event.kind) for event in q.events()][-1]) == (0, "dropped")


def test_a_clock_that_is_set_back_makes_no_rest_longer(ps: Penstock, clock: ManualClock) -> None:
    q = guarded(ps)
    attempt(q, *[b"loop"] * MOST_STOPS)
    clock.set_ns(clock.now_ns() - 3600 * NS_PER_S)
    assert attempt(q, b"fine") == ["stored"]


def test_stops_that_are_far_apart_are_forgiven() -> None:
    breaker = Breaker()
    for n in range(20):
        assert not breaker.stopped(n * (WITHIN_NS // (MOST_STOPS - 1) + 1))
    assert breaker.stopped(20 * (WITHIN_NS // (MOST_STOPS - 1) + 1)) is False
