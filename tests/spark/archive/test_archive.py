"""Archiving: every event and body once, in commits that a crash cannot halve; cursors behind, never ahead."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import penstock
from penstock import BackendUnavailable, Entry, InvalidConfig, NewMessage, Penstock, Queue, QueueNotFound
from penstock.spark.archive import moment
from penstock.spark.archive.log import ArchiveBusy, ArchiveLog
from penstock.spark.archive.moment import ArchiveOptions
from penstock.spark.archive.ranges import ArchiveGap
from penstock.spark.archive.reading import Archive
from penstock.spark.jobs import archive as job
from penstock.spark.jobs.archive import Archived, archive
from penstock.spark.store import Store
from tests.spark.archive.contents import has_everything, rows
from tests.spark.stores import KEY_VARIABLE, place, work

HOSTILE = ("a/b", "..", "ünï: %2F=\n*?", "q" * 1024)


@pytest.fixture
def ps(tmp_path: Path) -> Iterator[Penstock]:
    with penstock.open(f"rocksdb:{tmp_path}/store?durability=os", rng=random.Random(7)) as ps:
        yield ps


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "archive"


@pytest.fixture
def run(spark: SparkSession, ps: Penstock, folder: Path) -> Callable[..., Archived]:
    def run(**options: Any) -> Archived:
        return archive(spark, Store(place(ps)), str(folder), ArchiveOptions(**options))

    return run


def _position(queue: Queue) -> int:
    (cursor,) = [one for one in queue.cursors() if one.name == "archive"]
    assert cursor.required
    return cursor.position


def _drain(queue: Queue, count: int) -> None:
    queue.ack([one.receipt for one in queue.lease(max_messages=count)])


def test_everything_is_archived_once_however_often_it_is_run(
    run: Callable[..., Archived], ps: Penstock, folder: Path
) -> None:
    for name in HOSTILE:
        work(ps.create_queue(name, retention_s=3600), 30)
    ps.journal("world/..").append([Entry(kind="k", body=b"\0", labels=["l"], vector=[0.5])])
    first = run()
    assert (first.commits, first.events) == (1, sum(ps.queue(name).stats().last_seq for name in HOSTILE))
    assert run().commits == 0
    for name in HOSTILE:
        queue = ps.queue(name)
        queue.enqueue_many([NewMessage(b"later")] * 5)
        _drain(queue, 3)
    assert run().commits == 1
    for name in HOSTILE:
        has_everything(folder, ps, name)
        assert _position(ps.queue(name)) == ps.queue(name).stats().last_seq
    (entry,) = rows(folder, "entries", "world/..")
    assert (entry["body"], entry["labels"], entry["vector"]) == (b"\0", ["l"], [0.5])


def test_a_body_is_as_it_was_enqueued_though_its_message_is_done(
    run: Callable[..., Archived], ps: Penstock, folder: Path
) -> None:
    queue = ps.create_queue("q")
    run()
    queue.enqueue(
        b"\0\xff payload",
        headers={"type": "job", "ü": ""},
        fairness_key="k",
        weight=7,
        priority=9,
        dedup_id="d",
    )
    _drain(queue, 1)
    assert queue.stats().held_bodies == 1
    run()
    (body,) = rows(folder, "bodies", "q")
    assert (body["payload"], body["headers"], body["fairness_key"]) == (
        b"\0\xff payload",
        {"type": "job", "ü": ""},
        "k",
    )
    assert (body["weight"], body["priority"], body["dedup_id"], body["seq"]) == (7, 9, "d", 1)
    for _ in range(3):
        ps.sweep()
    assert queue.stats().held_bodies == 0


def test_many_commits_of_few_events_are_the_same_as_one_of_many(
    run: Callable[..., Archived], ps: Penstock, folder: Path
) -> None:
    for name in ("one", "other"):
        work(ps.create_queue(name, retention_s=3600), 20)
    done = run(events_per_commit=40)
    assert done.commits > 1
    for name in ("one", "other"):
        has_everything(folder, ps, name)


def test_what_had_left_the_store_before_is_counted_as_missing(
    run: Callable[..., Archived], ps: Penstock
) -> None:
    queue = ps.create_queue("q")
    queue.enqueue_many([NewMessage(b"x")] * 10)
    _drain(queue, 4)
    done = run()
    assert (done.bodies, done.bodies_missing) == (6, 4)


def test_a_journal_without_its_beginning_is_archived_with_how_its_queue_stands(
    run: Callable[..., Archived], ps: Penstock, folder: Path
) -> None:
    queue = ps.create_queue("q", journal_max_bytes=1)
    queue.enqueue_many([NewMessage(b"x")] * 10)
    _drain(queue, 4)
    ps.sweep()
    assert queue.stats().first_seq > 1
    done = run()
    assert done.base == 6
    assert {row["state"] for row in rows(folder, "base", "q")} == {"ready"}


def test_retention_frees_what_is_archived_and_nothing_before(
    run: Callable[..., Archived], ps: Penstock, folder: Path
) -> None:
    queue = ps.create_queue("q", journal_max_bytes=1)
    run()
    for _ in range(3):
        queue.enqueue_many([NewMessage(b"x")] * 10)
        _drain(queue, 10)
        for _ in range(3):
            ps.sweep()
        before = queue.stats()
        assert before.first_seq == _position(queue) + 1
        assert before.held_bodies == 10
        run()
        for _ in range(3):
            ps.sweep()
        assert (queue.stats().held_bodies, queue.stats().unread_by_required) == (0, 0)
    has_everything(folder, ps, "q")


@pytest.mark.parametrize("step", ["files are written", "it is committed"])
def test_a_driver_that_dies_anywhere_is_followed_by_one_that_goes_on(
    run: Callable[..., Archived],
    ps: Penstock,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
) -> None:
    queue = ps.create_queue("q", journal_max_bytes=1)
    run()
    queue.enqueue_many([NewMessage(b"x%d" % n) for n in range(10)])
    _drain(queue, 5)

    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        if step == "files are written":
            patched.setattr(ArchiveLog, "commit", dies)
        else:
            patched.setattr(job, "move_cursors", dies)
        with pytest.raises(KeyboardInterrupt):
            run()
    assert _position(queue) == 0
    for _ in range(3):
        ps.sweep()
    queue.enqueue_many([NewMessage(b"y")] * 3)
    run()
    has_everything(folder, ps, "q")
    assert _position(queue) == queue.stats().last_seq
    committed = {str(ArchiveLog(folder).root / path) for path in ArchiveLog(folder).read().files}
    orphans = {str(path) for path in folder.rglob("*.parquet")} - committed
    assert bool(orphans) == (step == "files are written")


def test_two_who_archive_at_once_do_not_archive_anything_twice(
    spark: SparkSession,
    run: Callable[..., Archived],
    ps: Penstock,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queue = ps.create_queue("q")
    run()
    queue.enqueue_many([NewMessage(b"x")] * 10)
    inner = ArchiveLog.commit

    def after_another(self: ArchiveLog, *args: Any) -> Any:
        monkeypatch.setattr(ArchiveLog, "commit", inner)
        run()
        return inner(self, *args)

    monkeypatch.setattr(ArchiveLog, "commit", after_another)
    with pytest.raises(ArchiveBusy):
        run()
    has_everything(folder, ps, "q")


def test_a_queue_that_was_deleted_and_made_anew_has_another_history(
    run: Callable[..., Archived], spark: SparkSession, ps: Penstock, folder: Path
) -> None:
    ps.create_queue("q").enqueue_many([NewMessage(b"old")] * 3)
    run()
    ps.delete_queue("q")
    assert run().gone == ["q"]
    ps.create_queue("q").enqueue_many([NewMessage(b"new")] * 5)
    assert run().anew == ["q"]
    has_everything(folder, ps, "q")
    assert ArchiveLog(folder).read().queues["q"].generation == 2
    assert Archive(spark, folder).table("events", ("q",)).count() == 5
    assert {row["payload"] for row in rows(folder, "bodies", "q")} == {b"old", b"new"}


def test_events_that_were_removed_unarchived_stop_it_unless_the_gap_is_accepted(
    run: Callable[..., Archived], ps: Penstock
) -> None:
    queue = ps.create_queue("q", journal_max_bytes=1)
    queue.enqueue_many([NewMessage(b"x")] * 3)
    run()
    queue.cursor("archive").drop()
    for _ in range(4):
        queue.enqueue(b"y")
        ps.sweep()
    with pytest.raises(ArchiveGap, match="were removed before they were archived"):
        run()
    done = run(accept_gaps=True)
    assert (done.anew, done.base) == (["q"], 7)


def test_only_the_queues_that_are_asked_for_get_a_cursor(run: Callable[..., Archived], ps: Penstock) -> None:
    for name in ("orders-1", "orders-2", "mails"):
        ps.create_queue(name).enqueue(b"x")
    assert sorted(run(pattern="orders-.*").positions) == ["orders-1", "orders-2"]
    assert ps.queue("mails").cursors() == []
    assert sorted(run(names=("mails",)).positions) == ["mails"]
    with pytest.raises(InvalidConfig, match="regular expression"):
        run(pattern="(")


def test_two_archives_of_a_store_have_a_cursor_each(
    spark: SparkSession, run: Callable[..., Archived], ps: Penstock, tmp_path: Path
) -> None:
    ps.create_queue("q").enqueue(b"x")
    run()
    other = str(tmp_path / "other")
    with pytest.raises(InvalidConfig, match="that of another archive"):
        archive(spark, Store(place(ps)), other)
    assert archive(spark, Store(place(ps)), other, ArchiveOptions(cursor="other")).events == 1
    ps.queue("q").cursor("archive").drop()
    assert archive(spark, Store(place(ps)), str(tmp_path / "third")).events == 1


def test_settings_are_archived_when_they_change(
    run: Callable[..., Archived], ps: Penstock, folder: Path
) -> None:
    ps.create_queue("q", lease_s=5)
    assert run().queues == 1
    ps.queue("q").enqueue(b"x")
    assert run().queues == 0
    ps.update_queue("q", lease_s=6)
    assert run().queues == 1
    assert ['"lease_s":5.0' in row["settings"] for row in rows(folder, "queues")] == [True, False]


def test_an_encrypted_store_is_archived_only_if_plain_files_are_meant(
    spark: SparkSession, tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEY_VARIABLE, "5b" * 32)
    config = tmp_path / "penstock.yaml"
    encryption = "{enabled: true, key_id: tests}"
    config.write_text(f"storage: {{path: {tmp_path}/sealed, durability: os, encryption: {encryption}}}\n")
    with penstock.open(config) as ps:
        ps.create_queue("q").enqueue(b"secret")
        with pytest.raises(InvalidConfig, match="--unencrypted"):
            archive(spark, Store(str(config)), str(folder))
        assert ps.queue("q").cursors() == []
        archive(spark, Store(str(config)), str(folder), ArchiveOptions(unencrypted=True))
        has_everything(folder, ps, "q")


def test_a_full_disk_is_told_and_changes_nothing(
    run: Callable[..., Archived], ps: Penstock, folder: Path
) -> None:
    queue = ps.create_queue("q")
    run()
    queue.enqueue(b"x")
    (folder / "events").rmdir() if (folder / "events").exists() else None
    (folder / "events").write_bytes(b"in the way")
    with pytest.raises(Exception, match="cannot be written"):
        run()
    assert _position(queue) == 0
    (folder / "events").unlink()
    run()
    has_everything(folder, ps, "q")


def test_following_goes_on_after_what_passes_and_ends_with_what_does_not(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    unavailable, stop = BackendUnavailable("the owner is gone"), threading.Event()
    outcomes: list[Archived | Exception] = []

    def next_outcome(*_: object) -> Archived:
        outcome = outcomes.pop(0)
        if not outcomes:
            stop.set()
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    monkeypatch.setattr(job, "_archived", next_outcome)

    def following() -> Archived:
        return job.follow(None, Store("s"), str(folder), every_s=0, stop=stop)  # type: ignore[arg-type]

    lost = PySparkException("Job aborted: Python worker exited unexpectedly (crashed)")
    outcomes += [Archived(events=2), unavailable, lost, Archived(events=3)]
    assert following().events == 5
    assert "archiving will be tried again: Spark has lost a worker" in caplog.text
    assert "archiving will be tried again: the owner is gone" in caplog.text
    stop.clear()
    outcomes += [Archived(), ArchiveGap("a gap")]
    with pytest.raises(ArchiveGap):
        following()
    stop.clear()
    outcomes += [unavailable]
    with pytest.raises(BackendUnavailable):
        following()


def test_what_is_refused_leaves_no_snapshot(
    spark: SparkSession, ps: Penstock, folder: Path, tmp_path: Path
) -> None:
    ps.create_queue("q")
    for options in (ArchiveOptions(names=("none",)), ArchiveOptions(pattern="(")):
        with pytest.raises((QueueNotFound, InvalidConfig)):
            archive(spark, Store(place(ps)), str(folder), options)
    assert list((tmp_path / "store").glob("snapshots/*")) == []
    assert not folder.exists()
    with pytest.raises(InvalidConfig, match="not those of an archive"):
        archive(spark, Store(place(ps)), place(ps))


def test_snapshots_do_not_stay(run: Callable[..., Archived], ps: Penstock, tmp_path: Path) -> None:
    ps.create_queue("q").enqueue(b"x")
    run()
    assert os.listdir(tmp_path / "store" / "snapshots") == []
    assert moment.SNAPSHOT_S <= 3600
