"""Rows deleted, altered and made up at random: check never fails, and what a repair leaves is clean."""

from __future__ import annotations

import random

import pytest

from penstock import Penstock
from penstock.backends.embedded.keys import SPACES
from tests.check.stores import Raw, filled, flipped

DAMAGED_SPACES = SPACES
MOST_FAULTS = 12


def damage(raw: Raw, rng: random.Random) -> str:
    """One change to a random row; what it was."""
    space = rng.choice(DAMAGED_SPACES)
    rows = [row for row in raw.rows(space) if row[1]]
    if not rows:
        return "nothing"
    key, value = rng.choice(rows)
    way = rng.choice(("delete", "flip", "flip", "cut", "grow", "swap", "move", "copy", "garbage"))
    if way == "delete":
        raw.delete(space, key)
    elif way == "flip":
        raw.put(space, key, flipped(value, rng.randrange(len(value)), rng.randrange(8)))
    elif way == "cut":
        raw.put(space, key, value[: rng.randrange(len(value))])
    elif way == "grow":
        raw.put(space, key, value + rng.randbytes(rng.randint(1, 20)))
    elif way == "swap":
        other, its = rng.choice(rows)
        raw.put(space, key, its)
        raw.put(space, other, value)
    elif way == "garbage":
        raw.put(space, key, rng.randbytes(len(value)))
    else:
        if way == "move":
            raw.delete(space, key)
        raw.put(space, flipped(key, rng.randrange(len(key)), rng.randrange(8)), value)
    return f"{way} {space} {key.hex()}"


def use(ps: Penstock) -> None:
    """Every queue takes and gives messages."""
    for settings in ps.queues():
        q = ps.queue(settings.name)
        q.enqueue(b"new")
        q.ack([delivery.receipt for delivery in q.lease(5)])
        list(q.iter())
        q.stats()
    ps.sweep()


def run(seed: int) -> None:
    rng = random.Random(seed)
    with filled("memory:", seed) as ps:
        raw = Raw(ps)
        done = [damage(raw, rng) for _ in range(rng.randint(1, MOST_FAULTS))]
        ps.check()
        report = ps.check(repair=True)
        assert report.ok, (seed, done, [p for p in report.problems if p.action.startswith("left")])
        assert ps.check().problems == [], (seed, done)
        use(ps)
        assert ps.check().problems == [], (seed, done)


@pytest.mark.parametrize("seed", [*range(60), 1515, 2478, 3240])
def test_a_repair_of_random_damage_leaves_a_store_that_is_clean_and_works(seed: int) -> None:
    run(seed)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(1000, 4000))
def test_a_repair_of_much_random_damage_leaves_a_store_that_is_clean_and_works(seed: int) -> None:
    run(seed)
