"""A driver of Spark that is killed while its rows come in: run again, every row is there once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import penstock
from tests.redis.servers import wait_until
from tests.spark.redis.stores import new_url, payloads
from tests.spark.write_driver import write

ROOT = Path(__file__).parents[3]
ROWS = 60_000


@pytest.mark.usefixtures("driver")
def test_a_driver_that_is_killed_in_the_middle_of_its_commit(spark: SparkSession, tmp_path: Path) -> None:
    url, source = new_url(), tmp_path / "source"
    (source / "1").mkdir(parents=True)
    for part in range(3):
        numbers = [b"%d" % n for n in range(part, ROWS, 3)]
        pq.write_table(pa.table({"payload": numbers}), source / "1" / f"{part}.parquet")
    with penstock.open(url) as ps:
        q = ps.create_queue("q")
        command = [sys.executable, "-m", "tests.spark.write_driver", "batch", url, str(source), "1"]
        driver = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, start_new_session=True)
        assert driver.stdout is not None
        assert wait_until(lambda: q.stats().ready > 0 or driver.poll() is not None, 90)
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
        driver.stdout.close()
        came = q.stats().enqueued_total
        assert 0 < came <= ROWS
        write(spark, "batch", url, str(source), "1")
        assert payloads(ps, "q") == Counter(b"%d" % n for n in range(ROWS))
        assert q.stats().enqueued_total == ROWS
        assert ps.check().ok
    assert came < ROWS, "it was killed too late to tell"
