"""What a check, a repair and a reindex of a large store cost, against a bare scan of the same rows.

python benchmarks/check.py [--messages 1000000] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import penstock
from penstock import NewMessage
from penstock.backends.embedded.keys import SPACES
from penstock.kv.rocksdb import RocksStore

PAYLOAD = b"x" * 200
BATCH = 1000
KEYS = 50
#: One message in so many is delayed, leased and retried before the measurement.
SPECIAL = 10


def fill(path: Path, messages: int) -> dict[str, Any]:
    """Fresh, delayed, leased and retried messages of many keys, with a ttl for some."""
    with penstock.open(f"rocksdb:{path}?durability=os") as ps:
        q = ps.create_queue("q")
        for start in range(0, messages, BATCH):
            q.enqueue_many(
                [
                    NewMessage(
                        PAYLOAD,
                        fairness_key=f"key-{n % KEYS}",
                        delay_s=3600 if n % SPECIAL == 1 else 0,
                        ttl_s=86_400 if n % SPECIAL == 2 else None,
                    )
                    for n in range(start, start + BATCH)
                ]
            )
        for _ in range(messages // SPECIAL // BATCH):
            deliveries = q.lease(BATCH, lease_s=3600)
            q.nack([delivery.receipt for delivery in deliveries[: BATCH // 2]], delay_s=0)
    return {}


def raw_scan(path: Path) -> tuple[int, float]:
    """Every row of every space, by the driver alone: how many, and in how many seconds."""
    store = RocksStore.open(path, SPACES)
    rows, started = 0, time.perf_counter()
    for name in SPACES:
        for _ in store.scan(store.space(name), b"", None):
            rows += 1
    seconds = time.perf_counter() - started
    store.close()
    return rows, seconds


def spoil(ps: penstock.Penstock, every: int) -> int:
    """Delete some ready rows behind the store's back; how many."""
    engine: Any = ps._default.engine  # type: ignore[attr-defined]
    batch, deleted = engine.kv.batch(), 0
    for at, (key, _) in enumerate(engine.kv.scan(engine.ready, b"", None)):
        if at % every == 0:
            batch.delete(key, engine.ready)
            deleted += 1
    engine.kv.write(batch)
    return deleted


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    started = time.perf_counter()
    answer = call()
    return answer, time.perf_counter() - started


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def in_child(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The work's answer, done in a process of its own: its peak of memory is of that work alone."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read_end)
        with os.fdopen(write_end, "w") as pipe:
            json.dump({**work(), "peak_mib": round(peak_mib())}, pipe)
        os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end) as pipe:
        answer: dict[str, Any] = json.load(pipe)
    os.waitpid(child, 0)
    return answer


def check(path: Path) -> dict[str, Any]:
    with penstock.open(f"rocksdb:{path}?durability=os") as ps:
        report, seconds = timed(ps.check)
        assert report.ok, report.problems[:3]
        return {"seconds": seconds, "messages": report.messages, "events": report.events}


def repair(path: Path, every: int) -> dict[str, Any]:
    with penstock.open(f"rocksdb:{path}?durability=os") as ps:
        faults = spoil(ps, every)
        report, seconds = timed(lambda: ps.check(repair=True))
        assert report.ok, report.problems[:3]
        return {"seconds": seconds, "faults": faults, "counts": report.counts}


def reindex(path: Path) -> dict[str, Any]:
    with penstock.open(f"rocksdb:{path}?durability=os") as ps:
        report, seconds = timed(ps.reindex)
        assert report.ok, report.problems[:3]
        return {"seconds": seconds, "messages": report.messages}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store"
        in_child(lambda: fill(path, arguments.messages))
        rows = in_child(lambda: dict(zip(("rows", "seconds"), raw_scan(path), strict=True)))
        results = {
            "date": datetime.now(UTC).date().isoformat(),
            "python": platform.python_version(),
            "messages": arguments.messages,
            "raw scan": rows,
            "check": in_child(lambda: check(path)),
            "repair": in_child(lambda: repair(path, 1000)),
            "reindex": in_child(lambda: reindex(path)),
        }
    for name, result in results.items():
        sys.stdout.write(f"{name}: {result}\n")
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
