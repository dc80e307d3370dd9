"""What waits for tokens costs a lease nothing: neither its messages nor its lanes are looked at."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import pytest

from penstock import NewMessage, Queue
from penstock.backends.embedded.gates import Gates
from penstock.backends.embedded.lanes import Lanes
from tests.unit.memory_system import MemorySystem

FEW, MANY = 20, 2000


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """How often lanes were looked at."""
    found: Counter[str] = Counter()
    let_in, fill = Gates.let_in, Lanes.fill

    def counting_let_in(self: Gates, *args: object, **kwargs: object) -> bool:
        found["let_in"] += 1
        return let_in(self, *args, **kwargs)  # type: ignore[arg-type]

    def counting_fill(self: Lanes, *args: object) -> None:
        found["fill"] += 1
        fill(self, *args)  # type: ignore[arg-type]

    with mock.patch.object(Gates, "let_in", counting_let_in), mock.patch.object(Lanes, "fill", counting_fill):
        yield found


def looked_at(q: Queue, system: MemorySystem, leases: int, step_s: float = 0) -> float:
    """Lanes that a lease looks at, on average."""
    with counted() as found:
        for _ in range(leases):
            system.clock.advance(step_s)
            q.lease(1)
    return sum(found.values()) / leases


def lanes_of_one_bucket(system: MemorySystem, q: Queue, lanes: int) -> None:
    system.backend.set_throttle("api", 1, 1)
    q.enqueue_many([NewMessage(fairness_key=f"{n % lanes}", throttle_keys=["api"]) for n in range(3 * lanes)])


def sets_that_share_a_bucket(system: MemorySystem, q: Queue, lanes: int) -> None:
    system.backend.set_throttle("api", 1, 1)
    for n in range(lanes):
        system.backend.set_throttle(f"own {n}", 100, 100)
        q.enqueue_many([NewMessage(fairness_key=f"{n}", throttle_keys=["api", f"own {n}"])] * 3)


def one_key_with_many_sets(system: MemorySystem, q: Queue, lanes: int) -> None:
    system.backend.set_throttle("api", 1, 1)
    q.enqueue_many([NewMessage(throttle_keys=["api", f"own {n % lanes}"]) for n in range(3 * lanes)])


def two_scarce_buckets(system: MemorySystem, q: Queue, lanes: int) -> None:
    system.backend.set_throttle("api", 1, 1)
    system.backend.set_throttle("slow", 0.5, 1)
    q.enqueue_many(
        [NewMessage(fairness_key=f"{n % lanes}", throttle_keys=["api", "slow"]) for n in range(3 * lanes)]
    )


def two_buckets_whose_tokens_never_come_together(system: MemorySystem, q: Queue, lanes: int) -> None:
    for key in ("api", "other"):
        system.backend.set_throttle(key, 1, 1)
        q.enqueue(b"", fairness_key="0", throttle_keys=[key])
        q.lease(1)
        system.clock.advance(0.5)
    sets = (("api",), ("other",), ("api", "other"))
    for n in range(3):
        q.enqueue_many(
            [NewMessage(fairness_key=f"{i}", throttle_keys=sets[(i + n) % 3]) for i in range(lanes)]
        )


SHAPES = [
    lanes_of_one_bucket,
    sets_that_share_a_bucket,
    one_key_with_many_sets,
    two_scarce_buckets,
    two_buckets_whose_tokens_never_come_together,
]


@pytest.mark.parametrize("shape", SHAPES)
def test_a_lease_that_finds_no_tokens_looks_at_nothing(shape: object) -> None:
    system = MemorySystem()
    q = system.create("q")
    shape(system, q, MANY)  # type: ignore[operator]
    q.lease(10)
    q.lease(10)
    assert looked_at(q, system, 50) == 0


@pytest.mark.parametrize("shape", SHAPES)
def test_each_token_costs_the_same_however_many_lanes_wait_for_it(shape: object) -> None:
    costs = {}
    for lanes in (FEW, MANY):
        system = MemorySystem()
        q = system.create("q")
        shape(system, q, lanes)  # type: ignore[operator]
        for _ in range(3):
            system.clock.advance(1)
            q.lease(10)
        costs[lanes] = looked_at(q, system, 50, step_s=1)
    assert costs[MANY] <= costs[FEW] * 1.5 + 1, costs
    assert costs[MANY] <= 10


@pytest.mark.parametrize("shape", SHAPES)
def test_what_is_not_throttled_is_leased_past_it(shape: object) -> None:
    system = MemorySystem()
    q = system.create("q")
    shape(system, q, MANY)  # type: ignore[operator]
    q.enqueue_many([NewMessage(b"free", fairness_key="free")] * 200)
    q.lease(1)
    with counted() as found:
        assert {one.payload for _ in range(100) for one in q.lease(1)} == {b"free"}
    assert sum(found.values()) <= 2 * 100


def test_a_limit_that_is_lifted_lets_all_of_them_go_at_once() -> None:
    system = MemorySystem()
    q = system.create("q")
    lanes_of_one_bucket(system, q, MANY)
    assert len(q.lease(10)) == 1
    system.backend.delete_throttle("api")
    assert len(q.lease(3 * MANY)) == 3 * MANY - 1


@pytest.mark.parametrize("weights", [(1, 1), (1, 9), (3, 5, 11)])
@pytest.mark.parametrize("burst", [1, 4])
def test_tokens_go_by_weight_to_the_message_whatever_the_batches(
    weights: tuple[int, ...], burst: int
) -> None:
    system = MemorySystem()
    q = system.create("q")
    system.backend.set_throttle("api", burst, burst)
    for key, weight in enumerate(weights):
        q.enqueue_many([NewMessage(fairness_key=f"{key}", weight=weight, throttle_keys=["api"])] * 1500)
    served: Counter[str] = Counter()
    while sum(served.values()) < 100 * sum(weights):
        system.clock.advance(1)
        served.update(one.fairness_key for one in q.lease(10))
    for key, weight in enumerate(weights):
        assert abs(served[f"{key}"] - 100 * weight) <= max(2 * weight, 2 * burst), served


def test_a_key_gains_no_tokens_by_naming_more_throttle_keys() -> None:
    system = MemorySystem()
    q = system.create("q")
    system.backend.set_throttle("api", 1, 1)
    q.enqueue_many([NewMessage(fairness_key="plain", throttle_keys=["api"])] * 300)
    q.enqueue_many([NewMessage(fairness_key="fancy", throttle_keys=["api", f"{n % 10}"]) for n in range(300)])
    served: Counter[str] = Counter()
    for _ in range(200):
        system.clock.advance(1)
        served.update(one.fairness_key for one in q.lease(5))
    assert abs(served["plain"] - 100) <= 3, served


def test_a_key_that_was_away_saves_no_tokens_up() -> None:
    system = MemorySystem()
    q = system.create("q", max_leased_per_key=1)
    system.backend.set_throttle("api", 1, 1)
    for key in "ab":
        q.enqueue_many([NewMessage(fairness_key=key, throttle_keys=["api"])] * 400)
    (held,) = q.lease(1)  # From here on, its key has enough in flight.
    other = "b" if held.fairness_key == "a" else "a"
    for _ in range(100):
        system.clock.advance(1)
        (one,) = q.lease(5)
        assert one.fairness_key == other
        q.ack([one.receipt])
        q.extend([held.receipt], 60)
    q.ack([held.receipt])
    served: Counter[str] = Counter()
    for _ in range(20):
        system.clock.advance(1)
        (one,) = q.lease(5)
        served[one.fairness_key] += 1
        q.ack([one.receipt])
    assert abs(served["a"] - 10) <= 2, served


@pytest.mark.parametrize("limit_per_s", [None, 1])
def test_with_a_limit_for_its_key_a_lane_costs_the_same_however_many_others_the_key_has(
    limit_per_s: float | None,
) -> None:
    costs = {}
    for lanes in (FEW, MANY):
        system = MemorySystem()
        q = system.create("q", max_leased_per_key=2)
        for n in range(lanes if limit_per_s else 0):
            system.backend.set_throttle(f"{n}", limit_per_s or 0, 1)
        q.enqueue_many([NewMessage(throttle_keys=[f"{n % lanes}"]) for n in range(3 * lanes)])
        held = q.lease(2)
        with counted() as found:
            for _ in range(15):
                q.ack([held.pop(0).receipt])
                held += q.lease(1)
        costs[lanes] = found.total()
    assert costs[MANY] <= costs[FEW] * 1.5, costs
    assert costs[MANY] <= 15 * 10
