"""What Spark says of files, workers and memory, as errors that say what to do; anything else as it is."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import penstock
from penstock import BackendUnavailable, StorageCorrupt
from penstock.errors import PenstockError
from penstock.spark.archive.reading import Archive
from penstock.spark.failures import translated
from penstock.spark.jobs.archive import archive
from penstock.spark.store import Store
from tests.spark.stores import place

UNREADABLE = (
    "[FAILED_READ_FILE.NO_HINT] Encountered error while reading file file:///a/q%253Db/x.parquet.  SQL"
)


def _raised(text: str) -> None:
    with translated():
        raise PySparkException(text)


@pytest.mark.parametrize(
    ("text", "kind", "expected"),
    [
        (UNREADABLE, StorageCorrupt, "/a/q%3Db/x.parquet is damaged or not there"),
        (
            "[PATH_NOT_FOUND] Path does not exist: file:/a/q%3Db/x.parquet. SQLSTATE: 42K03",
            StorageCorrupt,
            "/a/q%3Db/x.parquet is damaged or not there",
        ),
        (
            "Job aborted: Python worker exited unexpectedly (crashed)\n\tat org.apache",
            BackendUnavailable,
            "Spark has lost a worker, and gave up: Python worker exited unexpectedly (crashed); run it again",
        ),
        (f"{UNREADABLE}\npenstock.errors.PenstockError: its own", PenstockError, "its own"),
        (f"{UNREADABLE}\nCaused by: java.lang.OutOfMemoryError", PySparkException, "OutOfMemoryError"),
        ("[SOMETHING] else", PySparkException, "[SOMETHING] else"),
    ],
    ids=["damaged", "missing", "a worker", "our own", "no room", "anything else"],
)
def test_what_spark_says_has_a_name(text: str, kind: type[Exception], expected: str) -> None:
    with pytest.raises(kind) as raised:
        _raised(text)
    assert type(raised.value) is kind
    assert expected in str(raised.value)


@pytest.mark.parametrize("missing", [False, True], ids=["damaged", "missing"])
def test_a_file_of_an_archive_that_cannot_be_read_is_named(
    spark: SparkSession, tmp_path: Path, missing: bool
) -> None:
    folder = tmp_path / "archive"
    with penstock.open(f"rocksdb:{tmp_path}/store?durability=os") as ps:
        ps.create_queue("q/ü %").enqueue(b"x")
        archive(spark, Store(place(ps)), str(folder))
    (file,) = (folder / "events").rglob("*.parquet")
    if missing:
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(StorageCorrupt) as raised, translated():
        Archive(spark, folder).table("events").toArrow()
    assert str(raised.value).startswith(f"{file} is damaged or not there; ")
