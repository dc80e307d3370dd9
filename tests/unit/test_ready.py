"""The ready index hands out every row once, in order, in fair turns, and reads no more than it needs."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.backends.embedded import lanes
from penstock.backends.embedded.lanes import DISCOVERY_SLICE, FILL_ROWS
from penstock.scheduling.fairness import LEVELS, STARVATION_BOUND
from tests.unit.ready_bench import Bench, Item, Name, lane_of

# Every row once, in order, whatever is cached, forgotten or written down


SMALL: dict[str, Any] = {
    "CACHED_ROWS": 6,
    "CACHED_ROWS_MIN": 2,
    "FILL_ROWS": 3,
    "DISCOVERY_SLICE": 2,
    "HINT_EVERY": 3,
}
LANES: list[Name] = [(4, ""), (4, "a"), (4, "b"), (9, ""), (0, "a")]

Change = tuple[Any, ...]


def random_changes(rng: random.Random, count: int) -> list[Change]:
    """Mostly ever later places, as enqueues give; now and then an earlier one, as passed delays do."""
    out: list[Change] = []
    for place in range(0, count * 5, 5):
        what = rng.choice(["add", "add", "add", "take", "take", "remove", "reopen", "look"])
        if what == "add":
            start = place if rng.random() < 0.7 else rng.randrange(place + 1)
            orders = sorted(rng.sample(range(start, start + 8), rng.randint(1, 5)))
            out.append(("add", rng.choice(LANES), orders))
        else:
            out.append((what, rng.randint(1, 6)))
    return out


def apply(bench: Bench, change: Change) -> None:
    what, *rest = change
    if what == "add":
        name, orders = rest
        fresh = [order_ns for order_ns in orders if (name, order_ns) not in bench.live]
        if fresh:
            bench.add(name, fresh)
    elif what == "take":
        check_taken(bench, dict(bench.live), bench.take(rest[0]), rest[0])
    elif what == "remove" and bench.live:
        bench.remove(sorted(bench.live)[rest[0] % len(bench.live)])
    elif what == "reopen":
        bench.reopen()
    elif what == "look":
        check_reading(bench, rest[0])


def check_taken(bench: Bench, before: dict[Item, int], taken: list[Item], wanted: int) -> None:
    assert len(taken) == min(wanted, len(before)), "a live row was hidden"
    for name in LANES:
        mine = [order_ns for lane, order_ns in taken if lane == name]
        assert mine == sorted(order_ns for lane, order_ns in before if lane == name)[: len(mine)]


def check_reading(bench: Bench, n: int) -> None:
    everything = bench.keys_of(list(bench.live))
    assert [key for key, _ in bench.index.scan(None)] == everything
    oldest = min((order_ns for _, order_ns in bench.live), default=None)
    assert bench.index.oldest_order_ns() == oldest
    for name in LANES:
        of_lane = bench.keys_of([item for item in bench.live if item[0] == name])
        assert [key for key, _ in bench.index.scan(None, lane_of(name))] == of_lane
    if everything:
        after = everything[n % len(everything)]
        assert [key for key, _ in bench.index.scan(after)] == [key for key in everything if key > after]


@settings(max_examples=300)
@given(seed=st.integers(0, 1 << 32), count=st.integers(0, 60))
def test_every_row_is_handed_out_once_and_in_order_whatever_is_cached_forgotten_or_hinted(
    seed: int, count: int
) -> None:
    with mock.patch.multiple(lanes, **SMALL):
        bench = Bench()
        for change in random_changes(random.Random(seed), count):
            apply(bench, change)
        check_reading(bench, 0)
        rest = dict(bench.live)
        check_taken(bench, rest, bench.take(len(rest) + 1), len(rest) + 1)
        assert bench.live == {}
        assert bench.take(1) == []


@settings(max_examples=200)
@given(seed=st.integers(0, 1 << 32), count=st.integers(0, 60))
def test_a_fifo_key_has_one_row_out_and_a_returned_row_keeps_its_place(seed: int, count: int) -> None:
    rng = random.Random(seed)
    with mock.patch.multiple(lanes, **SMALL):
        bench, out = Bench(fifo=True), dict[Name, int]()
        for place in range(count):
            what = rng.choice(["add"] * 3 + ["take"] * 3 + ["finish", "return", "return", "delay", "reopen"])
            if what == "add":
                bench.add((4, rng.choice(["", "a", "b"])), [place])
            elif what == "take":
                heads = dict(sorted(bench.live, reverse=True))
                free = {name: order_ns for name, order_ns in heads.items() if name not in out}
                wanted = rng.randint(1, 4)
                taken = bench.take(wanted)
                assert len(taken) == min(wanted, len(free))
                assert set(taken) <= set(free.items())
                out |= dict(taken)
            elif what in ("finish", "return", "delay") and out:
                name = rng.choice(sorted(out))
                bench.index.ended(lane_of(name))
                if what == "delay":  # A nack with a delay: it leaves one state that blocks for another.
                    bench.index.started(lane_of(name))
                elif what == "return":
                    bench.add(name, [out.pop(name)])
                else:
                    del out[name]
            elif what == "reopen":
                bench.reopen()
                for name in out:
                    bench.index.started(lane_of(name))


def test_a_row_that_falls_behind_a_full_cache_is_not_hidden() -> None:
    with mock.patch.multiple(lanes, CACHED_ROWS=4, CACHED_ROWS_MIN=4):
        bench = Bench()
        bench.take(1)
        bench.add((4, ""), [10, 11, 12, 13])
        bench.add((4, ""), [20])  # More than the cache takes: from here on, the store is read.
        bench.add((4, ""), [15])  # A delay that passed before 20 was enqueued.
        assert [order_ns for _, order_ns in bench.take(9)] == [10, 11, 12, 13, 15, 20]


def test_a_row_added_behind_a_whole_cache_is_handed_out_without_reading() -> None:
    bench = Bench()
    bench.take(1)
    bench.add((4, ""), [1])
    bench.take(1)
    bench.store.forget()
    for order_ns in range(2, 200):
        bench.add((4, ""), [order_ns])
        assert bench.take(5) == [((4, ""), order_ns)]
    assert bench.store.lowers == []


# Discovery: lanes are found by seeking from one to the next


def test_opening_reads_nothing_and_lanes_are_found_a_slice_at_a_time_by_seeking() -> None:
    bench, rows_a_lane, lanes = Bench(), 20, 5000
    for n in range(lanes):
        bench.add((4, f"key-{n}"), [n * rows_a_lane + i for i in range(rows_a_lane)])
    bench.store.forget()
    bench.reopen()
    assert bench.store.lowers == []

    first = bench.take(1)
    assert len(first) == 1
    # A seek and a row for each lane that was found, and the rows of the lane that was served.
    assert len(bench.store.lowers) <= DISCOVERY_SLICE + 2 * LEVELS + 2
    assert bench.store.rows_read <= DISCOVERY_SLICE + LEVELS + FILL_ROWS

    slices = -(-lanes // DISCOVERY_SLICE)
    served = Counter(name for _ in range(slices) for name, _ in bench.take(100))
    # All are known now: one round serves each.
    served += Counter(name for name, _ in bench.take(lanes))
    assert len(served + Counter(name for name, _ in first)) == lanes
    assert max(served.values()) <= 2


def test_no_row_is_handed_out_twice_though_its_lane_was_found_ahead_of_the_others() -> None:
    bench = Bench()
    for n in range(DISCOVERY_SLICE + 500):
        bench.add((9, f"key-{n}"), [n])
    bench.add((0, ""), [1])
    bench.reopen()
    assert len(bench.take(10_000)) == DISCOVERY_SLICE + 501
    assert bench.live == {}


def test_a_lane_that_is_not_discovered_yet_gets_what_is_added_to_it() -> None:
    with mock.patch.multiple(lanes, DISCOVERY_SLICE=1):
        bench = Bench()
        for n in range(10):
            bench.add((4, str(n)), [n])
        bench.reopen()
        bench.take(1)
        bench.add((4, "9"), [100])
        bench.add((4, "99"), [101])
        assert len(bench.take(99)) == 11


# Turns: priorities first, none starved; keys share by weight


class Turns:
    """Deliveries since each level was last served, while it had something."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.unserved: Counter[int] = Counter()

    def take(self, count: int) -> list[Item]:
        waiting = Counter(name[0] for name, _ in self.bench.live)
        taken = self.bench.take(count)
        for name, _ in taken:
            for level in range(LEVELS):
                self.unserved[level] = self.unserved[level] + 1 if waiting[level] and level != name[0] else 0
                assert self.unserved[level] < STARVATION_BOUND, f"priority {level} starves"
            waiting[name[0]] -= 1
        return taken


@pytest.mark.parametrize("levels", range(2, 11))
@pytest.mark.parametrize("size", [1, 3, 7, 20, 100])
def test_every_twenty_deliveries_hold_one_of_each_priority_and_the_top_gets_the_rest(
    levels: int, size: int
) -> None:
    bench, place = Bench(), iter(range(1_000_000))
    turns = Turns(bench)
    served: list[int] = []
    for priority in range(levels):
        bench.add((priority, ""), [next(place) for _ in range(400)])
    while len(served) < 300:
        served += [name[0] for name, _ in turns.take(size)]
    for start in range(len(served) - STARVATION_BOUND + 1):
        window = Counter(served[start : start + STARVATION_BOUND])
        assert set(window) == set(range(levels))
        assert window[levels - 1] >= STARVATION_BOUND - 2 * (levels - 1)
    share = Counter(served)[levels - 1] / len(served)
    assert share >= (STARVATION_BOUND - (levels - 1)) / STARVATION_BOUND - 0.02


@settings(max_examples=150)
@given(
    history=st.lists(
        st.one_of(
            st.tuples(st.just("add"), st.integers(0, 9), st.integers(1, 40)),
            st.tuples(st.just("take"), st.integers(1, 50), st.just(0)),
        ),
        max_size=40,
    )
)
def test_no_priority_starves_as_others_come_and_go(history: list[tuple[str, int, int]]) -> None:
    bench, place = Bench(), 0
    turns = Turns(bench)
    for what, number, count in history:
        if what == "add":
            bench.add((number, str(place % 2)), list(range(place, place + count)))
            place += count
        else:
            turns.take(number)
    while bench.live:
        turns.take(7)


def test_after_reopening_with_many_lanes_the_lowest_priority_is_served_from_the_start() -> None:
    bench = Bench()
    for n in range(DISCOVERY_SLICE + 100):
        bench.add((9, f"key-{n}"), [n])
    bench.add((0, ""), [1])
    bench.reopen()
    Turns(bench).take(100)


def test_lanes_that_are_not_discovered_yet_go_before_those_of_lower_priorities() -> None:
    with mock.patch.multiple(lanes, DISCOVERY_SLICE=2):
        bench = Bench()
        for n in range(10):
            bench.add((9, f"key-{n}"), [n])
        bench.add((0, ""), list(range(100, 120)))
        bench.reopen()
        assert [name[0] for name, _ in bench.take(15)] == [9] * 10 + [0] * 5


@settings(max_examples=60)
@given(
    weights=st.lists(st.integers(1, 9), min_size=2, max_size=6),
    sizes=st.lists(st.integers(1, 25), min_size=1, max_size=30),
)
def test_every_round_serves_each_key_by_its_weight_whatever_the_batches(
    weights: list[int], sizes: list[int]
) -> None:
    bench, place = Bench(), 0
    rounds = sum(sizes) // sum(weights) + 2
    for key, weight in enumerate(weights):
        count = weight * rounds
        bench.add((4, str(key)), list(range(place, place + count)), weight)
        place += count
    served = [int(name[1]) for size in sizes for name, _ in bench.take(size)]
    assert len(served) == sum(sizes)
    for start in range(0, len(served) - sum(weights) + 1, sum(weights)):
        turn = Counter(served[start : start + sum(weights)])
        assert [turn[key] for key in range(len(weights))] == weights


@settings(max_examples=60)
@given(weights=st.lists(st.integers(1, 9), min_size=1, max_size=6), before=st.integers(0, 50))
def test_a_newly_active_key_is_served_within_one_round(weights: list[int], before: int) -> None:
    bench, place = Bench(), 0
    for key, weight in enumerate(weights):
        bench.add((4, str(key)), list(range(place, place + 200)), weight)
        place += 200
    bench.take(before)
    bench.add((4, "new"), [place])
    served = [name[1] for name, _ in bench.take(sum(weights) + 1)]
    assert "new" in served


def test_the_weight_of_a_key_is_that_of_its_message_at_the_head() -> None:
    bench = Bench()
    bench.add((4, "a"), [1], weight=1)
    bench.add((4, "a"), [2, 3, 4, 5], weight=3)
    bench.add((4, "b"), list(range(100, 120)), weight=1)
    served = "".join(name[1] for name, _ in bench.take(8))
    # One for the first head, then three in a turn.
    assert served in ("abaaabab", "babaaaba")


def test_a_key_alone_takes_the_whole_batch() -> None:
    bench = Bench()
    bench.add((4, "a"), list(range(50)))
    assert len(bench.take(50)) == 50
