"""`penstock pipeline` before Spark: what is refused is refused at once, and leaves nothing behind."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

import penstock
import penstock.spark
from penstock import InvalidConfig, NewMessage, QueueNotFound
from penstock.backends.bulk import ARCHIVES
from penstock.cli import spark as spark_of_cli
from penstock.spark.archive.log import ArchiveLog, Commit, Position
from penstock.spark.archive.moment import ArchiveOptions
from penstock.spark.jobs.archive import archive
from penstock.spark.session import QUICK
from penstock.spark.store import Store
from tests.cli.calling import Cli


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """A store with the queue `orders`, an archive that knows it too, and a Spark that must not be started."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PENSTOCK_STORE", raising=False)
    cli = Cli(tmp_path)
    with penstock.open(f"rocksdb:{cli.store}?durability=os") as ps:
        ps.create_queue("orders").enqueue_many([NewMessage(b"x") for _ in range(3)])
    ArchiveLog("archive").commit(Commit(queues={"orders": Position(seq=3)}), lambda _: True)
    Path("file").write_text("")
    (Path("others") / "inside").mkdir(parents=True)

    def start(*_: object, **__: object) -> None:
        raise AssertionError("Spark was started")

    monkeypatch.setattr(penstock.spark, "session", start)
    return cli


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ("archive new --queue nope", 1, "queue 'nope' does not exist"),
        ("archive new --store elsewhere", 3, "create it: penstock init"),
        ("archive others", 2, "has files in it, and not those of an archive"),
        ("archive file", 2, "is a file"),
        ("archive s3a://bucket/x", 2, "created at most once"),
        ("archive new --cursor ''", 2, "the name of a cursor"),
        ("compact new", 2, "there is no archive in new"),
        ("rebuild new restored", 2, "there is no archive in new"),
        ("rebuild archive restored --queue nope", 1, "queue 'nope' does not exist"),
        ("rebuild archive redis://host", 2, "redis"),
        ("copy redis://host", 2, "redis"),
        ("copy new --queue nope", 1, "queue 'nope' does not exist"),
        ("verify new penstock-data", 3, "there is no store in"),
        ("verify archive penstock-data --queue nope", 1, "queue 'nope' does not exist"),
        ("verify penstock-data archive --until 2026-01-01", 2, "only an archive knows"),
        ("replay r nope", 1, "queue 'nope' does not exist"),
        ("replay r nope --into orders", 1, "queue 'nope' does not exist"),
        ("replay r nope --archive archive --into orders", 1, "queue 'nope' does not exist"),
        ("replay r orders --into nope", 1, "queue 'nope' does not exist"),
        ("replay r orders --kind eaten", 2, "kind 'eaten' is not known"),
        ("replay r orders --archive new", 2, "there is no archive in new"),
        ("replay r orders --since 2030-01-01 --until 2029-01-01", 2, "no time between them"),
        ("audit --archive new", 2, "there is no archive in new"),
        ("audit --archive archive --queue nope", 1, "queue 'nope' does not exist"),
        ("audit --archive archive --against-store --store elsewhere", 3, "create it: penstock init"),
        ("report --archive new", 2, "there is no archive in new"),
        ("report --archive archive --queue nope", 1, "queue 'nope' does not exist"),
        ("report file/page.html", 3, "cannot be written"),
        ("report others", 3, "it is a folder"),
    ],
)
def test_it_is_refused_before_spark_is_started(cli: Cli, words: str, code: int, said: str) -> None:
    before = sorted(os.listdir())
    answer = cli("pipeline", *(word.strip("'") for word in words.split()), code=code)
    assert said in answer.err
    assert "Traceback" not in answer.err
    assert answer.out == ""
    assert sorted(os.listdir()) == before, "what is refused leaves nothing behind"


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (ArchiveOptions(), InvalidConfig),  # The cursor is another archive's.
        (ArchiveOptions(cursor="mine", names=("nope",)), QueueNotFound),
        (ArchiveOptions(cursor="mine", pattern="("), InvalidConfig),
    ],
)
def test_an_archive_that_is_refused_leaves_neither_folder_nor_cursor(
    cli: Cli, options: ArchiveOptions, error: type[Exception]
) -> None:
    with penstock.open(cli.store) as ps:
        ps.queue("orders").cursor("archive", required=True)
        ps.state.put(ARCHIVES + "archive", b"another")
    with pytest.raises(error):
        archive(cast(SparkSession, None), Store(str(cli.store)), "new", options)
    assert not Path("new").exists()
    with penstock.open(cli.store) as ps:
        assert [one.name for one in ps.queue("orders").cursors()] == ["archive"]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What sessions were asked for."""
    seen: list[dict[str, Any]] = []
    monkeypatch.setattr(penstock.spark, "session", lambda **given: seen.append(given))
    monkeypatch.setattr(sys.modules["penstock.spark.session"], "is_running", lambda: False)
    return seen


def test_java_starts_fast_for_little_and_runs_fast_for_much(
    cli: Cli, asked: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(str(cli.store))
    spark_of_cli.started(None, store, "archive")
    assert asked.pop() == {"master": None, **QUICK}
    spark_of_cli.started("spark://head:7077", store)
    assert asked.pop() == {"master": "spark://head:7077"}
    monkeypatch.setattr(spark_of_cli, "LITTLE_BYTES", 10)
    for place in (store, "archive"):
        spark_of_cli.started(None, place, None)
        assert asked.pop() == {"master": None}


def test_little_java_has_room_for_all_that_spark_compiles() -> None:
    """Without its second compiler it has 48 MB, which a few jobs fill; Java then ends in the middle."""
    (options,) = (value for key, value in QUICK.items() if "Java" in key)
    assert "TieredStopAtLevel=1" in options
    assert "ReservedCodeCacheSize=240m" in options
