"""Bulk reads of a store in two processes, beside pyarrow's of the same rows from Parquet in the same run.

python benchmarks/bulk_read.py [--rows 2000000] [--processes 2] [--rounds 3] [--json FILE]

Rows in a second are by the clock, from the first process that starts to the last that ends; the microseconds
of a row are of processor time, all processes added up, which neighbours on the machine disturb less.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import random
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

import penstock
from penstock import BulkPartition, BulkRequest, NewMessage, Snapshot
from penstock.backends.bulk import BATCH_ROWS
from penstock.tables import TableName, arrow_schema

PAYLOAD_BYTES = 200
BATCH = 1000
#: What a report reads of messages: no payload, nothing of what varies in length.
REPORT = ("state", "enqueued_at", "visible_at", "attempts", "size_bytes")

#: table, columns (None: all)
CASES: dict[str, tuple[TableName, tuple[str, ...] | None]] = {
    "events": ("events", None),
    "messages": ("messages", None),
    "messages, report columns": ("messages", REPORT),
    "bodies": ("bodies", None),
}


class Read(NamedTuple):
    """What one process has read."""

    rows: int
    started_s: float
    ended_s: float
    cpu_s: float
    peak_mib: int


def fill(folder: Path, rows: int) -> None:
    """Messages of many kinds: a tenth leased, acked, retried or dead."""
    rng = random.Random(1)
    with penstock.open(f"rocksdb:{folder}?durability=os") as ps:
        q = ps.create_queue("orders")
        for start in range(0, rows, BATCH):
            q.enqueue_many(
                [
                    NewMessage(
                        payload=rng.randbytes(PAYLOAD_BYTES),
                        headers={"type": "order"},
                        fairness_key=f"shop-{(start + n) % 100}",
                    )
                    for n in range(BATCH)
                ]
            )
        for _ in range(rows // BATCH // 20):
            held = [one.receipt for one in q.lease(BATCH, lease_s=3600, consumer="worker-1")]
            q.nack(held[:300], delay_s=0, reason="try again")
            q.reject(held[300:320], reason="no such address")


def drain(batches: Iterator[Any]) -> Read:
    started_s, cpu_s = time.monotonic(), time.process_time()
    rows = sum(batch.num_rows for batch in batches)
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    return Read(rows, started_s, time.monotonic(), time.process_time() - cpu_s, peak_mib)


def read_partition(partition: BulkPartition) -> Read:
    with penstock.open_reader(partition.snapshot) as reader:
        return drain(reader.read(partition))


def read_parquet(args: tuple[str, tuple[str, ...] | None]) -> Read:
    path, columns = args
    pa.set_cpu_count(1)  # One process, one processor: as the other reads.
    wanted = None if columns is None else list(columns)
    return drain(pq.ParquetFile(path).iter_batches(BATCH_ROWS, columns=wanted))


def write_parquet(reader: Any, partition: BulkPartition, path: Path) -> str:
    with pq.ParquetWriter(path, arrow_schema(partition.request.table), compression="snappy") as writer:
        for batch in reader.read(partition):
            writer.write_batch(batch)
    return str(path)


def rate(reads: list[Read]) -> tuple[float, float]:
    """Rows in a second, and microseconds of processor time for each."""
    rows = sum(read.rows for read in reads)
    wall_s = max(read.ended_s for read in reads) - min(read.started_s for read in reads)
    return rows / wall_s, sum(read.cpu_s for read in reads) / rows * 1e6


def measure(
    pool: Any, snapshot: Snapshot, folder: Path, case: str, processes: int, rounds: int
) -> dict[str, Any]:
    table, columns = CASES[case]
    with penstock.open_reader(snapshot) as reader:
        whole = reader.plan(BulkRequest(table=table, partitions=processes)).partitions
        files = [write_parquet(reader, one, folder / f"{table}-{one.number}.parquet") for one in whole]
        started = time.perf_counter()
        plan = reader.plan(BulkRequest(table=table, columns=columns, partitions=processes))
        plan_ms = (time.perf_counter() - started) * 1e3
    ways: dict[str, Callable[[], list[Read]]] = {
        "penstock": lambda: pool.map(read_partition, plan.partitions, chunksize=1),
        "parquet": lambda: pool.map(read_parquet, [(file, columns) for file in files], chunksize=1),
    }
    found: dict[str, list[list[Read]]] = {way: [] for way in ways}
    for _ in range(rounds):  # In turns: whatever else the machine does, it does to both.
        for way, call in ways.items():
            found[way].append(call())
    rates = {way: [rate(reads) for reads in all_reads] for way, all_reads in found.items()}
    ours, theirs = rates["penstock"], rates["parquet"]
    return {
        "rows": sum(read.rows for read in found["penstock"][0]),
        "partitions": [read.rows for read in found["penstock"][0]],
        "plan_ms": round(plan_ms, 1),
        "rows_per_s": round(statistics.median(rows_s for rows_s, _ in ours)),
        "cpu_us_per_row": round(statistics.median(us for _, us in ours), 2),
        "parquet_rows_per_s": round(statistics.median(rows_s for rows_s, _ in theirs)),
        "parquet_cpu_us_per_row": round(statistics.median(us for _, us in theirs), 2),
        "of_parquet": round(statistics.median(a[0] / b[0] for a, b in zip(ours, theirs, strict=True)), 2),
        "peak_mib": max(read.peak_mib for reads in found["penstock"] for read in reads),
    }


def snapshot_times(folder: Path) -> tuple[Snapshot, dict[str, float]]:
    """A snapshot of a store into which someone writes between any two of them."""
    taken_ms = []
    with penstock.open(f"rocksdb:{folder}?durability=os") as ps:
        other = ps.create_queue("other")
        for _ in range(10):
            other.enqueue_many([NewMessage(bytes(PAYLOAD_BYTES))] * BATCH)
            started = time.perf_counter()
            snapshot = ps.take_snapshot()
            taken_ms.append((time.perf_counter() - started) * 1e3)
            penstock.release_snapshot(snapshot)
        ps.delete_queue("other")
        snapshot = ps.take_snapshot()
    return snapshot, {"median_ms": round(statistics.median(taken_ms), 1), "most_ms": round(max(taken_ms), 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="make the store there; if it is there, use it")
    parser.add_argument("--json", type=Path, help="write the results there too")
    args = parser.parse_args()
    machine = f"{platform.platform()} {os.cpu_count()} cores, Python {platform.python_version()}"
    print(
        f"{datetime.now(UTC):%Y-%m-%d} {machine}, pyarrow {pa.__version__}, payload {PAYLOAD_BYTES} bytes, "
        f"mode os, {args.rows:,} messages, {args.processes} processes"
    )
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch:
        store = args.folder or Path(scratch, "store")
        if not store.exists():
            fill(store, args.rows)
        snapshot, results["take_snapshot"] = snapshot_times(store)
        print("take_snapshot", results["take_snapshot"], flush=True)
        with multiprocessing.get_context("spawn").Pool(args.processes) as pool:
            pool.map(os.path.exists, ["."] * args.processes, chunksize=1)
            for case in CASES:
                results[case] = measure(pool, snapshot, Path(scratch), case, args.processes, args.rounds)
                print(case, json.dumps(results[case], indent=2), flush=True)
        penstock.release_snapshot(snapshot)
    if args.json:
        args.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
