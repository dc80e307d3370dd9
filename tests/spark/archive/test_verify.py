"""Two places compared: each difference of a message or a queue is found, and named by what differs."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import penstock
from penstock import InvalidConfig, NewMessage, Penstock
from penstock.spark.jobs.copy import copy
from penstock.spark.jobs.history import Until
from penstock.spark.jobs.sides import side
from penstock.spark.jobs.verify import Verified, verify
from penstock.spark.store import Store
from tests.spark.stores import place


@pytest.fixture
def ps(tmp_path: Path) -> Iterator[Penstock]:
    with penstock.open(f"rocksdb:{tmp_path}/store?durability=os", rng=random.Random(7)) as ps:
        yield ps


@pytest.fixture
def compared(spark: SparkSession, tmp_path: Path) -> Callable[..., Verified]:
    def run(one: str, other: str, **more: Any) -> Verified:
        return verify(spark, side(str(tmp_path / one)), side(str(tmp_path / other)), **more)

    return run


def test_each_difference_is_found_and_named(
    spark: SparkSession, ps: Penstock, tmp_path: Path, compared: Callable[..., Verified]
) -> None:
    queue = ps.create_queue("q")
    ids = [queue.enqueue(b"%d" % n, headers={"n": str(n)}) for n in range(40)]
    copy(spark, Store(place(ps)), Store(str(tmp_path / "copy")))
    with penstock.open(tmp_path / "copy") as copied:
        other = copied.queue("q")
        by_id = {one.id: one.receipt for one in other.lease(max_messages=40, lease_s=3600)}
        other.ack([by_id[ids[0]]])
        other.reject([by_id[ids[1]]], reason="r")
        other.nack([by_id[one] for one in ids[2:]], delay_s=0)
        other.upsert([NewMessage(b"!", id=ids[2], headers={"n": "2"})])
        other.upsert([NewMessage(b"3", id=ids[3], headers={"n": "other"})])
        other.enqueue(b"more")
    queue.ack([one.receipt for one in queue.lease(max_messages=0)])
    found = compared("store", "copy")
    named = {one.id: (one.what, one.columns) for one in found.differences}
    assert named[ids[0]] == ("missing_right", [])
    assert named[ids[1]] == ("differing", ["state", "attempts", "reason"])
    assert named[ids[2]] == ("differing", ["attempts", "payload"])
    assert named[ids[3]] == ("differing", ["attempts", "headers"])
    assert named[ids[4]] == ("differing", ["attempts"])
    assert (found.missing_right, found.missing_left, found.differing) == (1, 1, 39)
    assert (found.left, found.right, found.same) == (40, 40, False)


def test_queues_are_compared_with_their_settings_though_nothing_is_in_them(
    spark: SparkSession, ps: Penstock, tmp_path: Path, compared: Callable[..., Verified]
) -> None:
    ps.create_queue("dead")
    ps.create_queue("q", dead_letter="dead")
    copy(spark, Store(place(ps)), Store(str(tmp_path / "copy")), ("q",))
    assert compared("store", "copy", queues=("q",)).same, "what cannot be carried over does not differ"
    ps.update_queue("q", max_attempts=1)
    with penstock.open(tmp_path / "copy") as copied:
        copied.create_queue("more")
    found = compared("store", "copy")
    assert (found.same, found.queues_differing, found.differing) == (False, 3, 0)
    assert [(one.queue, one.id, one.what, one.columns) for one in found.differences] == [
        ("dead", "", "missing_right", []),
        ("more", "", "missing_left", []),
        ("q", "", "differing", ["max_attempts"]),
    ]


def test_a_store_has_no_earlier_moment(tmp_path: Path, ps: Penstock) -> None:
    with pytest.raises(InvalidConfig, match="no archive"):
        side(place(ps), Until(seq=1))
