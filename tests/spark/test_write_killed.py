"""Drivers and their workers killed at random while they write: every row is enqueued once in the end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import penstock
from penstock import NewMessage, Penstock
from penstock.backends.embedded.chunks import TABLE_ROWS
from penstock.testing.harness import sweep_all
from tests.spark.write_driver import write

ROOT = Path(__file__).parents[2]
#: Rows of each file of a round: one is enough for tables that the store takes in, the others are not.
ROWS = (1000, 5000, 1000)
assert max(ROWS) >= TABLE_ROWS > min(ROWS)
#: In each of so many rounds rows bring their ids.
WITH_IDS = 3
#: How long a driver is let go on once it writes, at most.
LONGEST_S = 8.0


class User(threading.Thread):
    """Enqueues beside the drivers, and works on whatever comes, theirs and its own, without a pause."""

    def __init__(self, ps: Penstock) -> None:
        super().__init__(daemon=True)
        self._queue = ps.queue("q")
        self.enqueued: list[bytes] = []
        self.acked: list[bytes] = []
        self.over = threading.Event()

    def run(self) -> None:
        while not self.over.wait(0.01):
            more = [b"beside/%d" % (len(self.enqueued) + n) for n in range(10)]
            assert all(result.ok for result in self._queue.enqueue_many([NewMessage(one) for one in more]))
            self.enqueued += more
            got = self._queue.lease(max_messages=20)
            assert all(one.ok for one in self._queue.ack([one.receipt for one in got]))
            self.acked += [one.payload for one in got]


class Campaign:
    """Rounds of killed drivers into one queue, of a store that is closed meanwhile or has a busy owner."""

    def __init__(self, spark: SparkSession, how: str, folder: Path, *, owned: bool) -> None:
        self._spark, self._how, self._owned = spark, how, owned
        self._store, self._source = folder / "store", folder / "source"
        self._expected: list[bytes] = []
        with penstock.open(self._store) as ps:
            ps.create_queue("q")

    def run(self, rounds: int, seed: int) -> None:
        rng = Random(seed)
        with self._owner() as user:
            for version in range(1, rounds + 1):
                self._prepare(version)
                complete = self._killed(version, rng.uniform(0.3, LONGEST_S))
                if not self._owned:
                    self._judge(complete=complete)
                # In the session of all tests, for a Java of its own takes long to start; the second time,
                # there is nothing to do. Streams are left behind now and then.
                for _ in range(2 if self._how == "batch" else rng.randrange(3)):
                    self._write(version)
            self._write(rounds)
            if user is not None:
                user.over.set()
                user.join()
        self._judge(user, complete=True)

    @contextmanager
    def _owner(self) -> Iterator[User | None]:
        if not self._owned:
            yield None
            return
        with penstock.open(self._store) as ps:
            user = User(ps)
            user.start()
            yield user

    def _prepare(self, version: int) -> None:
        folder = self._source / str(version)
        folder.mkdir(parents=True)
        for number, rows in enumerate(ROWS):
            texts = [f"{version}/{number}/{row}" for row in range(rows)]
            columns = {"payload": texts}
            if version % WITH_IDS == 0:
                columns["id"] = [str(uuid.uuid5(uuid.NAMESPACE_URL, text)) for text in texts]
            pq.write_table(pa.table(columns), folder / f"{number}.parquet")
            self._expected += [text.encode() for text in texts]

    def _killed(self, version: int, after_s: float) -> bool:
        """Whether it came to its end. It is killed with everything that it has started."""
        arguments = (self._how, str(self._store), str(self._source), str(version))
        driver = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.write_driver", *arguments],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert driver.stdout is not None
        try:
            assert driver.stdout.readline() == "writing\n"
            threading.Event().wait(after_s)
            return driver.poll() == 0
        finally:
            if driver.poll() is None:
                os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()
            driver.stdout.close()

    def _write(self, version: int) -> None:
        write(self._spark, self._how, str(self._store), str(self._source), str(version))

    def _judge(self, user: User | None = None, *, complete: bool) -> None:
        with penstock.open(self._store) as ps:
            assert ps.check().ok
            sweep_all(ps)
            assert ps.check().ok
            found = Counter(message.payload for message in ps.queue("q").iter())
        expected = set(self._expected)
        if user is not None:
            found.update(user.acked)
            expected.update(user.enqueued)
        assert found.keys() <= expected
        assert not complete or found.keys() == expected
        assert set(found.values()) <= {1}


def test_a_batch_whose_driver_is_killed_counts_once_when_it_is_run_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    Campaign(spark, "batch", tmp_path, owned=True).run(1, 3)


@pytest.mark.soak
@pytest.mark.parametrize(("owned", "rounds"), [(False, 6), (True, 20)], ids=["closed", "beside a writer"])
@pytest.mark.parametrize("how", ["batch", "stream"])
def test_drivers_that_are_killed_again_and_again_enqueue_each_row_once(
    spark: SparkSession, tmp_path: Path, how: str, owned: bool, rounds: int
) -> None:
    Campaign(spark, how, tmp_path, owned=owned).run(rounds, 4)
