"""Streams that are killed, driver, Java and workers, again and again: then every event is there once."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import penstock
from penstock import NewMessage, Penstock
from tests.spark.stores import place

ROOT = Path(__file__).parents[2]
PATIENCE_S = 300.0
QUEUES = ("orders", "mails")
FAR_BEHIND = 2000

PROGRAM = """
import sys
import penstock.spark
from tests.spark import quick

store, folder = sys.argv[1:]
conf = {**quick.JAVA, "spark.driver.memory": "1g"}
spark = penstock.spark.session(master="local[2]", **conf)
stream = spark.readStream.format("penstock").load(store, cursor="archive", maxOffsetsPerTrigger=200)
writer = stream.writeStream.format("parquet").option("checkpointLocation", folder + "/checkpoint")
writer.trigger(processingTime="0 seconds").start(folder + "/events").awaitTermination()
"""


def start(ps: Penstock, folder: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", PROGRAM, place(ps), str(folder)]
    return subprocess.Popen(command, cwd=ROOT, start_new_session=True)


def finish(spark: SparkSession, ps: Penstock, folder: Path) -> None:
    """The same query, to the end: in the session of all tests, for a Java of its own takes long to start."""
    stream = spark.readStream.format("penstock").load(place(ps), cursor="archive")
    writer = stream.writeStream.format("parquet").option("checkpointLocation", str(folder / "checkpoint"))
    query = writer.trigger(availableNow=True).start(str(folder / "events"))
    query.awaitTermination()


def done(folder: Path) -> int:
    """Batches that Spark has noted as done."""
    noted = folder / "checkpoint" / "commits"
    return sum(name.isdecimal() for name in os.listdir(noted)) if noted.is_dir() else 0


class Writer(threading.Thread):
    """Goes on, whatever happens to the stream, unless that is far behind; retention removes what it may."""

    def __init__(self, ps: Penstock, rng: random.Random) -> None:
        super().__init__(daemon=True)
        self._queues = [ps.create_queue(name, journal_max_bytes=1) for name in QUEUES]
        self._rng = rng
        self.over = threading.Event()

    def run(self) -> None:
        while not self.over.wait(0.02):
            queue = self._rng.choice(self._queues)
            if queue.stats().last_seq > queue.cursor("archive", required=True).position + FAR_BEHIND:
                continue
            queue.enqueue_many([NewMessage(b"x")] * self._rng.randrange(1, 20))
            queue.ack([one.receipt for one in queue.lease(max_messages=10)])


def kill_rounds(ps: Penstock, folder: Path, rounds: int, seed: int) -> None:
    rng = random.Random(seed)
    pause = threading.Event()
    for _ in range(rounds):
        before, process = done(folder), start(ps, folder)
        try:
            wanted = before + rng.randrange(1, 4)
            for _ in range(round(PATIENCE_S / 0.05)):
                if done(folder) >= wanted or process.poll() is not None:
                    break
                pause.wait(0.05)
            assert process.poll() is None
            assert done(folder) >= wanted
            pause.wait(rng.uniform(0, 1))  # Anywhere in a batch.
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def check(spark: SparkSession, tmp_path: Path, rounds: int, seed: int) -> None:
    folder = tmp_path / "archive"
    folder.mkdir()
    with penstock.open(f"rocksdb:{tmp_path / 'store'}?durability=os") as ps:
        writer = Writer(ps, random.Random(seed))
        writer.start()
        kill_rounds(ps, folder, rounds, seed)
        writer.over.set()
        writer.join()
        finish(spark, ps, folder)

        found = spark.read.parquet(str(folder / "events")).select("queue", "seq").collect()
        events = sorted((row["queue"], row["seq"]) for row in found)
        last = {name: ps.queue(name).stats().last_seq for name in QUEUES}
        assert events == [(name, seq) for name in sorted(last) for seq in range(1, last[name] + 1)]
        for name in QUEUES:  # Retention has followed.
            assert ps.queue(name).cursor("archive").position > 0


@pytest.mark.soak
def test_a_stream_that_is_killed_many_times_has_every_event_once(spark: SparkSession, tmp_path: Path) -> None:
    check(spark, tmp_path, rounds=20, seed=2)
