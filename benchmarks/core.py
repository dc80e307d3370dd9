"""Messages per second of the embedded queue, and the ratio to a raw rocksdict loop in the same run.

The raw loop does per message: enqueue 2 puts; lease 1 iterator step, 1 key of a multi-get, 1 delete, 2 puts;
ack 1 key of a multi-get, 3 deletes; and per batch one write with one journal put. It has the same options,
column families and row sizes, so that what differs is what Penstock does on top.

    python benchmarks/core.py [--mode os] [--batch 100] [--quick] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import penstock
from penstock import NewMessage
from penstock.backends.embedded.keys import SPACES
from penstock.kv.rocksdb import RocksStore

PAYLOAD = b"x" * 200
BATCHES = (1, 10, 100, 1000)
MODES = ("os", "interval", "sync")
STEPS = ("enqueue", "lease", "ack")
ROUNDS = 5

Times = dict[str, float]


def messages_for(batch: int, mode: str, quick: bool) -> int:
    """Enough to measure, little enough to wait for: an fsync per call makes small batches slow."""
    total = {1: 5_000, 10: 20_000, 100: 50_000, 1000: 50_000}[batch]
    if mode == "sync" and batch < 100:
        total //= 5
    return max(batch, total // (5 if quick else 1))


class Timer:
    """Adds up the time of each step."""

    def __init__(self) -> None:
        self.seconds: Times = dict.fromkeys(STEPS, 0.0)

    def run(self, step: str, call: Callable[..., Any], *args: Any) -> Any:
        started = time.perf_counter()
        answer = call(*args)
        self.seconds[step] += time.perf_counter() - started
        return answer


def _ack(q: penstock.Queue, deliveries: list[penstock.Delivery]) -> None:
    q.ack([one.receipt for one in deliveries])


def penstock_round(q: penstock.Queue, total: int, batch: int) -> Times:
    """Enqueue everything, then lease and ack everything, in batches."""
    timer = Timer()
    for _ in range(total // batch):
        messages = [NewMessage(PAYLOAD) for _ in range(batch)]
        timer.run("enqueue", q.enqueue_many, messages)
    for _ in range(total // batch):
        deliveries = timer.run("lease", q.lease, batch)
        assert len(deliveries) == batch
        timer.run("ack", _ack, q, deliveries)
    return timer.seconds


class Raw:
    """The same rows by hand on the driver itself."""

    def __init__(self, path: str, mode: str) -> None:
        import rocksdict

        self._store = RocksStore.open(path, SPACES)
        self._driver = rocksdict
        self._db = self._store._database
        self._handles = {name: self._store.space(name) for name in SPACES}
        self._families = {name: self._store._families[handle] for name, handle in self._handles.items()}
        self._sync = mode == "sync"
        self._next = 0

    def _write(self, batch: Any) -> None:
        self._db.write(batch)
        if self._sync:
            self._db.flush_wal(True)

    def round(self, total: int, batch: int) -> Times:
        first, self._next = self._next, self._next + total
        ids = [(1_700_000_000_000 + i).to_bytes(6, "big") + bytes(10) for i in range(first, first + total)]
        timer = Timer()
        for at in range(0, total, batch):
            timer.run("enqueue", self._enqueue, ids[at : at + batch])
        steps = self._ready_rows(ids[0])
        for at in range(0, total, batch):
            timer.run("lease", self._lease, steps, batch)
            timer.run("ack", self._ack, ids[at : at + batch])
        return timer.seconds

    def _enqueue(self, ids: list[bytes]) -> None:
        batch = self._driver.WriteBatch(raw_mode=True)
        bodies, ready = self._handles["messages"], self._handles["ready"]
        for i in ids:
            batch.put(b"\0\0\0\1" + i, b"h" * 38 + PAYLOAD, bodies)
            batch.put(b"\0\0\0\1\5\0\0\0\0" + i[:8] + i, b"0123456789abcdef", ready)
        batch.put(b"\0\0\0\1e" + ids[-1], b"f" * (16 * len(ids) + 100), self._handles["journal"])
        self._write(batch)

    def _ready_rows(self, first: bytes) -> Iterator[bytes]:
        rows = self._families["ready"].iter()
        rows.seek(b"\0\0\0\1\5\0\0\0\0" + first[:8] + first)
        while rows.valid():
            yield rows.key()
            rows.value()
            rows.next()

    def _lease(self, rows: Iterator[bytes], count: int) -> None:
        keys = [next(rows) for _ in range(count)]
        bodies: Any = self._families["messages"].get([b"\0\0\0\1" + key[17:] for key in keys])
        assert len(bodies) == count
        batch = self._driver.WriteBatch(raw_mode=True)
        ready, state, due = self._handles["ready"], self._handles["state"], self._handles["due"]
        for key in keys:
            i = key[17:]
            batch.delete(key, ready)
            batch.put(b"\0\0\0\1\2" + i, b"s" * 65, state)
            batch.put(b"\1" + i[:8] + b"\0\0\0\1" + i, b"\1", due)
        batch.put(b"\0\0\0\1l" + keys[-1][17:], b"f" * (16 * count + 100), self._handles["journal"])
        self._write(batch)

    def _ack(self, ids: list[bytes]) -> None:
        rows: Any = self._families["state"].get([b"\0\0\0\1\2" + i for i in ids])
        assert None not in rows
        batch = self._driver.WriteBatch(raw_mode=True)
        bodies, state, due = self._handles["messages"], self._handles["state"], self._handles["due"]
        for i in ids:
            batch.delete(b"\0\0\0\1\2" + i, state)
            batch.delete(b"\1" + i[:8] + b"\0\0\0\1" + i, due)
            batch.delete(b"\0\0\0\1" + i, bodies)
        batch.put(b"\0\0\0\1a" + ids[-1], b"f" * (16 * len(ids) + 100), self._handles["journal"])
        self._write(batch)


def measure(folder: Path, mode: str, batch: int, quick: bool) -> dict[str, Any]:
    """Interleaved rounds of both; medians of rates and of the rounds' ratios."""
    total = messages_for(batch, mode, quick)
    raw = Raw(str(folder / "raw"), mode)
    rates: dict[str, list[float]] = {step: [] for step in (*STEPS, "cycle")}
    ratios: dict[str, list[float]] = {step: [] for step in (*STEPS, "cycle")}
    with penstock.open(f"rocksdb:{folder}/penstock?durability={mode}") as ps:
        q = ps.create_queue("bench", lease_s=3600)
        for _ in range(2 if quick else ROUNDS):
            by_hand = raw.round(total, batch)
            ours = penstock_round(q, total, batch)
            by_hand["cycle"], ours["cycle"] = sum(by_hand.values()), sum(ours.values())
            for step in rates:
                rates[step].append(total / ours[step])
                ratios[step].append(by_hand[step] / ours[step])
    return {
        "mode": mode,
        "batch": batch,
        "messages": total,
        **{f"{step}_per_s": round(statistics.median(rates[step])) for step in rates},
        **{f"{step}_of_raw": round(statistics.median(ratios[step]), 2) for step in ratios},
    }


def group_commit(folder: Path, threads: int, per_thread: int) -> float:
    """Single messages per second from so many threads, each waiting for its own fsync."""
    with penstock.open(f"rocksdb:{folder}/threads{threads}?durability=sync") as ps:
        q = ps.create_queue("bench")
        start = threading.Barrier(threads + 1)

        def produce() -> None:
            start.wait()
            for _ in range(per_thread):
                q.enqueue(PAYLOAD)

        workers = [threading.Thread(target=produce) for _ in range(threads)]
        for worker in workers:
            worker.start()
        start.wait()
        started = time.perf_counter()
        for worker in workers:
            worker.join()
        return threads * per_thread / (time.perf_counter() - started)


def storage_modes(folder: Path, total: int) -> list[dict[str, Any]]:
    """Size on disk and speed of `high_throughput` and `low_space`, with payloads like JSON."""
    rows = []
    for storage_mode in ("high_throughput", "low_space"):
        path = folder / storage_mode
        with penstock.open(f"rocksdb:{path}?durability=os&mode={storage_mode}") as ps:
            q = ps.create_queue("bench", lease_s=3600)
            started = time.perf_counter()
            for at in range(0, total, 100):
                q.enqueue_many([NewMessage(_json_like(i)) for i in range(at, at + 100)])
            enqueued = time.perf_counter()
            for _ in range(total // 200):
                q.ack([one.receipt for one in q.lease(max_messages=100)])
            consumed = time.perf_counter()
        size = sum(f.stat().st_size for f in path.iterdir() if f.is_file())
        rows.append(
            {
                "storage_mode": storage_mode,
                "messages_kept": total // 2,
                "bytes_on_disk": size,
                "enqueue_per_s": round(total / (enqueued - started)),
                "lease_and_ack_per_s": round(total // 2 / (consumed - enqueued)),
            }
        )
    return rows


def _json_like(i: int) -> bytes:
    body = {"order": i, "customer": f"customer-{i % 5000}", "items": [i % 7, i % 11], "currency": "EUR"}
    return json.dumps(body).encode().ljust(200, b" ")


def machine() -> str:
    """What a figure is worth nothing without."""
    return (
        f"{datetime.now(UTC):%Y-%m-%d} {platform.platform()} {os.cpu_count()} cores, Python "
        f"{platform.python_version()}, payload {len(PAYLOAD)} bytes, journal on"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--mode", choices=MODES, action="append")
    parser.add_argument("--batch", type=int, choices=BATCHES, action="append")
    parser.add_argument("--quick", action="store_true", help="fewer messages and rounds: a rough look")
    parser.add_argument("--only-cells", action="store_true", help="leave out threads and storage modes")
    parser.add_argument("--json", type=Path, help="write the results there too")
    args = parser.parse_args()
    print(machine())
    results: dict[str, Any] = {"cells": []}
    print(f"{'mode':<9}{'batch':>6}" + "".join(f"{step:>12}{'of raw':>8}" for step in (*STEPS, "cycle")))
    for mode in args.mode or MODES:
        for batch in args.batch or BATCHES:
            with tempfile.TemporaryDirectory() as folder:
                cell = measure(Path(folder), mode, batch, args.quick)
            results["cells"].append(cell)
            columns = (f"{cell[f'{s}_per_s']:>12,}{cell[f'{s}_of_raw']:>8}" for s in (*STEPS, "cycle"))
            print(f"{mode:<9}{batch:>6}" + "".join(columns), flush=True)
    if not args.only_cells:
        with tempfile.TemporaryDirectory() as folder:
            one = group_commit(Path(folder), 1, 400 if args.quick else 1500)
            many = group_commit(Path(folder), 50, 40 if args.quick else 200)
            results["group_commit"] = {"one_thread_per_s": round(one), "fifty_threads_per_s": round(many)}
            print(
                f"sync, single messages: 1 thread {one:,.0f}/s, 50 threads {many:,.0f}/s = {many / one:.1f}x"
            )
            results["storage_modes"] = storage_modes(Path(folder), 40_000 if args.quick else 400_000)
        for row in results["storage_modes"]:
            print(row)
    results["peak_memory_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(f"peak memory {results['peak_memory_mib']} MiB (both stores, all cells)")
    if args.json:
        args.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
