"""spark.readStream.format("penstock") in Spark itself: batches, checkpoints, triggers, failures."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import penstock
from penstock import NewMessage, Penstock
from tests.spark.micro import read_up_to
from tests.spark.stores import place


@pytest.fixture
def ps(tmp_path: Path) -> Any:
    with penstock.open(f"rocksdb:{tmp_path / 'store'}?durability=os") as ps:
        ps.create_queue("orders").enqueue_many([NewMessage(b"x")] * 30)
        ps.create_queue("mails").enqueue_many([NewMessage(b"x")] * 5)
        yield ps


class Stream:
    """A query that notes what its batches had; started again, it is the same query."""

    def __init__(self, spark: SparkSession, ps: Penstock, folder: Path) -> None:
        self._spark = spark
        self._url = place(ps)
        self._checkpoint = str(folder / "checkpoint")
        self.seen: list[tuple[str, int]] = []
        self.sizes: list[int] = []

    def start(self, trigger: dict[str, Any], **options: object) -> StreamingQuery:
        reader = self._spark.readStream.format("penstock").option("url", self._url)
        for name, value in options.items():
            reader = reader.option(name, str(value))
        writer = reader.load().writeStream.foreachBatch(self._note)
        return writer.option("checkpointLocation", self._checkpoint).trigger(**trigger).start()

    def run(self, **options: object) -> StreamingQuery:
        query = self.start({"availableNow": True}, **options)
        query.awaitTermination()
        return query

    def _note(self, df: DataFrame, number: int) -> None:
        rows = [(row["queue"], row["seq"]) for row in df.select("queue", "seq").collect()]
        self.sizes.append(len(rows))
        self.seen += sorted(rows)


ALL = [("mails", seq) for seq in range(1, 6)] + [("orders", seq) for seq in range(1, 31)]


def test_every_event_comes_once_in_batches_and_a_query_goes_on_where_it_was(
    spark: SparkSession, ps: Penstock, tmp_path: Path
) -> None:
    stream = Stream(spark, ps, tmp_path)
    query = stream.run(maxOffsetsPerTrigger=10, cursor="archive")
    (source,) = query.recentProgress[-1].sources
    ps.queue("orders").enqueue_many([NewMessage(b"x")] * 3)
    stream.run(cursor="archive")

    assert sorted(stream.seen) == [*ALL, ("orders", 31), ("orders", 32), ("orders", 33)]
    assert stream.sizes == [10, 10, 10, 5, 3]
    assert read_up_to(json.loads(source.endOffset)) == {"mails": 5, "orders": 30}
    assert ps.queue("orders").cursor("archive").position >= 30
    assert os.listdir(Path(place(ps), "snapshots")) == []


def test_a_running_query_reads_what_comes_in_and_queues_that_join(
    spark: SparkSession, ps: Penstock, tmp_path: Path
) -> None:
    stream = Stream(spark, ps, tmp_path)
    query = stream.start({"processingTime": "0 seconds"})
    try:
        query.processAllAvailable()
        ps.queue("orders").enqueue_many([NewMessage(b"x")] * 2)
        ps.create_queue("new").enqueue(b"x")
        while len(stream.seen) < len(ALL) + 3 and query.isActive:
            query.processAllAvailable()
    finally:
        query.stop()

    assert sorted(stream.seen) == sorted([*ALL, ("orders", 31), ("orders", 32), ("new", 1)])
    assert os.listdir(Path(place(ps), "snapshots")) == []


def test_a_loss_ends_the_query_and_says_what_is_gone(
    spark: SparkSession, ps: Penstock, tmp_path: Path
) -> None:
    stream = Stream(spark, ps, tmp_path)
    stream.run()
    ps.delete_queue("mails")

    with pytest.raises(StreamingQueryException) as failed:
        stream.run()

    assert "DataLost: queue 'mails', which was read up to 5, does not exist any more" in str(failed.value)
    stream.run(failOnDataLoss="false")
    assert sorted(stream.seen) == ALL


@pytest.mark.parametrize("trigger", [{"availableNow": True}, {"processingTime": "1 second"}], ids=str)
def test_what_cannot_be_streamed_is_refused_with_the_reason_at_the_end_of_the_traceback(
    spark: SparkSession, ps: Penstock, tmp_path: Path, trigger: dict[str, Any]
) -> None:
    """Where Spark is left without a reader it adds an error of its own, which hides the reason."""
    with pytest.raises(StreamingQueryException) as failed:
        Stream(spark, ps, tmp_path).start(trigger, table="messages").awaitTermination()

    traceback = str(failed.value).partition("SQLSTATE")[0].strip().splitlines()
    assert traceback[-1].endswith("InvalidConfig: option table is 'messages'; a stream reads events")
    assert "another exception" not in str(failed.value)
