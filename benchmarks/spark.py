"""Reading with Spark, against Spark reading the same rows from Parquet in the same run; the readers' memory.

A queue of waiting messages, and a queue whose messages were enqueued, leased and acked. Each table is read
into Spark's sink that throws everything away, and so are its rows from Parquet, by turns; a figure is the
median of the rounds. Every read is loaded anew: taking a snapshot and planning are part of it. With several
numbers of rows, each has a store and a session of its own: the memory of readers should not grow with them.

    python -m benchmarks.spark [--rows 200000 2000000] [--rounds 5] [--json results.json]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

import penstock
import penstock.spark
from benchmarks.core import machine
from penstock import NewMessage, Penstock

BATCH = 1000
PAYLOAD = b'{"customer": 12345, "items": [{"sku": "A-1", "count": 2}, {"sku": "B-22", "count": 1}], "note": "'
PAYLOAD += b"x" * (200 - len(PAYLOAD) - 2) + b'"}'
HEADERS = {"type": "order"}


def fill(ps: Penstock, rows: int) -> None:
    """`rows` messages that wait, and `rows` events, of thirds that were enqueued, leased and acked.

    And `few` of both, by which everything gets warm. A part of many would do too, but for its end: a worker
    whose rows nobody takes any more waits to hand over the next, and complains of a broken pipe at last.
    """
    waiting, done, few = (ps.create_queue(name) for name in ("waiting", "done", "few"))
    few.enqueue_many([NewMessage(PAYLOAD, HEADERS) for _ in range(BATCH)])
    for _ in range(rows // BATCH):
        waiting.enqueue_many([NewMessage(PAYLOAD, HEADERS, f"tenant-{n % 50}") for n in range(BATCH)])
    for _ in range(rows // 3 // BATCH):
        done.enqueue_many([NewMessage(PAYLOAD, HEADERS, f"tenant-{n % 50}") for n in range(BATCH)])
        done.ack([one.receipt for one in done.lease(BATCH, consumer="worker-1")])


class Memory(threading.Thread):
    """The largest a Python process below this one has been, by what /proc says, ten times a second."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._over = threading.Event()
        self.peak_bytes = 0

    def run(self) -> None:
        while not self._over.wait(0.1):
            self.peak_bytes = max(self.peak_bytes, *(_resident(pid) for pid in _workers(os.getpid())), 0)

    def stop(self) -> int:
        self._over.set()
        self.join()
        return self.peak_bytes


def _workers(parent: int) -> Iterator[int]:
    """Python processes that Spark has started."""
    parents: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdecimal():
            try:
                status = Path("/proc", entry, "stat").read_text()
            except OSError:
                continue
            parents.setdefault(int(status.rpartition(")")[2].split()[1]), []).append(int(entry))
    below = list(parents.get(parent, ()))
    while below:
        pid = below.pop()
        below += parents.get(pid, ())
        try:
            words = Path("/proc", str(pid), "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if any(word.startswith(b"pyspark.") for word in words):
            yield pid


def _resident(pid: int) -> int:
    try:
        return int(Path("/proc", str(pid), "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0


@contextmanager
def timed(into: list[float]) -> Iterator[None]:
    started = time.perf_counter()
    yield
    into.append(time.perf_counter() - started)


def discard(df: DataFrame) -> None:
    df.write.format("noop").mode("overwrite").save()


def compare(
    spark: SparkSession, load: Callable[[], DataFrame], folder: Path, rounds: int, rows: int
) -> dict[str, Any]:
    """Rows a second from the store and from Parquet, and the readers' memory for a quarter and for all."""
    load().write.parquet(str(folder))
    assert spark.read.parquet(str(folder)).count() == rows
    seconds: dict[str, list[float]] = {"store": [], "parquet": []}
    peaks = []
    for _ in range(rounds):
        memory = Memory()
        memory.start()
        with timed(seconds["store"]):
            discard(load())
        peaks.append(memory.stop())
        with timed(seconds["parquet"]):
            discard(spark.read.parquet(str(folder)))
    rates = {name: round(rows / statistics.median(found)) for name, found in seconds.items()}
    return {
        "rows": rows,
        "rows_per_s": rates["store"],
        "parquet_rows_per_s": rates["parquet"],
        "of_parquet": round(rates["store"] / rates["parquet"], 2),
        "seconds": [round(one, 2) for one in seconds["store"]],
        "parquet_seconds": [round(one, 2) for one in seconds["parquet"]],
        "largest_worker_mib": round(max(peaks) / 2**20),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, nargs="+", default=[2_000_000])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--master", default=f"local[{os.cpu_count()}]")
    parser.add_argument("--folder", type=Path, help="where to put store and files; else a temporary folder")
    parser.add_argument("--json", type=Path, help="write the results there too")
    args = parser.parse_args()
    print(machine())
    results = []
    for rows in args.rows:
        with tempfile.TemporaryDirectory(dir=args.folder) as folder:
            results.append(measure(Path(folder), rows, args.rounds, args.master))
    if len(results) > 1:
        print_memory(results)
    if args.json:
        args.json.write_text(json.dumps(results, indent=1))


def print_memory(results: list[dict[str, Any]]) -> None:
    """The largest worker by table, from fewest rows to most."""
    print("\n| largest Python worker | " + " | ".join(f"{one['rows']:,} rows" for one in results) + " |")
    print("| --- |" + " ---: |" * len(results))
    for name in results[0]["tables"]:
        sizes = (f"{one['tables'][name]['largest_worker_mib']} MiB" for one in results)
        print(f"| {name} | " + " | ".join(sizes) + " |")


def measure(folder: Path, rows: int, rounds: int, master: str) -> dict[str, Any]:
    store = str(folder / "store")
    with penstock.open(f"rocksdb:{store}?durability=os") as ps:
        filling: list[float] = []
        with timed(filling):
            fill(ps, rows)
        spark = penstock.spark.session("benchmark", master, **{"spark.driver.memory": "3g"})
        print(f"master {master}, pyspark {spark.version}, store filled in {filling[0]:.0f} s, mode os")
        tables = {
            "events": ("done", {}, rows // 3 // BATCH * BATCH * 3),
            "messages": ("waiting", {}, rows // BATCH * BATCH),
            "messages without payload": ("waiting", {"columns": HEADER_COLUMNS}, rows // BATCH * BATCH),
        }
        results: dict[str, Any] = {"machine": machine(), "master": master, "rows": rows, "tables": {}}
        print("\n| table | rows/s | Parquet rows/s | of Parquet | largest Python worker |")
        print("| --- | ---: | ---: | ---: | ---: |")
        for name, (queue, options, count) in tables.items():

            def load(table: str = name.split()[0], queue: str = queue, more: Any = options) -> DataFrame:
                reader = spark.read.format("penstock").options(url=store, table=table, queue=queue, **more)
                return reader.load()

            discard(load(queue="few"))  # Everything is warm.
            found = compare(spark, load, folder / name.replace(" ", "-"), rounds, count)
            results["tables"][name] = found
            rates = f"{found['rows_per_s']:,} | {found['parquet_rows_per_s']:,} | {found['of_parquet']}"
            print(f"| {name} | {rates} | {found['largest_worker_mib']} MiB |", flush=True)
        spark.stop()
    return results


HEADER_COLUMNS = "queue,id,state,size_bytes,fairness_key,weight,priority,enqueued_at,enqueued_at_ns,attempts"


if __name__ == "__main__":
    main()
