"""A batch of times is counted as each of them would be by itself."""

from __future__ import annotations

import random

import pytest

from penstock.backends.meters import TIME_BOUNDS, Meter
from penstock.clock import NS_PER_S

NOW_NS = 1_800_000_000 * NS_PER_S
BOUNDS_NS = [round(bound * NS_PER_S) for bound in TIME_BOUNDS]


def alone(ages_ns: list[int]) -> Meter:
    meter = Meter(TIME_BOUNDS)
    for age_ns in ages_ns:
        meter.observe(age_ns / NS_PER_S)
    return meter


@pytest.mark.parametrize("seed", range(20))
def test_times_of_a_batch_fall_into_the_buckets_of_each(seed: int) -> None:
    rng = random.Random(seed)
    edges = [bound_ns + off for bound_ns in BOUNDS_NS for off in (-1, 0, 1)]
    ages_ns = rng.sample(edges, rng.randrange(1, len(edges))) + [rng.randrange(10**14) for _ in range(seed)]
    meter = Meter(TIME_BOUNDS)
    meter.observe_since(NOW_NS, [NOW_NS - age_ns for age_ns in ages_ns])
    expected = alone(ages_ns).read()
    assert meter.read().counts == expected.counts
    assert meter.read().total == pytest.approx(expected.total)


def test_a_time_to_come_and_one_beyond_all_bounds_are_counted() -> None:
    meter = Meter(TIME_BOUNDS)
    meter.observe_since(NOW_NS, [NOW_NS + 5, NOW_NS - 10**15, NOW_NS])
    counts = meter.read().counts
    assert (counts[0], counts[-1], sum(counts)) == (2, 1, 3)
