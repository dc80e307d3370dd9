"""Spark reads, follows and writes a store behind a running server, and copies one into it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

import penstock
from penstock.errors import InvalidConfig
from penstock.message import STORED_STATES
from penstock.spark.jobs.archive import archive
from penstock.spark.jobs.auditing.run import Wanted, run
from penstock.spark.jobs.copy import copy
from penstock.spark.jobs.rebuild import rebuild
from penstock.spark.jobs.sides import Side
from penstock.spark.jobs.verify import verify
from penstock.spark.store import Store
from tests.server.processes import Served, serving
from tests.spark.stores import QUEUES, filled, load, rows


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server in a process of its own, and no folder that Spark is told of."""
    folder = tmp_path_factory.mktemp("served")
    filled(folder / "data").close()
    with serving(folder, "--store", f"rocksdb:{folder / 'data'}?durability=os") as server:
        yield server


def test_tables_are_read_in_parallel_as_the_store_shows_them(spark: SparkSession, served: Served) -> None:
    with penstock.open(served.url) as ps:
        there = {
            message.id: message
            for name in QUEUES
            for state in STORED_STATES
            for message in ps.queue(name).iter(state=state)
        }
        last = {name: ps.queue(name).stats().last_seq for name in QUEUES}
    found = {row["id"]: row for row in rows(load(spark, served.url, "messages", minPartitions=3))}
    assert found.keys() == there.keys()
    for id_, row in found.items():
        assert (bytes(row["payload"]), row["state"]) == (there[id_].payload, str(there[id_].state))
        assert row["enqueued_at_ns"] == there[id_].enqueued_at_ns
    events = load(spark, served.url, "events", minPartitions=4, queue=QUEUES[0])
    assert sorted(row["seq"] for row in rows(events)) == list(range(1, last[QUEUES[0]] + 1))


def test_a_stream_from_a_server_to_a_server_brings_every_event_once(
    spark: SparkSession, served: Served, tmp_path: Path
) -> None:
    with penstock.open(served.url) as ps:
        ps.create_queue("told")
        source = ps.create_queue("source")
        source.enqueue_many([penstock.NewMessage(b"%d" % n) for n in range(50)])

        def go_on() -> None:
            stream = spark.readStream.format("penstock").options(url=served.url, queue="source")
            told: DataFrame = stream.load()
            writer = told.selectExpr("message_id AS payload").writeStream.format("penstock")
            writer = writer.options(url=served.url, queue="told", checkpointLocation=str(tmp_path / "c"))
            writer.trigger(availableNow=True).start().awaitTermination()

        go_on()
        source.enqueue(b"later")
        go_on()
        expected = Counter(event.message_id.encode() for event in source.events())
        assert Counter(message.payload for message in ps.queue("told").iter()) == expected
        assert sum(expected.values()) == 51


def test_a_job_is_written_once_and_bad_rows_are_set_aside(
    spark: SparkSession, served: Served, tmp_path: Path
) -> None:
    with penstock.open(served.url) as ps:
        ps.create_queue("a")
        ps.create_queue("b")
        names = "CASE WHEN id % 3 = 0 THEN 'a' WHEN id % 1000 = 1 THEN 'nowhere' ELSE 'b' END AS queue"
        df = spark.range(0, 5000, 1, 4).selectExpr("CAST(id AS STRING) AS payload", names)
        job = {"url": served.url, "txnAppId": "once", "txnVersion": "1", "rejectsPath": str(tmp_path / "bad")}
        for _ in range(2):
            df.write.format("penstock").mode("append").options(**job).save()
        bad = {row.payload for row in spark.read.parquet(str(tmp_path / "bad")).collect()}
        assert bad == {str(n) for n in range(1, 5000, 1000) if n % 3}
        expected = {
            "a": Counter(b"%d" % n for n in range(0, 5000, 3)),
            "b": Counter(b"%d" % n for n in range(5000) if n % 3 and str(n) not in bad),
        }
        for name, payloads in expected.items():
            assert Counter(message.payload for message in ps.queue(name).iter()) == payloads
        assert ps.check().ok


@pytest.mark.soak
def test_all_jobs_work_with_a_server_on_either_side(
    spark: SparkSession, store: penstock.Penstock, tmp_path: Path
) -> None:
    here, there = str(store.info().default.path), f"rocksdb:{tmp_path / 'there'}?durability=os"
    archived, rebuilt = str(tmp_path / "archive"), str(tmp_path / "rebuilt")
    penstock.open(there).close()
    with serving(tmp_path, "--store", there) as server:
        done = copy(spark, Store(here), Store(server.url))
        assert sum(done.restored.values()) > 200
        archive(spark, Store(server.url), archived)
        rebuild(spark, archived, Store(rebuilt))
        for other in (here, rebuilt):
            left, right = (Side(place=url, store=Store(url)) for url in (other, server.url))
            found = verify(spark, left, right)
            assert found.same, found.differences[:5]
        audited = run(spark, Wanted(store=Store(server.url), archive=archived))
        assert (audited.counts, audited.findings) == ({}, [])


def test_a_key_in_the_option_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="PENSTOCK_TOKEN"):
        Store("https://s3cret@localhost:1").check()
