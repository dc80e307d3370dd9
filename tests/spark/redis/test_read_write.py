"""Spark reads and writes stores on Redis: every table, streams of journals, jobs that count once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

import penstock
from penstock.errors import InvalidConfig
from penstock.message import STORED_STATES
from penstock.spark import store as spark_store
from tests.spark.redis.stores import filled, new_url, payloads
from tests.spark.stores import load, rows


@pytest.fixture(scope="module")
def url() -> str:
    made = new_url()
    filled(made)
    return made


def test_messages_are_read_as_a_listing_shows_them(spark: SparkSession, url: str) -> None:
    found = {row["id"]: row for row in rows(load(spark, url, "messages", minPartitions=3))}
    with penstock.open(url) as ps:
        there = [
            message
            for queue in ps.queues()
            for state in STORED_STATES
            for message in ps.queue(queue.name).iter(state=state)
        ]
    assert len(found) == len(there) == 400
    for message in there:
        row = found[message.id]
        assert (row["queue"], row["state"], bytes(row["payload"])) == (
            message.queue,
            str(message.state),
            message.payload,
        )
        for name in (
            "attempts",
            "reason",
            "consumer",
            "enqueued_at_ns",
            "visible_at_ns",
            "lease_expires_at_ns",
        ):
            assert row[name] == getattr(message, name), name


def test_events_bodies_queues_and_entries_are_read(spark: SparkSession, url: str) -> None:
    with penstock.open(url) as ps:
        expected = {queue.name: ps.queue(queue.name).stats() for queue in ps.queues()}
    events = load(spark, url, "events", minPartitions=4).groupBy("queue").agg({"seq": "count"}).collect()
    assert dict(map(tuple, events)) == {name: stats.last_seq for name, stats in expected.items()}
    assert load(spark, url, "bodies").count() == 400
    assert {row["name"]: row["ready"] for row in rows(load(spark, url, "queues"))} == {
        name: stats.ready for name, stats in expected.items()
    }
    assert [bytes(row["body"]) for row in rows(load(spark, url, "entries", world="world"))] == [b"\0\xff"]


def test_a_stream_reads_every_event_once(spark: SparkSession, tmp_path: Path) -> None:
    url = new_url()
    filled(url, 60)
    seen: list[tuple[str, int]] = []

    def keep(batch: DataFrame, number: int) -> None:
        seen.extend((row.queue, row.seq) for row in batch.select("queue", "seq").collect())

    def run() -> None:
        stream = spark.readStream.format("penstock").option("url", url).option("maxOffsetsPerTrigger", 150)
        writer = stream.load().writeStream.foreachBatch(keep)
        checkpoint = str(tmp_path / "checkpoint")
        writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()

    run()
    with penstock.open(url) as ps:
        ps.queue("orders").enqueue(b"later")
        last = {queue.name: ps.queue(queue.name).stats().last_seq for queue in ps.queues()}
    run()
    assert Counter(seen) == Counter((name, seq) for name, end in last.items() for seq in range(1, end + 1))


def test_a_job_is_written_once_and_bad_rows_are_set_aside(spark: SparkSession, tmp_path: Path) -> None:
    url = new_url()
    with penstock.open(url) as ps:
        ps.create_queue("a")
        ps.create_queue("b")
    names = "CASE WHEN id % 3 = 0 THEN 'a' WHEN id % 1000 = 1 THEN 'nowhere' ELSE 'b' END AS queue"
    df = spark.range(0, 5000, 1, 4).selectExpr("CAST(id AS STRING) AS payload", names)
    options = {"url": url, "txnAppId": "once", "txnVersion": "1", "rejectsPath": str(tmp_path / "bad")}
    for _ in range(2):
        df.write.format("penstock").mode("append").options(**options).save()
    bad = {row.payload for row in spark.read.parquet(str(tmp_path / "bad")).collect()}
    assert bad == {str(n) for n in range(1, 5000, 1000) if n % 3}
    with penstock.open(url) as ps:
        assert payloads(ps, "a") == Counter(str(n).encode() for n in range(0, 5000, 3))
        expected = (str(n) for n in range(5000) if n % 3)
        assert payloads(ps, "b") == Counter(one.encode() for one in expected if one not in bad)
        assert ps.check().ok


def test_a_stream_writes_every_row_once(spark: SparkSession, tmp_path: Path) -> None:
    url = new_url()
    with penstock.open(url) as ps:
        ps.create_queue("q")
    for part in range(3):
        df = spark.range(part * 100, part * 100 + 100, 1, 1).selectExpr("CAST(id AS STRING) AS payload")
        df.write.mode("append").parquet(str(tmp_path / "source"))
    files = spark.readStream.schema("payload string").option("maxFilesPerTrigger", 1)
    for _ in range(2):
        writer = files.parquet(str(tmp_path / "source")).writeStream.format("penstock")
        writer = writer.option("url", url).option("queue", "q")
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer.trigger(availableNow=True).start().awaitTermination()
    with penstock.open(url) as ps:
        assert payloads(ps, "q") == Counter(str(n).encode() for n in range(300))


def test_a_password_in_the_option_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="PENSTOCK_REDIS_PASSWORD"):
        spark_store.Store("redis+lists://:secret@localhost:1/0").check()
