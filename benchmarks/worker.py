"""Messages per second of a worker with an empty handler, and the ratio to bare lease and ack in the same run.

The bare cycle is one thread that leases and acks in batches of the same size what was enqueued before. A
worker's time begins when its slots are ready and includes the enqueueing, which goes on beside it; what it
took to get ready is shown apart. Rounds of both are interleaved.

    python benchmarks/worker.py [--durability os] [--mode threads] [--quick] [--json FILE]
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import statistics
import sys
import tempfile
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import penstock
from penstock import Delivery, NewMessage, Worker

PAYLOAD = b"x" * 200
DURABILITIES = ("os", "sync")
MODES = ("threads", "asyncio", "processes")
CONCURRENCIES = (1, 10)
BATCHES = (1, 100)
ROUNDS = 5


def handle(work: Delivery | list[Delivery]) -> None:
    """Nothing: what is measured is the worker."""


async def handle_on_loop(work: Delivery | list[Delivery]) -> None:
    """The same for an event loop."""


def messages_for(durability: str, concurrency: int, batch: int, quick: bool) -> int:
    """Enough to measure, little enough to wait for."""
    total = 1_000 * (1 if concurrency * batch == 1 else 5 if batch == 1 else 20)
    if durability == "os":
        total *= 3
    return max(batch, total // (5 if quick else 1))


def fill(q: penstock.Queue, total: int) -> None:
    for at in range(0, total, 1000):
        q.enqueue_many([NewMessage(PAYLOAD) for _ in range(min(1000, total - at))])


def bare_s(q: penstock.Queue, total: int, batch: int) -> float:
    """Seconds of lease and ack by hand."""
    fill(q, total)
    started = time.perf_counter()
    while deliveries := q.lease(batch):
        q.ack([one.receipt for one in deliveries])
    return time.perf_counter() - started


def worker_s(
    ps: penstock.Penstock, total: int, mode: str, concurrency: int, batch: int
) -> tuple[float, float]:
    """Seconds from the first enqueue to the last ack, and those until all its slots were ready."""
    # By name: a script's own functions are not to be found by another process.
    handler: Any = {"asyncio": handle_on_loop, "processes": f"{Path(__file__).stem}:handle"}.get(mode, handle)
    options: dict[str, Any] = {"mode": mode, "concurrency": concurrency, "batch_size": batch}
    pause = threading.Event()
    started = time.perf_counter()
    with Worker(ps, "bench", handler, **options) as worker:
        while any(slot.doing == "starting" for slot in worker.stats.slots):
            pause.wait(0.01)
        ready = time.perf_counter()
        fill(ps.queue("bench"), total)
        while worker.stats.succeeded < total:
            pause.wait(0.002)
        return time.perf_counter() - ready, ready - started


def measure(
    folder: Path, durability: str, mode: str, concurrency: int, batch: int, quick: bool
) -> dict[str, Any]:
    """Medians of the rounds."""
    total = messages_for(durability, concurrency, batch, quick)
    bare, ours, ratios, starts = [], [], [], []
    with penstock.open(f"rocksdb:{folder}?durability={durability}") as ps:
        q = ps.create_queue("bench", lease_s=3600)
        for _ in range(2 if quick else ROUNDS):
            by_hand_s = bare_s(q, total, batch)
            work_s, start_s = worker_s(ps, total, mode, concurrency, batch)
            bare.append(total / by_hand_s)
            ours.append(total / work_s)
            ratios.append(by_hand_s / work_s)
            starts.append(start_s)
    return {
        "durability": durability,
        "mode": mode,
        "concurrency": concurrency,
        "batch": batch,
        "messages": total,
        "worker_per_s": round(statistics.median(ours)),
        "bare_per_s": round(statistics.median(bare)),
        "of_bare": round(statistics.median(ratios), 2),
        "start_ms": round(statistics.median(starts) * 1000),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--durability", choices=DURABILITIES, action="append")
    parser.add_argument("--mode", choices=MODES, action="append")
    parser.add_argument("--quick", action="store_true", help="fewer messages and rounds: a rough look")
    parser.add_argument("--json", type=Path, help="write the results there too")
    args = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).parent))
    print(f"{datetime.now(UTC):%Y-%m-%d} {platform.platform()} {os.cpu_count()} cores, Python "
          f"{platform.python_version()}, payload {len(PAYLOAD)} bytes, empty handler")  # fmt: skip
    head = ("durability", "mode", "concurrency", "batch", "worker_per_s", "bare_per_s", "of_bare", "start_ms")
    print("".join(f"{name:>13}" for name in head))
    cells = []
    for durability in args.durability or DURABILITIES:
        for mode in args.mode or MODES:
            for concurrency, batch in itertools.product(CONCURRENCIES, BATCHES):
                with tempfile.TemporaryDirectory() as folder:
                    cell = measure(Path(folder) / "store", durability, mode, concurrency, batch, args.quick)
                cells.append(cell)
                print("".join(f"{cell[name]:>13}" for name in head), flush=True)
    if args.json:
        args.json.write_text(json.dumps(cells, indent=2) + "\n")


if __name__ == "__main__":
    main()
