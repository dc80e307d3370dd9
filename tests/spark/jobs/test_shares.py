"""Fair shares in a report: a key that asks for little does not look wronged, and one that is starved does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyspark.sql
import pytest
from pyspark.sql import SparkSession

from penstock import ManualClock, NewMessage, Queue
from penstock.spark.jobs.lives import extents
from penstock.spark.jobs.reporting.buckets import buckets
from penstock.spark.jobs.reporting.moves import moves
from penstock.spark.jobs.reporting.shares import shares
from tests.spark.jobs.histories import opened
from tests.spark.jobs.stored import Row, changed, frames, tables_of

TICKS, A_TICK = 60, 3

Shares = Mapping[str, pyspark.sql.Row]
Fill = Callable[[Queue, int], None]


@pytest.fixture
def worked(spark: SparkSession, tmp_path: Path) -> Callable[..., Shares]:
    def run(fill: Fill, told: Callable[[Row], dict[str, Any]] = lambda _: {}) -> Shares:
        """A queue, filled before each tick and worked on in it; bodies then say what `told` makes of them."""
        clock = ManualClock()
        with opened(tmp_path / "store", clock) as ps:
            queue = ps.create_queue("q")
            queue.cursor("archive", required=True)
            began_ns = clock.now_ns()
            clock.advance(0.08)
            for tick in range(TICKS):
                fill(queue, tick)
                clock.advance(0.07)  # A piece of time ends, and another begins.
                queue.ack([one.receipt for one in queue.lease(max_messages=A_TICK)])
                clock.advance(0.03)
            stored = tables_of(ps)
        bodies = changed(stored["bodies"], lambda rows: [{**row, **told(row)} for row in rows])
        read = frames(spark, {"events": stored["events"], "bodies": bodies})
        known = moves(read["events"], extents(read["events"]), read["bodies"])
        pieces = buckets(began_ns, clock.now_ns(), began_ns)
        assert pieces.width_s == 0.1
        return {row.fairness_key: row for row in shares(known, pieces).collect()}

    return run


def _as_payload(row: Row) -> dict[str, Any]:
    """As if the queue had had keys, and paid no attention to them: all that comes is of one, and in order."""
    return {"fairness_key": bytes(row["payload"]).decode(), "priority": 4}


def test_a_key_that_asks_for_little_gets_all_it_asked_for(worked: Callable[..., Shares]) -> None:
    """It has a message ready where each piece of time ends, and none that waits through one."""

    def fill(queue: Queue, tick: int) -> None:
        loud = [NewMessage(b"x", fairness_key="loud") for _ in range(150 if tick == 0 else 0)]
        queue.enqueue_many([*loud, NewMessage(b"x", fairness_key="modest")])

    rows = worked(fill)
    assert (rows["loud"].short > TICKS / 2, rows["modest"].short) == (True, 0)
    assert rows["modest"].due == rows["modest"].delivered > TICKS / 2
    assert rows["loud"].due == rows["loud"].delivered


def test_keys_that_all_have_too_much_get_what_their_weights_make_due(worked: Callable[..., Shares]) -> None:
    def fill(queue: Queue, tick: int) -> None:
        if tick == 0:
            for key, weight in (("one", 1), ("two", 2)):
                queue.enqueue_many([NewMessage(b"x", fairness_key=key, weight=weight) for _ in range(150)])

    rows = worked(fill)
    for key, part in (("one", 1 / 3), ("two", 2 / 3)):
        assert rows[key].due_share == pytest.approx(part)
        assert rows[key].share == pytest.approx(part, abs=0.02)


def test_a_key_that_comes_last_in_an_unfair_queue_looks_starved(worked: Callable[..., Shares]) -> None:
    def fill(queue: Queue, tick: int) -> None:
        if tick == 0:
            queue.enqueue_many([NewMessage(b"loud") for _ in range(TICKS * A_TICK)])
            queue.enqueue_many([NewMessage(b"starved") for _ in range(40)])

    rows = worked(fill, _as_payload)
    assert (rows["starved"].delivered, rows["loud"].share) == (0, 1)
    assert rows["starved"].due_share == pytest.approx(0.5)


def test_a_key_that_is_always_served_at_once_does_not_hide_that_it_starves_another(
    worked: Callable[..., Shares],
) -> None:
    """It never goes short itself: only what it was given tells that it had more than was due."""

    def fill(queue: Queue, tick: int) -> None:
        queue.enqueue_many([NewMessage(b"greedy", priority=9) for _ in range(A_TICK)])
        if tick == 0:
            queue.enqueue_many([NewMessage(b"starved", priority=0) for _ in range(TICKS * A_TICK)])

    rows = worked(fill, _as_payload)
    assert rows["greedy"].delivered > 1.5 * rows["greedy"].due
    assert rows["starved"].delivered < 0.5 * rows["starved"].due


def test_one_message_that_is_passed_over_makes_no_more_than_one_due(worked: Callable[..., Shares]) -> None:
    def fill(queue: Queue, tick: int) -> None:
        queue.enqueue_many([NewMessage(b"loud") for _ in range(A_TICK)])
        if tick == 10:
            queue.enqueue(b"late")
            queue.enqueue_many([NewMessage(b"loud") for _ in range(A_TICK)])

    rows = worked(fill, _as_payload)
    assert rows["late"].short == 1
    assert rows["late"].due == rows["late"].delivered + rows["late"].short
