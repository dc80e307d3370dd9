"""Pieces of time and marks of axes: what people count in, and enough of them."""

from __future__ import annotations

import random

import pytest

from penstock.clock import NS_PER_S
from penstock.spark.jobs.reporting import axes
from penstock.spark.jobs.reporting.buckets import MOST, WIDTHS_NS, buckets

NOON_NS = 1_794_830_400 * NS_PER_S  # 2026-11-16, 12:00 UTC


def test_pieces_cover_both_moments_and_are_few() -> None:
    rng = random.Random(3)
    for _ in range(2000):
        first_ns = rng.randrange(2**60)
        last_ns = first_ns + int(10 ** rng.uniform(0, 17))
        found = buckets(first_ns, last_ns)
        assert found.start_ns <= first_ns <= last_ns < found.end_ns
        assert found.width_ns in WIDTHS_NS
        assert found.start_ns % found.width_ns == 0
        assert found.count <= MOST + 1


def test_pieces_of_a_time_that_was_asked_for_start_there() -> None:
    since_ns = NOON_NS + 7 * 60 * NS_PER_S
    found = buckets(NOON_NS + 3600 * NS_PER_S, since_ns + 36_000 * NS_PER_S - 1, since_ns)
    assert (found.start_ns, found.width_s, found.count) == (since_ns, 600, 60)
    assert found.until_ns == found.end_ns == since_ns + 36_000 * NS_PER_S
    assert buckets(since_ns, since_ns, since_ns).count == 1


@pytest.mark.parametrize(
    ("span_s", "width_s"),
    [(0, 0.001), (60, 1), (3600, 60), (8 * 3600, 300), (86_400, 900), (29 * 86_400, 21_600)],
)
def test_pieces_have_a_width_that_people_count_in(span_s: int, width_s: float) -> None:
    assert buckets(NOON_NS, NOON_NS + span_s * NS_PER_S).width_s == width_s


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0, "0"), (0.25, "0.25"), (7, "7"), (12.34, "12.3"), (999, "999"), (3400, "3.40k"), (2e6, "2M")],
)
def test_amounts_are_short(value: float, shown: str) -> None:
    assert axes.amount(value) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0, "0 s"),
        (4e-5, "40 µs"),
        (0.0125, "12.5 ms"),
        (0.85, "850 ms"),
        (12.5, "12.5 s"),
        (200, "3 m 20 s"),
        (4 * 3600, "4 h"),
        (2 * 86_400 + 3 * 3600, "2 d 3 h"),
    ],
)
def test_durations_are_in_the_units_of_clocks(seconds: float, shown: str) -> None:
    assert axes.duration(seconds) == shown


def test_an_axis_ends_at_a_round_number_above_the_highest() -> None:
    rng = random.Random(4)
    for _ in range(2000):
        highest = 10 ** rng.uniform(-9, 12)
        for marks in (axes.numbers(highest), axes.durations(highest)):
            assert marks[0].at == 0
            assert marks[-1].at >= highest * (1 - 1e-9)
            assert 2 <= len(marks) <= 8, highest


def test_an_axis_of_nothing_has_marks() -> None:
    assert [mark.label for mark in axes.numbers(0)] == ["0", "1"]
    assert [mark.label for mark in axes.durations(0)] == ["0 s", "1 s"]


def test_times_are_round_and_name_each_day_once() -> None:
    marks = axes.times(NOON_NS + 7 * NS_PER_S, NOON_NS + 30 * 3600 * NS_PER_S)
    labels = [mark.label for mark in marks]
    assert labels[:4] == ["16 Nov, 15:00", "18:00", "21:00", "17 Nov, 00:00"]
    assert labels[4:] == ["03:00", "06:00", "09:00", "12:00", "15:00", "18:00"]
    days = axes.times(NOON_NS, NOON_NS + 8 * 86_400 * NS_PER_S)
    assert [mark.label for mark in days][:2] == ["17 Nov", "18 Nov"]
    assert axes.times(NOON_NS, NOON_NS + 10_000_000)[1].label == "12:00:00.001"
