"""What encryption costs, and what compression costs and saves, against the same store without, in one run.

Batches of 100, mode `os`, journal on; interleaved rounds, medians of rates and of the rounds' ratios.

    python benchmarks/encryption.py [--quick] [--json FILE]
"""

from __future__ import annotations

import argparse
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
from penstock import NewMessage, Penstock, Queue
from penstock.config import Config, EncryptionSettings, StorageSettings

BATCH = 100
STEPS = ("enqueue", "lease", "ack", "cycle")
ROUNDS = 7
OVER_BYTES = 1024

Payload = Callable[[int], bytes]
Times = dict[str, float]


class OneKey:
    def key(self, key_id: str, /) -> bytes | None:
        return bytes(range(32))


def opened(path: Path, *, sealed: bool) -> Penstock:
    encryption = EncryptionSettings(enabled=sealed)
    settings = StorageSettings(path=str(path), durability="os", encryption=encryption)
    return penstock.open(Config(source="benchmark", default=settings), keys=OneKey())


def constant(size: int) -> Payload:
    payload = b"x" * size
    return lambda number: payload


def records(size: int) -> Payload:
    """Text like that of an application: JSON records, no two payloads the same."""

    def payload(number: int) -> bytes:
        rng, rows, length = random.Random(number), [], 0
        while length < size:
            row = {
                "order": rng.randrange(10**9),
                "customer": f"customer-{rng.randrange(5000)}",
                "items": [rng.randrange(1000) for _ in range(5)],
                "status": rng.choice(["new", "paid", "sent", "returned"]),
                "currency": "EUR",
            }
            rows.append(row)
            length += len(json.dumps(row)) + 2
        return json.dumps(rows).encode()[:size]

    return payload


def noise(size: int) -> Payload:
    return lambda number: random.Random(number).randbytes(size)


def one_round(q: Queue, batches: list[list[NewMessage]]) -> Times:
    times = dict.fromkeys(STEPS, 0.0)

    def timed(step: str, call: Callable[..., Any], *args: Any) -> Any:
        started = time.perf_counter()
        answer = call(*args)
        times[step] += time.perf_counter() - started
        return answer

    for batch in batches:
        timed("enqueue", q.enqueue_many, batch)
    for _ in batches:
        deliveries = timed("lease", q.lease, BATCH)
        assert len(deliveries) == BATCH
        timed("ack", q.ack, [one.receipt for one in deliveries])
    times["cycle"] = sum(times.values())
    return times


def compared(queues: dict[str, Queue], payload: Payload, total: int, rounds: int) -> dict[str, Any]:
    """Rates of each queue, and the ratios of the second to the first."""
    first, second = queues
    rates: dict[str, dict[str, list[float]]] = {name: {step: [] for step in STEPS} for name in queues}
    for number in range(rounds):
        batches = [
            [NewMessage(payload(number * total + at + i)) for i in range(BATCH)]
            for at in range(0, total, BATCH)
        ]
        for name, q in queues.items():
            for step, seconds in one_round(q, batches).items():
                rates[name][step].append(total / seconds)
    ratios = {
        step: [b / a for a, b in zip(rates[first][step], rates[second][step], strict=True)] for step in STEPS
    }
    return {
        **{f"{name}_{s}_per_s": round(statistics.median(rates[name][s])) for name in queues for s in STEPS},
        **{f"{step}_ratio": round(statistics.median(ratios[step]), 2) for step in STEPS},
    }


def encryption(folder: Path, size: int, total: int, rounds: int) -> dict[str, Any]:
    with opened(folder / "plain", sealed=False) as plain, opened(folder / "sealed", sealed=True) as sealed:
        queues = {
            "plain": plain.create_queue("q", lease_s=3600),
            "sealed": sealed.create_queue("q", lease_s=3600),
        }
        return {"payload_bytes": size, **compared(queues, constant(size), total, rounds)}


def compression(folder: Path, what: str, payload: Payload, total: int, rounds: int) -> dict[str, Any]:
    with opened(folder / "whole", sealed=False) as whole, opened(folder / "small", sealed=False) as small:
        queues = {
            "whole": whole.create_queue("q", lease_s=3600),
            "small": small.create_queue("q", lease_s=3600, compress_over_bytes=OVER_BYTES),
        }
        speed = compared(queues, payload, total, rounds)
    sizes = {}
    for name, over in (("whole", None), ("small", OVER_BYTES)):
        for sealed in (False, True):
            path = folder / f"{name}-{sealed}"
            sizes[f"{name}{'_sealed' if sealed else ''}_bytes"] = size_of(path, payload, total, over, sealed)
    return {"payload": what, "messages_kept": total, **speed, **sizes}


def size_of(path: Path, payload: Payload, total: int, over: int | None, sealed: bool) -> int:
    """Bytes of a store that holds so many messages, once RocksDB has done all the compaction there is."""
    with opened(path, sealed=sealed) as ps:
        q = ps.create_queue("q", compress_over_bytes=over)
        for at in range(0, total, BATCH):
            q.enqueue_many([NewMessage(payload(at + i)) for i in range(BATCH)])
        backend: Any = ps._default
        backend.engine.kv.compact()
    return sum(file.stat().st_size for file in path.iterdir() if file.is_file())


def rekeying(folder: Path, total: int) -> dict[str, Any]:
    """Messages per second of a rekey from plain to encrypted, nothing else going on."""
    with opened(folder / "rekeyed", sealed=False) as ps:
        q = ps.create_queue("q")
        for _ in range(0, total, 1000):
            q.enqueue_many([NewMessage(b"x" * 200)] * 1000)
    with opened(folder / "rekeyed", sealed=True) as ps:
        started = time.perf_counter()
        report = ps.rekey()
        taken_s = time.perf_counter() - started
    return {"messages": total, "seconds": round(taken_s, 1), "records_per_s": round(report.records / taken_s)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="fewer messages and rounds: a rough look")
    parser.add_argument("--json", type=Path, help="write the results there too")
    args = parser.parse_args()
    rounds, scale = (3, 5) if args.quick else (ROUNDS, 1)
    print(f"{datetime.now(UTC):%Y-%m-%d} {platform.platform()} {os.cpu_count()} cores, Python "
          f"{platform.python_version()}, mode os, batch {BATCH}, journal on")  # fmt: skip
    results: dict[str, list[dict[str, Any]]] = {"encryption": [], "compression": [], "rekeying": []}
    with tempfile.TemporaryDirectory() as folder:
        for size, total in ((200, 50_000), (4096, 10_000), (65_536, 1000)):
            row = encryption(Path(folder, f"e{size}"), size, total // scale, rounds)
            results["encryption"].append(row)
            print(row, flush=True)
        for what, payload in (("4 KiB of JSON", records(4096)), ("4 KiB of noise", noise(4096))):
            row = compression(Path(folder, what.replace(" ", "-")), what, payload, 10_000 // scale, rounds)
            results["compression"].append(row)
            print(row, flush=True)
        results["rekeying"].append(rekeying(Path(folder), 500_000 // scale))
        print(results["rekeying"][0])
    if args.json:
        args.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
