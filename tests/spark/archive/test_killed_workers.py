"""Workers that are killed while their driver lives: their tasks are done again, and nothing twice."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import penstock
from penstock import NewMessage
from penstock.spark.archive.files import write_files
from penstock.spark.archive.moment import ArchiveOptions
from penstock.spark.jobs import archive as job
from penstock.spark.store import Store
from tests.spark.archive.contents import has_everything, rows
from tests.spark.stores import place

PATIENCE_S = 60.0


def _dying(flag: Path, driver: int) -> Callable[..., Any]:
    """As `write_files`; the first worker that has written is killed before it can say so."""

    def write_and_die(*args: Any) -> Any:
        made = write_files(*args)
        if os.getpid() != driver:
            try:
                os.close(os.open(flag, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return made
            os.kill(os.getpid(), signal.SIGKILL)
        return made

    return write_and_die


def test_a_worker_that_dies_with_its_files_written_leaves_every_event_once(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flag, folder = tmp_path / "killed", tmp_path / "archive"
    with penstock.open(f"rocksdb:{tmp_path}/store?durability=os") as ps:
        queue = ps.create_queue("q")
        job.archive(spark, Store(place(ps)), str(folder))
        queue.enqueue_many([NewMessage(b"%d" % n) for n in range(3000)])
        queue.ack([one.receipt for one in queue.lease(max_messages=500)])
        monkeypatch.setattr(job, "write_files", _dying(flag, os.getpid()))
        done = job.archive(spark, Store(place(ps)), str(folder), ArchiveOptions(partitions=4))
        assert flag.exists()
        assert (done.events, done.bodies) == (4000, 3000)
        has_everything(folder, ps, "q")
    assert sorted(int(row["payload"]) for row in rows(folder, "bodies")) == list(range(3000))


def test_workers_that_are_killed_while_they_write_leave_every_row_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    given, go = str(tmp_path / "given"), str(tmp_path / "go")

    def waiting(batches: Iterable[Any]) -> Iterator[Any]:
        """Rows, the last of which are held back until the workers were killed."""
        for at, batch in enumerate(batches):
            if at:
                Path(given).touch()
                while not Path(go).exists():
                    threading.Event().wait(0.05)
            yield batch

    with penstock.open(f"rocksdb:{tmp_path}/store?durability=os") as ps:
        queue, killed = ps.create_queue("q"), list[int]()
        killer = threading.Thread(target=_kill_workers, args=(Path(given), Path(go), killed))
        killer.start()
        frame = spark.range(0, 40_000, 1, 2).selectExpr("CAST(id AS STRING) AS payload")
        writer = frame.mapInArrow(waiting, "payload string").write.format("penstock").mode("append")
        writer.options(url=place(ps), queue="q", txnAppId="killed", txnVersion=1).save()
        killer.join()
        assert killed
        assert sorted(int(one.payload) for one in queue.iter()) == list(range(40_000))
        assert queue.stats().last_seq == 40_000
        assert ps.check().ok


def _kill_workers(given: Path, go: Path, killed: list[int]) -> None:
    pause = threading.Event()
    for _ in range(round(PATIENCE_S / 0.05)):
        if given.exists():
            break
        pause.wait(0.05)
    for pid in _workers():
        os.kill(pid, signal.SIGKILL)
        killed.append(pid)
    go.touch()


def _workers() -> list[int]:
    """The processes that Spark's daemons below this process have made."""
    parents: dict[int, int] = {}
    daemons: set[int] = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                if b"pyspark.daemon" in (entry / "cmdline").read_bytes():
                    daemons.add(int(entry.name))
            except OSError:
                continue
    return [pid for pid in daemons if parents.get(pid) in daemons and _is_mine(pid, parents)]


def _is_mine(pid: int, parents: dict[int, int]) -> bool:
    while pid > 1:
        if pid == os.getpid():
            return True
        pid = parents.get(pid, 0)
    return False
