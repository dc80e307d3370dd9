"""Lane hints: reopening does not walk over what was consumed, and misses nothing that came back."""

from __future__ import annotations

from unittest import mock

import pytest

from penstock.backends.embedded import keys, lanes
from penstock.backends.embedded.keys import Meta
from penstock.backends.embedded.lanes import HINT_EVERY
from penstock.backends.embedded.ready import ReadyIndex
from penstock.scheduling.fairness import LEVELS
from tests.unit.ready_bench import QID, Bench, lane_of


def test_the_head_of_a_consumed_lane_is_written_down_and_survives_reopening() -> None:
    bench, name = Bench(), (4, "busy")
    bench.add(name, list(range(HINT_EVERY + 10)))
    bench.take(HINT_EVERY)
    hint = bench.store.get(keys.lane_hint(QID, lane_of(name)), bench.engine.meta)
    first_live = bench.row(name, HINT_EVERY, 1)[0]
    assert hint is not None
    assert bench.row(name, HINT_EVERY - 1, 1)[0] < hint[1:] <= first_live

    bench.reopen()
    bench.store.forget()
    assert [order_ns for _, order_ns in bench.take(99)] == list(range(HINT_EVERY, HINT_EVERY + 10))
    assert not any(bench.row(name, 0, 1)[0] <= lower < hint[1:] for lower in bench.store.lowers)
    assert bench.store.rows_read <= 2 * 10 + LEVELS


def test_a_row_that_returns_before_the_hint_is_found_after_reopening() -> None:
    bench, name = Bench(), (4, "busy")
    bench.add(name, list(range(HINT_EVERY + 10)))
    bench.take(HINT_EVERY)
    bench.add(name, [5])
    bench.reopen()
    assert bench.take(2) == [(name, 5), (name, HINT_EVERY)]


def test_hints_of_one_queue_say_nothing_about_another() -> None:
    bench = Bench()
    bench.add((4, ""), list(range(HINT_EVERY)))
    bench.take(HINT_EVERY)
    prefix = keys.meta(Meta.LANE_HINT)
    written = [key for key, _ in bench.store.scan(bench.engine.meta, prefix, keys.after_prefix(prefix))]
    assert written == [keys.lane_hint(QID, lane_of((4, "")))]
    other = ReadyIndex(bench.engine, QID + 1)
    assert list(other.scan(None)) == []


@pytest.mark.parametrize("fifo", [False, True])
def test_a_lane_that_is_always_drained_is_not_walked_over_after_reopening(fifo: bool) -> None:
    with mock.patch.multiple(lanes, HINT_EVERY=8):
        bench, name = Bench(fifo=fifo), (4, "busy")
        for order_ns in range(100):
            bench.add(name, [order_ns])
            assert bench.take(2) == [(name, order_ns)]
            bench.index.ended(lane_of(name))
    bench.reopen()
    bench.add(name, [100])
    bench.store.forget()
    assert bench.take(1) == [(name, 100)]
    walked_over = [n for n in range(100) if bench.store.walked_over(bench.row(name, n, 1)[0])]
    assert walked_over == list(range(96, 100))  # Those since the last hint.
