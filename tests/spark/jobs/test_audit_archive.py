"""Audits of archives: queues that are archived up to different moments, and queues that are others now."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock import InvalidConfig, ManualClock, NewMessage, Penstock
from penstock.spark.archive.moment import ArchiveOptions
from penstock.spark.jobs.archive import archive
from penstock.spark.jobs.auditing.run import Wanted, run
from penstock.spark.store import Store
from tests.spark.jobs.histories import opened
from tests.spark.stores import place


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def ps(tmp_path: Path, clock: ManualClock) -> Iterator[Penstock]:
    with opened(tmp_path / "store", clock) as ps:
        yield ps


def test_a_queue_that_is_archived_less_far_than_another_has_lost_nothing(
    spark: SparkSession, ps: Penstock, clock: ManualClock, tmp_path: Path
) -> None:
    store, folder = Store(place(ps)), str(tmp_path / "archive")
    ahead, behind = ps.create_queue("ahead"), ps.create_queue("behind")
    for queue in (ahead, behind):
        queue.enqueue(b"before")
    archive(spark, store, folder)
    clock.advance(1)
    ids = [ahead.enqueue(b"%d" % n) for n in range(5)]
    clock.advance(1)
    ahead.move(ids, target="behind")
    archive(spark, store, folder, ArchiveOptions(names=("ahead",)))
    found = run(spark, Wanted(archive=folder))
    assert (found.findings, found.events) == ([], 1 + 1 + 10)


def _filled(ps: Penstock, messages: int) -> None:
    ps.create_queue("q").enqueue_many([NewMessage(b"%d" % n) for n in range(messages)])


@pytest.mark.parametrize("messages", [3, 20], ids=["fewer events", "its last archived event removed"])
def test_a_queue_that_was_made_anew_since_is_refused(
    spark: SparkSession, ps: Penstock, clock: ManualClock, tmp_path: Path, messages: int
) -> None:
    store, folder = Store(place(ps)), str(tmp_path / "archive")
    _filled(ps, 10)
    archive(spark, store, folder)
    ps.delete_queue("q")
    clock.advance(60)
    _filled(ps, messages)
    if messages > 10:
        ps.queue("q").cursor("archive").drop()  # Which would keep what is to go.
        ps.update_queue("q", journal_retention_s=1)
        clock.advance(10)
        while ps.sweep():
            pass
        assert ps.queue("q").stats().first_seq > 10
    with pytest.raises(InvalidConfig, match="queue 'q' was made anew since"):
        run(spark, Wanted(store=store, archive=folder))


def test_a_store_that_was_put_back_from_a_copy_is_refused(
    spark: SparkSession, ps: Penstock, clock: ManualClock, tmp_path: Path
) -> None:
    """Its queue is the one that was archived, by all that is known of it, and has less of a history."""
    folder = str(tmp_path / "archive")
    _filled(ps, 10)
    archive(spark, Store(place(ps)), folder)
    with opened(tmp_path / "other", ManualClock()) as other:
        _filled(other, 3)
        with pytest.raises(InvalidConfig, match="has events up to 3, and 10 were archived"):
            run(spark, Wanted(store=Store(place(other)), archive=folder))
