"""`df.write.format("penstock")` and `writeStream`: rows become messages once, bad ones are set aside."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, DataFrameWriter, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (everyone's name for it)
from pyspark.sql.types import StringType, StructField, StructType

import penstock
from penstock import Penstock
from penstock.spark.write import Part, PenstockWriter
from penstock.spark.write_options import parsed
from penstock.testing.harness import drain
from tests.spark.stores import KEY, KEY_VARIABLE


@pytest.fixture
def ps(tmp_path: Path) -> Iterator[Penstock]:
    """A store that someone else has open while Spark writes to it."""
    with penstock.open(tmp_path / "store") as ps:
        ps.create_queue("q")
        yield ps


def numbers(spark: SparkSession, count: int, partitions: int = 2) -> DataFrame:
    return spark.range(count, numPartitions=partitions).select(F.col("id").cast("string").alias("payload"))


def writer(df: DataFrame, folder: Path, **options: str) -> DataFrameWriter:
    wanted = {"url": str(folder), "queue": "q", **options}
    return df.write.format("penstock").mode("append").options(**{k: v for k, v in wanted.items() if v})


def texts(count: int) -> list[bytes]:
    return [b"%d" % n for n in range(count)]


def test_rows_become_messages_of_a_live_store_and_of_a_closed_one(
    spark: SparkSession, ps: Penstock, tmp_path: Path
) -> None:
    df = numbers(spark, 500)
    writer(df, tmp_path / "store").save()
    assert drain(ps.queue("q")) == texts(500)  # In the order of partitions and rows.
    assert ps.check().ok
    ps.close()

    writer(df, tmp_path / "store").save()
    with penstock.open(tmp_path / "store") as reopened:
        assert drain(reopened.queue("q")) == texts(500)
        assert list((tmp_path / "store" / "staging").iterdir()) == []


def test_a_job_with_a_name_counts_once_however_often_it_is_run(
    spark: SparkSession, ps: Penstock, tmp_path: Path
) -> None:
    df, q = numbers(spark, 20), ps.queue("q")
    for version, expected in (("1", 20), ("1", 20), ("2", 40), ("1", 40)):
        writer(df, tmp_path / "store", txnAppId="nightly", txnVersion=version).save()
        assert q.length() == expected


def test_the_same_job_for_another_queue_is_written_there(
    spark: SparkSession, ps: Penstock, tmp_path: Path
) -> None:
    """As with the tables of a `foreachBatch`, which all get the number of the batch as their version."""
    ps.create_queue("other")
    df = numbers(spark, 20)
    for _ in range(2):
        for queue in ("q", "other"):
            writer(df, tmp_path / "store", queue=queue, txnAppId="batches", txnVersion="7").save()
    assert sorted(drain(ps.queue("q"))) == sorted(drain(ps.queue("other"))) == sorted(texts(20))


def test_what_became_of_rows_that_were_not_enqueued_is_logged(
    ps: Penstock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    schema = StructType([StructField("payload", StringType())])

    def commit(version: str, payloads: list[str | None]) -> str:
        caplog.clear()
        given = {"url": str(tmp_path / "store"), "queue": "q", "rejectsPath": str(tmp_path / "rejects")}
        options = parsed({**given, "txnAppId": "nightly", "txnVersion": version}, "batch")
        one = PenstockWriter(options, schema, overwrite=False)
        assert options.txn is not None
        with penstock.open_writer(one._ticket) as stager:
            batch = pa.record_batch({"payload": pa.array(payloads, pa.string())})
            one.commit([Part(one._ticket, options.txn, stager.stage(options.txn, 0, [batch]), None)])
        return caplog.text

    assert commit("5", ["a"]) == ""
    assert "'nightly', txnVersion 5 was committed before for queue 'q': none of 2 rows" in commit(
        "5", ["a", "b"]
    )
    assert "txnVersion 4: a later version" in commit("4", ["a"])
    assert "1 rows cannot be enqueued; they are in" in commit("6", ["a", None])
    assert ps.queue("q").length() == 2


def test_a_task_that_fails_at_first_is_tried_again_and_counts_once(
    spark: SparkSession, ps: Penstock, tmp_path: Path
) -> None:
    marker = str(tmp_path / "failed")

    def fail_once(batches: Iterator[Any]) -> Iterator[Any]:
        import os

        yield from batches
        if not os.path.exists(marker):
            with open(marker, "w"):
                pass
            raise RuntimeError("at the end of its rows")

    df = numbers(spark, 300).mapInArrow(fail_once, "payload string")
    writer(df, tmp_path / "store").save()
    assert sorted(drain(ps.queue("q"))) == sorted(texts(300))
    assert ps.check().ok
    assert list((tmp_path / "store" / "staging").iterdir()) == []


def test_a_job_that_fails_leaves_nothing(spark: SparkSession, ps: Penstock, tmp_path: Path) -> None:
    def fail(batches: Iterator[Any]) -> Iterator[Any]:
        yield from batches
        raise RuntimeError("each time")

    with pytest.raises(Exception, match="each time"):
        writer(numbers(spark, 30).mapInArrow(fail, "payload string"), tmp_path / "store").save()
    assert ps.queue("q").length() == 0
    staging = tmp_path / "store" / "staging"
    assert not staging.exists() or list(staging.iterdir()) == []


def test_every_column_and_a_queue_for_each_row(spark: SparkSession, ps: Penstock, tmp_path: Path) -> None:
    ps.create_queue("other")
    df = spark.sql(
        """select cast('a' as binary) payload, 'q' queue, map('type', 'mail') headers, 'tenant' fairness_key,
        3 weight, array('api') throttle_keys, 9 priority, 60.5 delay_s, 3600 ttl_s, 'once' dedup_id,
        '00000000-0000-4000-8000-000000000001' id
        union all select cast('b' as binary), 'other', null, null, null, null, null, null, null, null, null"""
    )
    writer(df, tmp_path / "store", queue="").save()
    (a,) = ps.queue("q").list(state="delayed").items
    assert (a.payload, a.headers, a.fairness_key, a.weight) == (b"a", {"type": "mail"}, "tenant", 3)
    assert (list(a.throttle_keys), a.priority, a.dedup_id) == (["api"], 9, "once")
    assert a.id == "00000000-0000-4000-8000-000000000001"
    # With a dedup id it was enqueued by the commit; its delay counts from the beginning of the write.
    assert 0 < a.visible_at_ns - a.enqueued_at_ns <= 60_500_000_000
    assert drain(ps.queue("other")) == [b"b"]


def test_bad_rows_fail_a_job_that_has_no_place_for_them(
    spark: SparkSession, ps: Penstock, tmp_path: Path
) -> None:
    df = spark.sql("select if(id % 4 = 3, null, string(id)) payload from range(0, 10, 1, 1)")
    with pytest.raises(Exception, match=r"2 of 10 rows .* partition 0, row 3: payload is null.*rejectsPath"):
        writer(df, tmp_path / "store").save()
    assert ps.queue("q").length() == 0

    rejects = tmp_path / "rejects"
    for _ in range(2):  # The same job again replaces what it wrote there.
        writer(df, tmp_path / "store", rejectsPath=rejects.as_uri(), txnAppId="a/b", txnVersion="7").save()
        assert len(ps.queue("q").list().items) == 8
        found = spark.read.parquet(str(rejects)).collect()
        assert [(row["row"], row["reason"], row["payload"]) for row in found] == [
            (3, "payload is null", None),
            (7, "payload is null", None),
        ]
    assert [path.suffix for path in rejects.iterdir()] == [".parquet"]


@pytest.mark.parametrize(
    ("sql", "options", "says"),
    [
        ("select 1 payload", {}, "column 'payload' is int32; accepted: binary or string .*payload int"),
        ("select 'a' text", {}, "column 'text' is not one of a message"),
        ("select 'a' payload", {"queue": ""}, "no queue is given"),
        ("select 'a' payload", {"queue": "nowhere"}, "queue 'nowhere' does not exist"),
        ("select 'a' payload", {"url": ""}, "option url is missing"),
        ("select 'a' payload", {"txnVersion": "1"}, "txnVersion is alone"),
        ("select 'a' payload", {"txnAppId": "a", "txnVersion": "x"}, "txnVersion is 'x'"),
        ("select 'a' payload", {"rejectsPath": "s3://x/y"}, "rejectsPath is 's3://x/y'"),
        ("select 'a' payload", {"colour": "red"}, "'colour' is not known; known: url, queue"),
    ],
)
def test_what_cannot_be_written_is_said_before_anything_is(
    spark: SparkSession, ps: Penstock, tmp_path: Path, sql: str, options: dict[str, str], says: str
) -> None:
    with pytest.raises(Exception, match=says):
        writer(spark.sql(sql), tmp_path / "store", **options).save()
    assert ps.queue("q").length() == 0


def test_a_queue_is_never_overwritten(spark: SparkSession, ps: Penstock, tmp_path: Path) -> None:
    with pytest.raises(Exception, match=r'mode\("append"\)'):
        writer(numbers(spark, 1), tmp_path / "store").mode("overwrite").save()


def test_an_encrypted_store_is_written_with_its_key_and_not_without(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    config = tmp_path / "penstock.yaml"
    key_id = KEY_VARIABLE.removeprefix("PENSTOCK_KEY_").lower()
    config.write_text(
        f"storage: {{path: {tmp_path / 'store'}, encryption: {{enabled: true, key_id: {key_id}}}}}\n"
    )
    with penstock.open(config) as ps:
        ps.create_queue("q")
        writer(numbers(spark, 50), config).save()
        assert drain(ps.queue("q")) == texts(50)


# -- streams ----------------------------------------------------------------------------------------


def run_stream(spark: SparkSession, source: Path, folder: Path, checkpoint: Path, **options: str) -> None:
    stream = spark.readStream.schema("payload string").option("maxFilesPerTrigger", 1).parquet(str(source))
    query = (
        stream.writeStream.format("penstock")
        .options(url=str(folder), queue="q", checkpointLocation=str(checkpoint), **options)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def test_a_stream_counts_each_batch_once_also_where_spark_forgot_that_it_had_it(
    spark: SparkSession, ps: Penstock, tmp_path: Path
) -> None:
    source, store, checkpoint, q = tmp_path / "in", tmp_path / "store", tmp_path / "checkpoint", ps.queue("q")
    numbers(spark, 40).write.parquet(str(source))
    run_stream(spark, source, store, checkpoint)
    assert q.length() == 40
    # As after a crash between the commit here and Spark's own: the last batch is done again.
    commits = sorted((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    assert len(commits) == 2
    commits[-1].unlink()
    (checkpoint / "commits" / f".{commits[-1].name}.crc").unlink(missing_ok=True)
    run_stream(spark, source, store, checkpoint)
    assert sorted(drain(q)) == sorted(texts(40))

    numbers(spark, 10, 1).write.mode("append").parquet(str(source))
    run_stream(spark, source, store, checkpoint)
    assert drain(q) == texts(10)
    assert ps.check().ok
    assert list((store / "staging").iterdir()) == []


def test_a_stream_names_its_jobs_itself(spark: SparkSession, ps: Penstock, tmp_path: Path) -> None:
    source = tmp_path / "in"
    numbers(spark, 1, 1).write.parquet(str(source))
    with pytest.raises(Exception, match="txnAppId does not go with a stream"):
        run_stream(spark, source, tmp_path / "store", tmp_path / "c", txnAppId="a", txnVersion="1")
    shutil.rmtree(source)
