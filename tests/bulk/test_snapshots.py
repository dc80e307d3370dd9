"""Snapshots as folders: who makes and removes them, and that nothing is left of those who were killed."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import pytest

import penstock
from penstock import ManualClock, NewMessage, SnapshotNotFound, StorageError, StorageFull
from penstock.backends.bulk import BATCH_ROWS, BulkPartition, BulkRequest, Snapshot
from penstock.backends.embedded import snapshots
from penstock.backends.registry import open_reader, release_snapshot
from penstock.errors import BackendNotInstalled, InvalidConfig
from tests.bulk.reading import folders, opened, read

#: Reads one batch, says so, and waits to be killed.
READER = """
import sys, msgspec
from penstock.backends.bulk import BulkPartition
from penstock.backends.registry import open_reader
partition = msgspec.json.decode(sys.argv[1], type=BulkPartition)
reader = open_reader(partition.snapshot)
batches = reader.read(partition)
print(next(batches).num_rows, flush=True)
sys.stdin.read()
"""


def reader_process(partition: BulkPartition) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", READER, msgspec.json.encode(partition).decode()]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_a_snapshot_of_a_store_that_nobody_has_open_is_taken_in_passing(tmp_path: Path) -> None:
    with opened(tmp_path / "s") as ps:
        ps.create_queue("q").enqueue(b"x")
    with opened(tmp_path / "s") as ps:
        snapshot = ps.take_snapshot()
    assert [row["payload"] for row in read(snapshot, "messages")] == [b"x"]
    release_snapshot(snapshot)
    assert folders(tmp_path / "s") == []


def test_reading_leaves_the_running_store_alone(tmp_path: Path) -> None:
    """Whoever reads has neither its lock nor its files: the owner goes on, and so does its successor."""
    with opened(tmp_path / "s") as ps:
        q = ps.create_queue("q")
        q.enqueue_many([NewMessage(b"%d" % n) for n in range(3)])
        snapshot = ps.take_snapshot()
        with open_reader(snapshot) as reader:
            q.ack([delivery.receipt for delivery in q.lease(3)])
            ps.close()
            with opened(tmp_path / "s") as again:
                again.queue("q").enqueue(b"new")
                again.check()
                (partition,) = reader.plan(BulkRequest(table="messages")).partitions
                assert sum(batch.num_rows for batch in reader.read(partition)) == 3
                assert again.queue("q").length() == 1
        release_snapshot(snapshot)


def test_a_reader_that_is_killed_leaves_a_snapshot_that_is_swept(tmp_path: Path) -> None:
    clock = ManualClock(penstock.SystemClock().now_ns())
    with opened(tmp_path / "s", clock) as ps:
        ps.create_queue("q").enqueue(b"x")
        snapshot = ps.take_snapshot(lifetime_s=600)
        with open_reader(snapshot) as reader:
            (partition,) = reader.plan(BulkRequest(table="messages")).partitions
        process = reader_process(partition)
        assert process.stdout is not None
        assert process.stdout.readline() == "1\n"
        process.send_signal(signal.SIGKILL)
        process.communicate()
        ps.sweep()
        assert folders(tmp_path / "s") == [snapshot.id]
        clock.advance(1200)
        ps.sweep()
        assert folders(tmp_path / "s") == []


def test_what_a_killed_owner_left_is_swept_when_the_store_is_opened(tmp_path: Path) -> None:
    clock = ManualClock()
    with opened(tmp_path / "s", clock) as ps:
        ended, living = ps.take_snapshot(lifetime_s=10), ps.take_snapshot(lifetime_s=1000)
    half_made = tmp_path / "s" / "snapshots" / "half-made"
    (half_made / "store.tmp").mkdir(parents=True)
    going = tmp_path / "s" / "snapshots" / "gone.going"
    (going / "store").mkdir(parents=True)
    assert len(folders(tmp_path / "s")) == 4
    clock.advance(60)
    with opened(tmp_path / "s", clock):
        assert folders(tmp_path / "s") == [living.id]
    with pytest.raises(SnapshotNotFound, match=ended.id):
        open_reader(ended, clock=clock)


def test_one_that_was_taken_again_under_the_id_of_one_that_is_gone_is_not_that_one(tmp_path: Path) -> None:
    clock = ManualClock()
    with opened(tmp_path / "s", clock) as ps:
        gone = ps.take_snapshot(lifetime_s=10)
        clock.advance(60)
        ps.sweep()
        again = ps.take_snapshot(lifetime_s=10, id=gone.id)
        with pytest.raises(SnapshotNotFound, match=gone.id):
            open_reader(gone, clock=clock)
        open_reader(again, clock=clock).close()


def test_a_slow_reader_renews_what_it_reads(tmp_path: Path) -> None:
    clock = ManualClock()
    with opened(tmp_path / "s", clock) as ps:
        ps.create_queue("q").enqueue_many([NewMessage(b"x")] * (3 * BATCH_ROWS))
        snapshot = ps.take_snapshot(lifetime_s=100)
        with open_reader(snapshot, clock=clock) as reader:
            (partition,) = reader.plan(BulkRequest(table="messages")).partitions
            for _ in reader.read(partition):
                clock.advance(60)
                ps.sweep()
                assert folders(tmp_path / "s") == [snapshot.id]
        clock.advance(101)
        ps.sweep()
        assert folders(tmp_path / "s") == []


def test_the_housekeeper_sweeps_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "LOOK_EVERY_NS", 0)
    with opened(tmp_path / "s") as ps:
        ps.take_snapshot(lifetime_s=1)
        for _ in range(600):
            if not folders(tmp_path / "s"):
                break
            threading.Event().wait(0.1)
        assert folders(tmp_path / "s") == []


def test_a_snapshot_shares_the_files_of_its_store(tmp_path: Path) -> None:
    """So that it costs little to take, and disk only for what the store has given up since."""
    with opened(tmp_path / "s") as ps:
        ps.create_queue("q").enqueue_many([NewMessage(os.urandom(1000)) for _ in range(2000)])
        place = Path(ps.take_snapshot().place, "store")
        own = sum(path.stat().st_size for path in place.iterdir() if path.stat().st_nlink == 1)
        shared = sum(path.stat().st_size for path in place.iterdir() if path.stat().st_nlink == 2)
    assert shared > 2_000_000
    assert own < 500_000


def test_nobody_else_may_look_into_a_snapshot(tmp_path: Path) -> None:
    with opened(tmp_path / "s") as ps:
        place = Path(ps.take_snapshot().place)
    assert place.stat().st_mode & 0o077 == 0
    assert place.parent.stat().st_mode & 0o077 == 0


def test_a_disk_without_room_is_told_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path / "s") as ps:

        def full(self: Path, *args: object, **more: object) -> None:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(Path, "touch", full)
            with pytest.raises(StorageFull, match="No space left"):
                ps.take_snapshot()
        assert folders(tmp_path / "s") == []
        (tmp_path / "s" / "snapshots").rmdir()
        (tmp_path / "s" / "snapshots").write_text("in the way")
        with pytest.raises(StorageError, match="snapshots"):
            ps.take_snapshot()
        assert ps.health().status == "healthy"


def test_a_place_that_this_machine_does_not_see_is_named(tmp_path: Path) -> None:
    far = Snapshot(reader="rocksdb", id="x", place="/no/such/machine/snapshots/x", at_ns=0)
    with pytest.raises(SnapshotNotFound, match=r"/no/such/machine.* does not see"):
        open_reader(far)
    release_snapshot(far)


def test_what_is_no_snapshot_is_never_removed(tmp_path: Path) -> None:
    for folder in (tmp_path / "home", tmp_path / "snapshots" / "home"):
        (folder / "precious").mkdir(parents=True)
        release_snapshot(Snapshot(reader="rocksdb", id="x", place=str(folder), at_ns=0))
        assert (folder / "precious").is_dir()


def test_a_snapshot_of_another_version_is_refused_by_name() -> None:
    with pytest.raises(InvalidConfig, match=r"'tomorrow'.*rocksdb"):
        open_reader(Snapshot(reader="tomorrow", id="x", place="", at_ns=0))


def test_a_missing_package_says_what_to_install(tmp_path: Path) -> None:
    """In a process of its own, that has no pyarrow."""
    program = """
import sys
sys.modules["pyarrow"] = None
import penstock
from penstock.backends.registry import open_reader
from penstock.tables import arrow_schema, columns_of
with penstock.open(sys.argv[1]) as ps:
    snapshot = ps.take_snapshot()
columns_of("events")
for call in (lambda: open_reader(snapshot), lambda: arrow_schema("events")):
    try:
        call()
    except penstock.BackendNotInstalled as error:
        print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "s")], capture_output=True, text=True, check=True
    )
    assert done.stdout == "pyarrow is not installed; pip install 'penstock[spark]'\n" * 2
    assert issubclass(BackendNotInstalled, penstock.PenstockError)


def test_a_closed_reader_and_a_partition_of_another_snapshot_are_refused(tmp_path: Path) -> None:
    with opened(tmp_path / "s") as ps:
        ps.create_queue("q").enqueue(b"x")
        one, other = ps.take_snapshot(), ps.take_snapshot()
    with open_reader(one) as reader:
        (partition,) = reader.plan(BulkRequest(table="messages")).partitions
    with pytest.raises(StorageError, match="closed"):
        reader.plan(BulkRequest(table="messages"))
    with open_reader(other) as reader, pytest.raises(penstock.InvalidMessage, match=one.id):
        reader.read(partition)


def test_a_snapshot_is_taken_through_whoever_owns_the_store_now(tmp_path: Path) -> None:
    """Attached, and then as the owner itself, when the first one has gone."""
    owner = opened(tmp_path / "s")
    owner.create_queue("q").enqueue(b"x")
    with opened(tmp_path / "s") as attached:
        assert attached.info().default.attached_to == os.getpid()
        first = attached.take_snapshot(lifetime_s=50)
        assert first.lifetime_s == 50
        owner.close()
        second = attached.take_snapshot()
        assert attached.info().default.attached_to is None
        for snapshot in (first, second):
            assert [row["payload"] for row in read(snapshot, "messages")] == [b"x"]
            release_snapshot(snapshot)


def test_nothing_of_messages_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "penstock")
    with opened(tmp_path / "s") as ps:
        ps.create_queue("q").enqueue(b"secret payload", headers={"a": "secret value"})
        snapshot = ps.take_snapshot()
    read(snapshot, "messages")
    assert snapshot.id in caplog.text
    assert "secret" not in caplog.text


def test_a_moment_that_is_asked_for_again_is_the_same_one(tmp_path: Path) -> None:
    """By its id: by the owner, by those attached, and by the next owner; until it ends."""
    clock, chosen = ManualClock(), "00000000-0000-4000-8000-000000000001"
    with opened(tmp_path / "s", clock) as ps:
        ps.create_queue("q").enqueue(b"x")
        first = ps.take_snapshot(lifetime_s=100, id=chosen)
        ps.queue("q").enqueue(b"later")
        clock.advance(60)
        with opened(tmp_path / "s", clock) as attached:
            assert attached.take_snapshot(lifetime_s=100, id=chosen) == first
    clock.advance(60)
    with opened(tmp_path / "s", clock) as ps:
        assert ps.take_snapshot(lifetime_s=100, id=chosen) == first
        with open_reader(first, clock=clock) as reader:
            assert reader.plan(BulkRequest(table="messages")).extents["q"].rows == 1
        clock.advance(101)
        ps.sweep()
        assert ps.take_snapshot(id=chosen).at_ns > first.at_ns
        with pytest.raises(penstock.InvalidMessage, match="not a UUID"):
            ps.take_snapshot(id="../q")


def test_a_moment_whose_owner_was_killed_over_it_is_taken_anew(tmp_path: Path) -> None:
    chosen = "00000000-0000-4000-8000-000000000001"
    with opened(tmp_path / "s") as ps:
        ps.create_queue("q").enqueue(b"x")
        half_made = Path(ps.take_snapshot(id=chosen).place)
        (half_made / "store").rename(half_made / "store.tmp")
        again = ps.take_snapshot(id=chosen)
        assert [row["payload"] for row in read(again, "messages")] == [b"x"]
        release_snapshot(again)
