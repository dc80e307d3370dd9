"""Calls of many clients: written together, answered each by its own, and bounded."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

import penstock
from penstock import NewMessage, Penstock
from penstock.backends.embedded.backend import EmbeddedBackend
from penstock.codec.answer import decoder
from penstock.errors import QueueNotFound, StorageError
from penstock.message import EnqueueResult, Outcome
from penstock.queue import Queue
from penstock.server.calls import StoreCalls
from penstock.server.endpoint import Busy, CallId
from penstock.server_config import Limits
from tests.server.running import DEFAULTS


def with_calls(
    ps: Penstock, story: Callable[[StoreCalls], Awaitable[None]], limits: Limits = DEFAULTS
) -> None:
    async def run() -> None:
        calls = StoreCalls(ps, limits)
        try:
            async with asyncio.timeout(20):
                await story(calls)
            assert calls.running == 0
            assert calls.polls.waiting == 0
        finally:
            calls.polls.stop()
            calls.close()

    asyncio.run(run())


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many messages each call of a store had."""
    counts: list[int] = []
    real = Queue.enqueue_many

    def counted(self: Queue, messages: Sequence[NewMessage], *args: Any) -> Any:
        counts.append(len(messages))
        return real(self, messages, *args)

    monkeypatch.setattr(Queue, "enqueue_many", counted)
    return counts


def test_what_arrives_together_is_one_call_and_each_gets_its_own_answers(
    ps: Penstock, batches: list[int]
) -> None:
    async def story(calls: StoreCalls) -> None:
        sent = [[NewMessage(b"%d/%d" % (who, n)) for n in range(1 + who % 3)] for who in range(30)]
        answers = await asyncio.gather(*(calls.enqueue("q", part) for part in sent))
        for part, results in zip(sent, answers, strict=True):
            stored = [ps.queue("q").get(str(result.id)) for result in results]
            assert [one.payload for one in stored] == [one.payload for one in part]

    with_calls(ps, story)
    assert len(batches) == 1
    assert batches == [sum(1 + who % 3 for who in range(30))]


def test_one_client_s_error_is_its_own(ps: Penstock) -> None:
    async def story(calls: StoreCalls) -> None:
        good, bad = [NewMessage(b"good")], [NewMessage(b"bad", priority=10_000)]
        found = await asyncio.gather(*(calls.enqueue("q", one) for one in (good, bad, good)))
        assert [result.error is None for (result,) in found] == [True, False, True]
        assert len({found[0][0].id, found[2][0].id}) == 2
        with pytest.raises(QueueNotFound):
            await calls.enqueue("nowhere", good)

    with_calls(ps, story)
    assert ps.queue("q").stats().ready == 2


def test_a_store_that_failed_is_not_asked_again(ps: Penstock, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def fails(self: Queue, messages: Sequence[NewMessage]) -> Any:
        asked.append(len(messages))
        raise StorageError("the disk is gone")

    monkeypatch.setattr(Queue, "enqueue_many", fails)

    async def story(calls: StoreCalls) -> None:
        parts = [calls.enqueue("q", [NewMessage(b"x")]) for _ in range(3)]
        found = await asyncio.gather(*parts, return_exceptions=True)
        assert all(isinstance(one, StorageError) for one in found)

    with_calls(ps, story)
    assert asked == [3]


def test_a_large_call_is_not_made_larger(ps: Penstock, batches: list[int]) -> None:
    async def story(calls: StoreCalls) -> None:
        parts = [[NewMessage(b"x")] * 300, [NewMessage(b"x")] * 300, [NewMessage(b"y" * 3_000_000)]]
        await asyncio.gather(*(calls.enqueue("q", part) for part in [*parts, parts[2]]))

    with_calls(ps, story)
    assert batches == [300, 301, 1]


@pytest.mark.parametrize("mode", ["sync", "os"])
def test_calls_that_may_come_again_go_together_and_each_answer_is_kept_for_its_caller(
    tmp_path: Path, batches: list[int], mode: str
) -> None:
    callers = [CallId(bytes([n]) * 16, n) for n in range(1, 5)]

    async def story(calls: StoreCalls) -> None:
        # The second and the last are nobody's: what is kept must not slip to a neighbour.
        ids = [callers[0], None, *callers[1:], None]
        sent = [[NewMessage(b"x")] * (1 + n) for n in range(len(ids))]
        told = await asyncio.gather(*(calls.enqueue("q", *one) for one in zip(sent, ids, strict=True)))
        assert batches[1:] == [sum(map(len, sent))]  # The first had come before.
        for call, results in zip(ids, told, strict=True):
            assert call is None or kept(backend, call, EnqueueResult) == list(results)
        leased = await calls.lease("q", 6, None, 0, "", lambda: True)
        receipts = [[one.receipt, "none"] for one in leased]
        outcomes = await asyncio.gather(*(calls.ack("q", *one) for one in zip(receipts, ids, strict=True)))
        for call, (done, refused) in zip(ids, outcomes, strict=True):
            assert (done.ok, refused.ok) == (True, False)
            if call is not None:
                assert [one.ok for one in kept(backend, call, Outcome)] == [True, False]

    with penstock.open(f"rocksdb:{tmp_path}?durability={mode}") as ps:
        ps.create_queue("q").enqueue_many([NewMessage(b"first")])
        backend = cast(EmbeddedBackend, ps.backends["default"])
        with_calls(ps, story)


def kept(backend: EmbeddedBackend, call: CallId, kind: Any) -> Any:
    raw = backend.answer_of(*call)
    assert raw is not None
    return decoder(list[kind]).decode(raw)


def test_acks_go_together_and_tell_each_what_became_of_its_own(ps: Penstock) -> None:
    ps.queue("q").enqueue_many([NewMessage(b"%d" % n) for n in range(10)])

    async def story(calls: StoreCalls) -> None:
        found = await calls.lease("q", 10, None, 0, "", lambda: True)
        receipts = [one.receipt for one in found]
        outcomes = await asyncio.gather(*(calls.ack("q", [one, "no receipt"]) for one in receipts))
        assert [(one.error is None, other.error is None) for one, other in outcomes] == [(True, False)] * 10

    with_calls(ps, story)
    assert ps.queue("q").length() == 0


def test_calls_beyond_the_limit_are_refused_and_nothing_is_done(ps: Penstock) -> None:
    async def story(calls: StoreCalls) -> None:
        entered, go_on = threading.Event(), threading.Event()

        def slow() -> None:
            entered.set()
            go_on.wait(10)

        first = asyncio.create_task(calls.run(slow))
        await asyncio.to_thread(entered.wait, 10)
        refused: list[Callable[[], Awaitable[Any]]] = [
            lambda: calls.enqueue("q", [NewMessage(b"x")]),
            lambda: calls.ack("q", []),
            lambda: calls.lease("q", 1, None, 0, "", lambda: True),
            lambda: calls.run(slow),
        ]
        for call in refused:
            with pytest.raises(Busy) as caught:
                await call()
            assert caught.value.status == 503
        go_on.set()
        await first

    with_calls(ps, story, Limits(max_calls=1))
    assert ps.queue("q").length() == 0


def test_a_client_that_went_before_its_turn_is_left_out(ps: Penstock) -> None:
    async def story(calls: StoreCalls) -> None:
        gone = asyncio.create_task(calls.enqueue("q", [NewMessage(b"gone")]))
        await asyncio.sleep(0)
        gone.cancel()
        await calls.enqueue("q", [NewMessage(b"here")])

    with_calls(ps, story)
    assert [one.payload for one in ps.queue("q").peek(5)] == [b"here"]


@pytest.mark.parametrize("terms", [(0, None, 0.0), (-1, None, 0.0), (1, -5.0, 0.0), (1, None, -1.0)])
def test_leases_that_make_no_sense_are_refused_as_in_the_library(
    ps: Penstock, terms: tuple[int, float | None, float]
) -> None:
    def of(error: Exception | None) -> tuple[type[Exception] | None, str]:
        return type(error) if error else None, str(error)

    def expected() -> Exception | None:
        try:
            ps.queue("q").lease(*terms)
        except Exception as error:  # noqa: BLE001
            return error
        return None

    async def story(calls: StoreCalls) -> None:
        found: Exception | None = None
        try:
            await calls.lease("q", *terms, "", lambda: True)
        except Exception as error:  # noqa: BLE001
            found = error
        assert of(found) == of(expected())

    with_calls(ps, story)
