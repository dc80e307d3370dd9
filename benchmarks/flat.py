"""Cost flat in size: the same work on 1,000 and on 1,000,000 messages, and what opening a store costs.

python benchmarks/flat.py [--messages 1000000] [--queues 10000] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import penstock
from penstock import NewMessage

PAYLOAD = b"x" * 200
BATCH = 100
SMALL = 1000


def fill(q: penstock.Queue, count: int) -> None:
    for _ in range(count // 1000):
        q.enqueue_many([NewMessage(PAYLOAD)] * 1000)


def consume(q: penstock.Queue, count: int) -> None:
    for _ in range(count // 1000):
        q.ack([one.receipt for one in q.lease(max_messages=1000)])


def per_message_us(q: penstock.Queue, batches: int) -> float:
    """Lease and ack of one message, the median batch; what is taken is put back by enqueueing as much."""
    times = []
    for _ in range(batches):
        started = time.perf_counter()
        q.ack([one.receipt for one in q.lease(max_messages=BATCH)])
        times.append((time.perf_counter() - started) / BATCH * 1e6)
        q.enqueue_many([NewMessage(PAYLOAD)] * BATCH)
    return statistics.median(times)


def median_ms(repeat: int, call: Any) -> float:
    times = []
    for _ in range(repeat):
        started = time.perf_counter()
        call()
        times.append((time.perf_counter() - started) * 1e3)
    return statistics.median(times)


def lease_and_stats(folder: Path, large: int) -> dict[str, Any]:
    """A small queue beside a large one, a consumed one, measured in turns."""
    with penstock.open(f"rocksdb:{folder}/sizes?durability=os") as ps:
        small, backlog, consumed = (
            ps.create_queue(n, lease_s=3600) for n in ("small", "backlog", "consumed")
        )
        fill(small, SMALL)
        fill(backlog, large)
        fill(consumed, large)
        consume(consumed, large)
        fill(consumed, SMALL)
        rounds: dict[str, list[float]] = {"small": [], "backlog": [], "consumed": []}
        for _ in range(7):
            for q in (small, backlog, consumed):
                rounds[q.name].append(per_message_us(q, 30))
        lease = {name: round(statistics.median(values), 2) for name, values in rounds.items()}
        stats = {q.name: round(median_ms(200, q.stats), 4) for q in (small, backlog, consumed)}
    return {
        "lease_and_ack_us_per_message": lease,
        "backlog_over_small": round(lease["backlog"] / lease["small"], 2),
        "consumed_over_small": round(lease["consumed"] / lease["small"], 2),
        "stats_ms": stats,
    }


def open_once(path: Path) -> tuple[float, float, float]:
    """(ms to open, ms to the first lease, ms to close)"""
    started = time.perf_counter()
    ps = penstock.open(f"rocksdb:{path}?durability=os")
    opened = time.perf_counter()
    if ps.queues():
        ps.queue(ps.queues()[0].name).lease(max_messages=1)
    leased = time.perf_counter()
    ps.close()
    return (opened - started) * 1e3, (leased - opened) * 1e3, (time.perf_counter() - leased) * 1e3


def killed_child(path: Path, what: str, count: int) -> None:
    """Fill (and consume) a store in another process and kill it with -9 when it is done."""
    child = subprocess.Popen(
        [sys.executable, __file__, "--child", what, str(path), str(count)], stdout=subprocess.PIPE
    )
    assert child.stdout is not None
    assert child.stdout.readline() == b"ready\n"
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()


def run_child(what: str, path: str, count: int) -> None:
    ps = penstock.open(f"rocksdb:{path}?durability=os")
    q = ps.create_queue("q", lease_s=3600)
    if what == "drained":  # As workers do that keep up: the queue is empty after every batch.
        for _ in range(count // BATCH):
            q.enqueue_many([NewMessage(PAYLOAD)] * BATCH)
            q.ack([one.receipt for one in q.lease(max_messages=2 * BATCH)])
        fill(q, SMALL)
    else:
        fill(q, count)
    if what == "consumed":
        consume(q, count)
        fill(q, SMALL)
    print("ready", flush=True)
    signal.pause()


def opening(folder: Path, large: int) -> dict[str, Any]:
    empty, full = folder / "empty", folder / "full"
    with penstock.open(f"rocksdb:{empty}?durability=os") as ps:
        ps.create_queue("q")
    with penstock.open(f"rocksdb:{full}?durability=os") as ps:
        fill(ps.create_queue("q"), large)
    found: dict[str, list[float]] = {"empty": [], "full": []}
    for _ in range(5):
        for name, path in (("empty", empty), ("full", full)):
            found[name].append(open_once(path)[0])
    clean = {name: round(statistics.median(values), 1) for name, values in found.items()}
    rows: dict[str, Any] = {
        "open_ms_clean": clean,
        "full_over_empty": round(clean["full"] / clean["empty"], 2),
    }
    for what in ("backlog", "consumed", "drained"):
        path = folder / f"killed-{what}"
        killed_child(path, what, large)
        opened, first_lease, _ = open_once(path)
        rows[f"after_kill_{what}"] = {"open_ms": round(opened, 1), "first_lease_ms": round(first_lease, 1)}
        opened, first_lease, _ = open_once(path)
        rows[f"then_clean_{what}"] = {"open_ms": round(opened, 1), "first_lease_ms": round(first_lease, 1)}
    return rows


def many_queues(folder: Path, count: int) -> dict[str, Any]:
    path = folder / "queues"
    with penstock.open(f"rocksdb:{path}?durability=os") as ps:
        started = time.perf_counter()
        ps.replace_queues([f"queue-{i:05d}" for i in range(count)])
        created_ms = (time.perf_counter() - started) * 1e3
        for i in range(0, count, 10):
            ps.queue(f"queue-{i:05d}").enqueue_many([NewMessage(PAYLOAD)] * 10)
    opened_ms = open_once(path)[0]
    with penstock.open(f"rocksdb:{path}?durability=os") as ps:
        q = ps.queue("queue-00000")
        fill(q, SMALL)
        per_message = statistics.median(per_message_us(q, 30) for _ in range(5))
    return {
        "queues": count,
        "replace_queues_ms": round(created_ms, 1),
        "open_ms": round(opened_ms, 1),
        "lease_and_ack_us_per_message": round(per_message, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--queues", type=int, default=10_000)
    parser.add_argument("--json", type=Path, help="write the results there too")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        run_child(args.child[0], args.child[1], int(args.child[2]))
        return
    machine = f"{platform.platform()} {os.cpu_count()} cores, Python {platform.python_version()}"
    print(f"{datetime.now(UTC):%Y-%m-%d} {machine}, payload {len(PAYLOAD)} bytes, mode os, {args.messages:,}")
    results: dict[str, Any] = {}
    steps: dict[str, Callable[[Path], dict[str, Any]]] = {
        "sizes": lambda folder: lease_and_stats(folder, args.messages),
        "opening": lambda folder: opening(folder, args.messages),
        "many_queues": lambda folder: many_queues(folder, args.queues),
    }
    for name, step in steps.items():
        with tempfile.TemporaryDirectory() as folder:
            results[name] = step(Path(folder))
        print(name, json.dumps(results[name], indent=2), flush=True)
    results["peak_memory_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(f"peak memory {results['peak_memory_mib']} MiB")
    if args.json:
        args.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
