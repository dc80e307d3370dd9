"""Token buckets: exact to the nanosecond, whatever the rate, over any time."""

from __future__ import annotations

import random
from fractions import Fraction

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.clock import NS_PER_S
from penstock.errors import InvalidMessage
from penstock.scheduling.throttle import (
    MAX_BURST,
    NEVER_NS,
    PLENTY,
    TOKEN,
    Bucket,
    checked_burst,
    checked_rate,
)

START_NS = 1_700_000_000 * NS_PER_S
rates = st.one_of(st.just(0), st.floats(1e-6, 1e6))
bursts = st.integers(0, 1000)


def bucket(rate_per_s: float, burst: int, now_ns: int = START_NS) -> Bucket:
    made = Bucket("k")
    made.limit(checked_rate(rate_per_s), burst, now_ns)
    return made


@settings(max_examples=300)
@given(rate_per_s=rates, burst=bursts, seed=st.integers(0, 1 << 32))
def test_tokens_are_what_fractions_say_however_they_are_taken(
    rate_per_s: float, burst: int, seed: int
) -> None:
    rng, now_ns, made = random.Random(seed), START_NS, bucket(rate_per_s, burst)
    rate, level = Fraction(checked_rate(rate_per_s), NS_PER_S), Fraction(burst)
    for _ in range(60):
        step_ns = rng.choice([0, 1, 17, rng.randrange(10**6), rng.randrange(10**12)])
        now_ns += step_ns
        level = min(Fraction(burst), level + rate * step_ns / NS_PER_S)
        assert made.tokens(now_ns) == level // 1
        assert Fraction(made._units(now_ns), TOKEN) == level
        count = rng.randrange(made.tokens(now_ns) + 1)
        made.take(count, now_ns)
        level -= count
        if rng.random() < 0.2:
            made.give_back(1)
            level = min(Fraction(burst), level + 1)


@settings(max_examples=300)
@given(
    rate_per_s=rates, burst=bursts, taken=bursts, count=st.integers(1, 20), later_ns=st.integers(0, 10**12)
)
@example(rate_per_s=1 / 3, burst=1, taken=1, count=1, later_ns=0)
def test_a_bucket_says_the_first_nanosecond_at_which_it_has_so_many(
    rate_per_s: float, burst: int, taken: int, count: int, later_ns: int
) -> None:
    made, now_ns = bucket(rate_per_s, burst), START_NS + later_ns
    made.take(min(taken, burst), START_NS)
    ready_ns = made.ready_at_ns(count, now_ns)
    if ready_ns == NEVER_NS:
        assert count > burst or not made.rate_nano
        return
    assert made.tokens(ready_ns) >= count
    assert ready_ns == now_ns or made.tokens(ready_ns - 1) < count


@pytest.mark.parametrize("rate_per_s", [0.0001, 1 / 7, 0.7, 3, 999.9, 123456.789])
def test_a_rate_holds_over_a_month_to_the_token(rate_per_s: float) -> None:
    """Taken as soon as there is one: only what is left of a token is missing."""
    made, now_ns, count = bucket(rate_per_s, 2), START_NS, 0
    made.take(2, now_ns)
    for _ in range(2000):
        now_ns = made.ready_at_ns(1, now_ns)
        made.take(1, now_ns)
        count += 1
    seconds = (now_ns - START_NS) / NS_PER_S
    assert abs(count - seconds * rate_per_s) <= 1 + count * 1e-5


def test_time_that_runs_backwards_adds_nothing_and_takes_nothing() -> None:
    made = bucket(1, 10)
    made.take(10, START_NS)
    assert made.tokens(START_NS - 100 * NS_PER_S) == 0
    assert made.ready_at_ns(1, START_NS - 100 * NS_PER_S) == START_NS + NS_PER_S
    made.take(0, START_NS - 100 * NS_PER_S)
    assert made.tokens(START_NS + NS_PER_S) == 1


def test_without_a_limit_there_are_plenty_and_at_once() -> None:
    made = Bucket("k")
    made.take(1000, START_NS)
    made.give_back(5)
    assert (made.tokens(START_NS), made.ready_at_ns(99, START_NS)) == (PLENTY, START_NS)


def test_what_a_bucket_has_stays_when_its_limit_is_changed() -> None:
    made = bucket(1, 10)
    made.take(4, START_NS)
    made.limit(checked_rate(5), 20, START_NS)
    assert made.tokens(START_NS) == 6
    made.limit(checked_rate(5), 3, START_NS)
    assert made.tokens(START_NS) == 3
    made.unlimit()
    made.limit(checked_rate(5), 3, START_NS)
    assert made.tokens(START_NS) == 3


@pytest.mark.parametrize("rate", [0, 0.0, 1e-6, 1, 0.1, 1_000_000, 1e6])
def test_rates_that_can_be_are_kept_to_a_billionth(rate: float) -> None:
    assert checked_rate(rate) == round(Fraction(str(rate)) * NS_PER_S)


@pytest.mark.parametrize("wrong", [-1, 1e-7, 1e6 + 1, float("nan"), float("inf"), True, "1", None, 10**400])
def test_a_rate_that_cannot_be_is_refused(wrong: object) -> None:
    with pytest.raises(InvalidMessage, match="rate_per_s"):
        checked_rate(wrong)


@pytest.mark.parametrize("wrong", [-1, 0.5, MAX_BURST + 1, float("nan"), float("inf"), False, "1", None])
def test_a_burst_that_cannot_be_is_refused(wrong: object) -> None:
    with pytest.raises(InvalidMessage, match="burst"):
        checked_burst(wrong)


def test_a_burst_is_a_whole_number_whoever_wrote_it() -> None:
    assert [checked_burst(10.0), checked_burst(0), checked_burst(MAX_BURST)] == [10, 0, MAX_BURST]
