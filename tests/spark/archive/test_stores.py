"""An archive and its store: queues that are made between two runs, and stores that are not the one."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import penstock
from penstock import InvalidConfig, NewMessage, Penstock
from penstock.backends.bulk import ALL_QUEUES, ARCHIVES
from penstock.spark.archive.log import ArchiveLog
from penstock.spark.archive.moment import ArchiveOptions
from penstock.spark.jobs.archive import archive
from penstock.spark.store import Store
from tests.spark.stores import place


@pytest.fixture
def ps(tmp_path: Path) -> Iterator[Penstock]:
    with penstock.open(f"rocksdb:{tmp_path}/store?durability=os") as ps:
        yield ps


def _cursors(ps: Penstock, name: str) -> list[tuple[str, int, bool]]:
    return [(one.name, one.position, one.required) for one in ps.queue(name).cursors()]


def test_a_queue_that_is_made_where_all_are_archived_has_the_cursor_at_once(ps: Penstock) -> None:
    ps.state.put(f"{ARCHIVES}archive", b"id" + ALL_QUEUES)
    ps.state.put(f"{ARCHIVES}some", b"id")
    for name in ("first", "second"):
        ps.create_queue(name)
        assert _cursors(ps, name) == [("archive", 0, True)]
    ps.replace_queues(["second", "third"])
    assert _cursors(ps, "third") == [("archive", 0, True)]


def test_a_queue_that_is_made_when_the_archive_was_given_up_has_no_cursor(ps: Penstock) -> None:
    ps.state.put(f"{ARCHIVES}archive", b"id" + ALL_QUEUES)
    ps.create_queue("a").cursor("archive").drop()
    ps.create_queue("b")
    assert _cursors(ps, "b") == []


def test_bodies_of_a_queue_that_is_made_between_two_runs_are_archived(
    spark: SparkSession, ps: Penstock, tmp_path: Path
) -> None:
    store, folder = Store(place(ps)), str(tmp_path / "archive")
    archive(spark, store, folder)
    queue = ps.create_queue("new")
    queue.enqueue_many([NewMessage(b"x")] * 3)
    queue.ack([one.receipt for one in queue.lease(max_messages=3)])
    done = archive(spark, store, folder)
    assert (done.bodies, done.bodies_missing) == (3, 0)
    archive(spark, store, folder, ArchiveOptions(names=("new",)))
    ps.create_queue("of nobody's")
    assert _cursors(ps, "of nobody's") == []


def test_another_store_is_not_archived_into_the_folder_unless_it_takes_the_place_of_the_first(
    spark: SparkSession, tmp_path: Path
) -> None:
    folder = str(tmp_path / "archive")
    for name in ("one", "other"):
        with penstock.open(f"rocksdb:{tmp_path}/{name}?durability=os") as ps:
            ps.create_queue("q").enqueue(name.encode())
    one, other = Store(str(tmp_path / "one")), Store(str(tmp_path / "other"))
    archive(spark, one, folder)
    with pytest.raises(
        InvalidConfig, match=r"of another store, .*/one .*, and .*/other has .* --other-store"
    ):
        archive(spark, other, folder)
    shutil.copytree(tmp_path / "one", tmp_path / "put back")
    assert archive(spark, Store(str(tmp_path / "put back")), folder).anew == []
    assert archive(spark, other, folder, ArchiveOptions(other_store=True)).anew == ["q"]
    assert ArchiveLog(folder).read().store_place == other.url
    with pytest.raises(InvalidConfig, match="of another store"):
        archive(spark, one, folder)
