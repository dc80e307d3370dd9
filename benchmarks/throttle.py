"""Throttles: whether rates hold over hours, and what a million throttled messages cost the others.

python benchmarks/throttle.py [rate] [beside] [token] [--messages 1000000] [--json FILE]
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import penstock
from penstock import ManualClock, NewMessage, Penstock, Queue

PAYLOAD = b"x" * 200
BATCH = 100


def store(folder: Path, name: str) -> Penstock:
    return penstock.open(f"rocksdb:{folder / name}?durability=os")


def enqueue(q: Queue, message: NewMessage, count: int) -> None:
    for _ in range(count // 1000):
        q.enqueue_many([message] * 1000)


# -- rates, on a clock that is moved ------------------------------------------------------------------


def measured_rate(rate_per_s: float, burst: int, step_s: float, batch: int, count: int) -> dict[str, Any]:
    """Consumers that look every `step_s` of simulated time, until so many were delivered."""
    clock = ManualClock()
    with penstock.open("memory:", clock=clock, rng=random.Random(1)) as ps:
        q = ps.create_queue("q", lease_s=3600)
        ps.throttles.set("api", rate_per_s, burst)
        message = NewMessage(b"", throttle_keys=["api"])
        q.enqueue_many([message] * (burst + 1000))
        q.lease(burst)
        started_ns, delivered = clock.now_ns(), 0
        while delivered < count:
            clock.advance(step_s)
            while held := q.lease(batch):
                q.ack([one.receipt for one in held])
                delivered += len(held)
                q.enqueue_many([message] * len(held))
        seconds = (clock.now_ns() - started_ns) / 1e9
    return {
        "simulated_hours": round(seconds / 3600, 2),
        "measured_over_set": round(delivered / seconds / rate_per_s, 5),
    }


def rate(deliveries: int) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for rate_per_s, burst, step_s in ((0.5, 2, 1.0), (1 / 3, 5, 0.7), (7, 10, 0.9), (100, 200, 1.0)):
        for batch in (1, 100):
            name = f"{rate_per_s:.3g}/s, burst {burst}, looking every {step_s:g} s, batch {batch}"
            out[name] = measured_rate(rate_per_s, burst, step_s, batch, deliveries)
    found = [one["measured_over_set"] for one in out.values()]
    return out | {"furthest_from_set": max(found, key=lambda ratio: abs(ratio - 1))}


# -- what throttled messages cost -------------------------------------------------------------------


def lease_and_ack_us(q: Queue, batches: int) -> tuple[float, float]:
    """Of one message that nothing limits, by the clock and of this thread's processor time."""
    gc.collect()
    started, busy = time.perf_counter(), time.thread_time()
    for _ in range(batches):
        held = q.lease(max_messages=BATCH)
        assert len(held) == BATCH
        q.ack([one.receipt for one in held])
    spent, busy = time.perf_counter() - started, time.thread_time() - busy
    for _ in range(batches):  # What was taken is put back.
        q.enqueue_many([NewMessage(PAYLOAD, fairness_key="free")] * BATCH)
    return spent / batches / BATCH * 1e6, busy / batches / BATCH * 1e6


def beside(folder: Path, messages: int) -> dict[str, Any]:
    """Leasing of the rest: alone, beside a throttled million of one key, and of a thousand keys."""
    with store(folder, "beside") as ps:
        ps.throttles.set("api", 0.01, 1)
        queues = {name: ps.create_queue(name, lease_s=3600) for name in ("alone", "one key", "1000 keys")}
        enqueue(queues["one key"], NewMessage(PAYLOAD, fairness_key="slow", throttle_keys=["api"]), messages)
        for n in range(0, messages, 1000):
            keys = [f"slow-{(n + i) % 1000}" for i in range(1000)]
            queues["1000 keys"].enqueue_many(
                [NewMessage(PAYLOAD, fairness_key=key, throttle_keys=["api"]) for key in keys]
            )
        for q in queues.values():
            enqueue(q, NewMessage(PAYLOAD, fairness_key="free"), 4000)
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in queues}
        for _ in range(15):
            for name, q in queues.items():
                found[name].append(lease_and_ack_us(q, 30))
    out: dict[str, Any] = {"throttled_messages": messages}
    for place, how in enumerate(("by the clock", "processor time")):
        medians = {name: statistics.median(one[place] for one in values) for name, values in found.items()}
        out[how] = {
            "lease_and_ack_us": {name: round(value, 2) for name, value in medians.items()},
            "over_alone": {name: round(medians[name] / medians["alone"], 3) for name in list(queues)[1:]},
        }
    return out


def token(folder: Path, lanes: int) -> dict[str, Any]:
    """A delivery under a limit that lets one go at a time, with few keys and with many that wait for it."""
    out: dict[str, Any] = {}
    clock = ManualClock()
    with penstock.open(f"rocksdb:{folder / 'token'}?durability=os", clock=clock, rng=random.Random(1)) as ps:
        ps.throttles.set("api", 1, 1)
        found: dict[int, list[float]] = {}
        for count in (10, lanes):
            q = ps.create_queue(f"{count}", lease_s=3600)
            for n in range(0, 20_000, 1000):
                keys = [f"{(n + i) % count}" for i in range(1000)]
                q.enqueue_many([NewMessage(PAYLOAD, fairness_key=key, throttle_keys=["api"]) for key in keys])
            q.lease(1)
            found[count] = []
        for _ in range(300):
            for count, times in found.items():
                clock.advance(1)
                started = time.perf_counter()
                held = ps.queue(f"{count}").lease(1)
                times.append((time.perf_counter() - started) * 1e6)
                assert len(held) == 1
    medians = {count: statistics.median(times) for count, times in found.items()}
    out["lease_us_by_keys_waiting"] = {count: round(value, 1) for count, value in medians.items()}
    out["many_over_few"] = round(medians[lanes] / medians[10], 3)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("parts", nargs="*", help="rate, beside, token; all without it")
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--deliveries", type=int, default=10_000, help="of each rate")
    parser.add_argument("--json", type=Path, help="write the results there too")
    args = parser.parse_args()
    machine = f"{platform.platform()} {os.cpu_count()} cores, Python {platform.python_version()}"
    print(f"{datetime.now(UTC):%Y-%m-%d} {machine}, payload {len(PAYLOAD)} bytes, mode os")
    steps: dict[str, Callable[[Path], dict[str, Any]]] = {
        "rate": lambda folder: rate(args.deliveries),
        "beside": lambda folder: beside(folder, args.messages),
        "token": lambda folder: token(folder, 10_000),
    }
    results: dict[str, Any] = {}
    for name in args.parts or steps:
        with tempfile.TemporaryDirectory() as folder:
            results[name] = steps[name](Path(folder))
        print(name, json.dumps(results[name], indent=2), flush=True)
    if args.json:
        args.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
