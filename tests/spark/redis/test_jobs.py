"""Queues go from embedded stores to Redis and back and are the same; an audit of Redis finds nothing."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import penstock
from penstock.spark.jobs.archive import archive
from penstock.spark.jobs.auditing.run import Wanted, run
from penstock.spark.jobs.copy import copy
from penstock.spark.jobs.rebuild import rebuild
from penstock.spark.jobs.sides import Side
from penstock.spark.jobs.verify import verify
from penstock.spark.store import Store
from tests.spark.redis.stores import filled, new_url, work


def side(url: str) -> Side:
    return Side(place=url, store=Store(url))


@pytest.fixture
def folder(tmp_path: Path) -> str:
    made = str(tmp_path / "embedded")
    with penstock.open(f"rocksdb:{made}?durability=os", rng=random.Random(5)) as ps:
        ps.create_queue("dead letters")
        work(ps.create_queue("orders", lease_s=3600, retention_s=3600, dead_letter="dead letters"), 300)
        work(ps.create_queue("line", fifo=True, retention_s=3600), 0)
        ps.queue("line").enqueue_many([penstock.NewMessage(b"%d" % n) for n in range(20)])
    return made


def test_an_embedded_store_is_copied_to_redis_and_back(
    spark: SparkSession, folder: str, tmp_path: Path
) -> None:
    url, back = new_url(), str(tmp_path / "back")
    there = copy(spark, Store(folder), Store(url))
    assert sum(there.restored.values()) > 300
    first = verify(spark, side(folder), side(url))
    assert first.same, first.differences[:5]
    copy(spark, Store(url), Store(back))
    second = verify(spark, side(url), side(back))
    assert second.same, second.differences[:5]
    with penstock.open(url) as ps:
        ps.queue("orders").enqueue(b"one more")
        assert ps.check().ok
        line = [ps.queue("line").lease()[0].payload for _ in range(1)]
    assert line == [b"0"]
    assert not verify(spark, side(url), side(back)).same


@pytest.mark.parametrize("from_redis", [True, False])
def test_an_archive_of_one_kind_of_store_is_rebuilt_in_the_other(
    spark: SparkSession, folder: str, tmp_path: Path, from_redis: bool
) -> None:
    source, kept, target = folder, str(tmp_path / "archive"), new_url()
    if from_redis:
        source, target = target, str(tmp_path / "rebuilt")
        filled(source, 100)
    archive(spark, Store(source), kept)
    rebuilt = rebuild(spark, kept, Store(target))
    assert sum(rebuilt.restored.values()) >= 200
    found = verify(spark, side(source), side(target))
    assert found.same, found.differences[:5]


def test_the_audit_of_a_store_on_redis_finds_nothing(spark: SparkSession) -> None:
    url = new_url()
    filled(url)
    audited = run(spark, Wanted(store=Store(url)))
    assert (audited.counts, audited.findings) == ({}, [])
