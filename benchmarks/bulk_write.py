"""Bulk writes staged in two processes and committed, beside `enqueue_many` of the same rows in the same run.

python benchmarks/bulk_write.py [--rows 2000000] [--processes 2] [--mode os] [--json FILE]

Rows in a second are by the clock; the microseconds of a row are of processor time, all processes added up,
which neighbours on the machine disturb less. While a commit runs, another thread enqueues and acks single
messages: its longest wait is what a commit costs others.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import random
import resource
import shutil
import tempfile
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

import penstock
from penstock import NewMessage, Staged, Txn, WriteTicket

PAYLOAD_BYTES = 200
BATCH_ROWS = 8192
KEYS = 100

#: kind of rows -> columns besides the payload
KINDS = ("plain", "headers", "ids")


def batch(kind: str, rows: int, seed: int) -> pa.RecordBatch:
    rng = random.Random(seed)
    columns: dict[str, Any] = {
        "payload": pa.array([rng.randbytes(PAYLOAD_BYTES // 2) * 2 for _ in range(rows)], pa.binary()),
        "fairness_key": pa.array([f"tenant {n % KEYS}" for n in range(rows)]),
    }
    if kind == "headers":
        headers = [[("type", "order"), ("n", str(n))] for n in range(rows)]
        columns["headers"] = pa.array(headers, pa.map_(pa.string(), pa.string()))
    return pa.record_batch(columns)


def with_ids(one: pa.RecordBatch, rng: random.Random) -> pa.RecordBatch:
    ids = [rng.randbytes(16).hex() for _ in range(one.num_rows)]
    texts = [f"{h[:8]}-{h[8:12]}-{h[12:16]}-{h[16:20]}-{h[20:]}" for h in ids]
    return one.append_column("id", pa.array(texts))


def stage(ticket: WriteTicket, txn: Txn, partition: int, kind: str, rows: int) -> tuple[Staged, float, int]:
    """One process: what it staged, its processor time and its memory in MiB."""
    one, rng = batch(kind, BATCH_ROWS, partition), random.Random(partition)
    batches = [one.slice(0, min(BATCH_ROWS, rows - at)) for at in range(0, rows, BATCH_ROWS)]
    if kind == "ids":
        batches = [with_ids(part, rng) for part in batches]
    started_s = time.process_time()
    with penstock.open_writer(ticket) as writer:
        staged = writer.stage(txn, partition, batches)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    return staged, time.process_time() - started_s, peak


def bystander(q: penstock.Queue, done: threading.Event, waits_s: list[float]) -> None:
    while not done.is_set():
        started_s = time.perf_counter()
        q.enqueue(b"one")
        q.ack([delivery.receipt for delivery in q.lease(1)])
        waits_s.append(time.perf_counter() - started_s)


def measure(folder: Path, kind: str, rows: int, processes: int, mode: str) -> dict[str, Any]:
    with (
        penstock.open(f"rocksdb:{folder}?durability={mode}") as ps,
        multiprocessing.get_context("spawn").Pool(processes) as pool,
    ):
        ps.create_queue("q")
        other = ps.create_queue("other")
        pool.map(abs, range(processes))  # They are there before the clock runs.
        ticket, txn = ps.begin_write("q"), Txn("benchmark", 1)
        started_s = time.perf_counter()
        share = rows // processes
        parts = pool.starmap(stage, [(ticket, txn, n, kind, share) for n in range(processes)])
        staged_s = time.perf_counter() - started_s
        done, waits_s = threading.Event(), [0.0]
        thread = threading.Thread(target=bystander, args=(other, done, waits_s))
        thread.start()
        started_s, cpu_s = time.perf_counter(), time.process_time()
        written = ps.commit_write(ticket, txn, [part for part, _, _ in parts])
        committed_s = time.perf_counter() - started_s
        commit_cpu_s = time.process_time() - cpu_s
        done.set()
        thread.join()
        assert written.enqueued == share * processes
        return {
            "rows": written.enqueued,
            "stage_s": round(staged_s, 3),
            "commit_s": round(committed_s, 3),
            "rows_per_s": round(written.enqueued / (staged_s + committed_s)),
            "stage_cpu_us": round(sum(cpu for _, cpu, _ in parts) / written.enqueued * 1e6, 2),
            "commit_cpu_us": round(commit_cpu_s / written.enqueued * 1e6, 2),
            "others_wait_ms": round(max(waits_s) * 1000, 1),
            "peak_mib": max(peak for _, _, peak in parts),
        }


def enqueue(folder: Path, rows: int, mode: str) -> dict[str, Any]:
    one = batch("plain", 1000, 0).to_pylist()
    messages = [NewMessage(row["payload"], fairness_key=row["fairness_key"]) for row in one]
    with penstock.open(f"rocksdb:{folder}?durability={mode}") as ps:
        q = ps.create_queue("q")
        started_s, cpu_s = time.perf_counter(), time.process_time()
        for _ in range(rows // len(messages)):
            q.enqueue_many(messages)
        took_s, cpu_s = time.perf_counter() - started_s, time.process_time() - cpu_s
    done = rows // len(messages) * len(messages)
    return {"rows": done, "rows_per_s": round(done / took_s), "cpu_us": round(cpu_s / done * 1e6, 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--mode", default="os", choices=("sync", "interval", "os"))
    parser.add_argument("--json")
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="penstock-bulk-"))
    results: dict[str, Any] = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}",
        "mode": args.mode,
    }
    try:
        for kind in KINDS:
            results[kind] = measure(folder / kind, kind, args.rows, args.processes, args.mode)
            print(kind, results[kind])
        results["enqueue_many"] = enqueue(folder / "enqueue", args.rows // 4, args.mode)
        print("enqueue_many", results["enqueue_many"])
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if args.json:
        Path(args.json).write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
