"""Spark against a store on Redis: reads and writes, beside the plainest code that does as much.

python -m benchmarks.spark_redis [--rows 200000] [--json FILE]

It starts a Redis server of its own, `appendonly yes`, `appendfsync everysec`, and a Spark session with two
cores. The baseline of a read is one process with XRANGE or HSCAN and Arrow arrays of what comes, undecoded;
that of a write RPUSH of the payloads, 1,000 a command, ten a round trip. While a write goes on, another
thread enqueues and acks single messages: its longest wait is what the write costs others.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

import penstock
import penstock.spark
from tests.redis.servers import RunningServer, packaged_redis

PAYLOAD = "concat(lpad(cast(id as string), 12, '0'), repeat('x', 188)) AS payload"
PREFIX = b"penstock:ps1:{q}:"


def timed(work: Callable[[], object]) -> float:
    started_s = time.perf_counter()
    work()
    return time.perf_counter() - started_s


def raw_events(client: Any) -> int:
    start, rows = b"-", 0
    while found := client.xrange(PREFIX + b"j", start, "+", 100):
        rows += len(pa.array([fields[b"f"] for _, fields in found], pa.binary()))
        start = b"(" + found[-1][0]
    return rows


def raw_messages(client: Any) -> int:
    cursor, rows = 0, 0
    while True:
        cursor, found = client.hscan(PREFIX + b"m", cursor, count=1000)
        rows += len(pa.array(list(found.values()), pa.binary()))
        if cursor == 0:
            return rows


def raw_write(client: Any, rows: int) -> None:
    payload = b"0" * 12 + b"x" * 188
    for _ in range(0, rows, 10_000):
        pipe = client.pipeline(transaction=False)
        for _ in range(10):
            pipe.rpush("raw", *[payload] * 1000)
        pipe.execute()
    client.unlink("raw")


def bystander(url: str, over: threading.Event, waits_s: list[float]) -> None:
    with penstock.open(url) as ps:
        q = ps.create_queue("beside")
        while not over.is_set():
            waits_s.append(timed(lambda: (q.enqueue(b"x"), q.ack([one.receipt for one in q.lease(1)]))))


def write(spark: SparkSession, url: str, rows: int, queue: str = "q") -> None:
    df = spark.range(0, rows, 1, 2).selectExpr(PAYLOAD)
    df.write.format("penstock").mode("append").option("url", url).option("queue", queue).save()


def count(spark: SparkSession, url: str, table: str, queue: str = "q") -> int:
    """Every column is read and decoded, and thrown away."""
    options = {"url": url, "table": table, "queue": queue}
    df = spark.read.format("penstock").options(**options).load()
    counted = (
        df.mapInArrow(lambda batches: map(_counted, batches), "n long").selectExpr("sum(n) AS n").first()
    )
    assert counted is not None
    return int(counted.n)


def _counted(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"n": [batch.num_rows]})


def measure(spark: SparkSession, server: RunningServer, rows: int) -> dict[str, Any]:
    url, found = server.url(), {}
    with penstock.open(url) as ps:
        ps.create_queue("q")
        ps.create_queue("before")
    write(spark, url, 1000, "before")  # Workers are started, scripts are known.
    for table in ("events", "messages"):
        count(spark, url, table, "before")
    over, waits_s = threading.Event(), list[float]()
    beside = threading.Thread(target=bystander, args=(url, over, waits_s))
    beside.start()
    found["write"] = rows / timed(lambda: write(spark, url, rows))
    over.set()
    beside.join()
    found["longest_wait_ms"] = 1000 * max(waits_s)
    with penstock.open(url) as ps:
        events = ps.queue("q").stats().last_seq
    found["events"] = events / timed(lambda: _check(count(spark, url, "events"), events))
    found["messages"] = rows / timed(lambda: _check(count(spark, url, "messages"), rows))
    client = server.client()
    found["raw_events"] = events / timed(lambda: raw_events(client))
    found["raw_messages"] = rows / timed(lambda: _check(raw_messages(client), rows))
    found["raw_write"] = rows / timed(lambda: raw_write(client, rows))
    client.close()
    return found


def _check(found: int, expected: int) -> None:
    if found != expected:
        raise AssertionError(f"{found} rows, not {expected}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--json")
    given = parser.parse_args()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        options = {"appendonly": "yes", "appendfsync": "everysec"}
        server = RunningServer(packaged_redis(), Path(folder), options, ())
        server.start()
        spark = penstock.spark.session("bench", "local[2]", **{"spark.ui.enabled": "false"})
        try:
            found = measure(spark, server, given.rows)
        finally:
            spark.stop()
            server.kill()
    found |= {"rows": given.rows, "cores": os.cpu_count(), "load_before": load}
    found |= {"python": platform.python_version(), "at": datetime.now(UTC).isoformat()}
    text = json.dumps(found, indent=1)
    if given.json:
        Path(given.json).write_text(text)
    print(text)


if __name__ == "__main__":
    main()
