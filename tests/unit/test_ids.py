"""Message ids are UUIDv7 that only ever increase, whatever the clock does."""

from __future__ import annotations

import random
import uuid

from hypothesis import given
from hypothesis import strategies as st

from penstock.ids import IdGenerator
from penstock.message import format_id

MS = 1_000_000
NOW_NS = 1_700_000_000_123_456_789
LAST_NS = (1 << 48) * MS - 1


def ids(generator: IdGenerator, count: int, now_ns: int) -> list[bytes]:
    """The ids of one batch, made as an enqueue makes them."""
    high, _, low = generator.take(count, now_ns)
    return [high + (low + i).to_bytes(6, "big") for i in range(count)]


@given(now_ns=st.integers(0, LAST_NS), seed=st.integers())
def test_an_id_is_a_uuid_of_version_7_with_the_time_in_milliseconds(now_ns: int, seed: int) -> None:
    one = uuid.UUID(bytes=IdGenerator(random.Random(seed)).one(now_ns))
    assert one.version == 7
    assert one.variant == uuid.RFC_4122
    assert one.int >> 80 == now_ns // MS


@given(count=st.integers(1, 50), seed=st.integers())
def test_the_text_of_a_batch_is_what_uuid_says(count: int, seed: int) -> None:
    high, text, low = IdGenerator(random.Random(seed)).take(count, NOW_NS)
    for i in range(count):
        raw = high + (low + i).to_bytes(6, "big")
        assert f"{text}{low + i:012x}" == str(uuid.UUID(bytes=raw)) == format_id(raw)


@given(
    batches=st.lists(
        st.tuples(st.integers(1, 1000), st.integers(-5 * MS, 5 * MS)),
        min_size=1,
        max_size=30,
    ),
    seed=st.integers(),
)
def test_ids_increase_within_and_across_batches_though_the_clock_steps_back(
    batches: list[tuple[int, int]], seed: int
) -> None:
    generator, now_ns, made = IdGenerator(random.Random(seed)), NOW_NS, []
    for count, step_ns in batches:
        now_ns += step_ns
        made += ids(generator, count, now_ns)
    assert made == sorted(made)
    assert len(set(made)) == len(made)
    assert {uuid.UUID(bytes=one).version for one in made} == {7}


def test_a_hundred_thousand_ids_of_one_millisecond_differ() -> None:
    generator = IdGenerator(random.Random(7))
    made = [generator.one(NOW_NS) for _ in range(50_000)]
    for _ in range(50):
        made += ids(generator, 1000, NOW_NS)
    assert len(set(made)) == 100_000
    assert made == sorted(made)


def test_generators_with_different_randomness_do_not_meet() -> None:
    made = [IdGenerator(random.Random(seed)).one(NOW_NS) for seed in range(10_000)]
    assert len(set(made)) == 10_000


def test_a_clock_far_behind_still_gives_later_ids() -> None:
    generator = IdGenerator(random.Random(1))
    before = generator.one(NOW_NS)
    assert generator.one(0) > before
    assert generator.one(NOW_NS + MS) > before


class Spent(random.Random):
    """Randomness that always starts a run at its highest number."""

    def getrandbits(self, k: int, /) -> int:
        return (1 << k) - 1


def test_a_run_that_would_overflow_goes_on_in_the_next_millisecond() -> None:
    generator = IdGenerator(Spent())
    first = generator.one(NOW_NS)
    # More than what is left of the 48 low bits: the batch may not wrap around into smaller ids.
    high, _, low = generator.take((1 << 47) + 1, NOW_NS)
    assert low + (1 << 47) < 1 << 48
    assert high + low.to_bytes(6, "big") > first
    assert uuid.UUID(bytes=generator.one(NOW_NS)).version == 7


def test_the_same_clock_and_randomness_give_the_same_ids() -> None:
    one, other = (IdGenerator(random.Random(3)) for _ in range(2))
    assert [one.one(NOW_NS + i) for i in range(100)] == [other.one(NOW_NS + i) for i in range(100)]


def test_another_opening_of_a_store_gives_other_ids_from_the_same_clock_and_randomness() -> None:
    made = [IdGenerator(random.Random(3), opening).one(NOW_NS) for opening in range(5000)]
    assert len(set(made)) == 5000
    assert {uuid.UUID(bytes=one).version for one in made} == {7}
