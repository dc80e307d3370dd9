"""What encryption costs, and what compression costs and saves, against the same store without, in one run.

Batches of 100, mode `os`, journal on; both in turn, batch by batch; medians of batches and their ratios.

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
STEPS = ("enqueue", "lease", "ack")
OVER_BYTES = 1024

Payload = Callable[[int], bytes]


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


def compared(queues: dict[str, Queue], payload: Payload, total: int) -> dict[str, Any]:
    """Rates of each queue, and the ratios of the second to the first.

    Batch by batch in turn, so that whatever else the machine does meets both; medians of batches.
    """
    times: dict[str, dict[str, list[float]]] = {name: {step: [] for step in STEPS} for name in queues}

    def timed(name: str, step: str, call: Callable[..., Any], *args: Any) -> Any:
        started = time.perf_counter()
        answer = call(*args)
        times[name][step].append(time.perf_counter() - started)
        return answer

    for at in range(0, total, BATCH):
        payloads = [payload(at + i) for i in range(BATCH)]
        for name in _in_turn(queues, at):
            timed(name, "enqueue", queues[name].enqueue_many, [NewMessage(each) for each in payloads])
    for at in range(0, total, BATCH):
        for name in _in_turn(queues, at):
            deliveries = timed(name, "lease", queues[name].lease, BATCH)
            assert len(deliveries) == BATCH
            timed(name, "ack", queues[name].ack, [one.receipt for one in deliveries])
    typical = {name: {step: statistics.median(of[step]) for step in STEPS} for name, of in times.items()}
    for of in typical.values():
        of["cycle"] = sum(of.values())
    first, second = typical.values()
    return {
        **{f"{name}_{step}_per_s": round(BATCH / of[step]) for name, of in typical.items() for step in of},
        **{f"{step}_ratio": round(first[step] / second[step], 2) for step in first},
    }


def _in_turn(queues: dict[str, Queue], at: int) -> list[str]:
    names = list(queues)
    return names if at // BATCH % 2 else names[::-1]


def encryption(folder: Path, size: int, total: int) -> dict[str, Any]:
    with opened(folder / "plain", sealed=False) as plain, opened(folder / "sealed", sealed=True) as sealed:
        queues = {
            "plain": plain.create_queue("q", lease_s=3600),
            "sealed": sealed.create_queue("q", lease_s=3600),
        }
        return {"payload_bytes": size, **compared(queues, constant(size), total)}


def compression(folder: Path, what: str, payload: Payload, total: int) -> dict[str, Any]:
    with opened(folder / "whole", sealed=False) as whole, opened(folder / "small", sealed=False) as small:
        queues = {
            "whole": whole.create_queue("q", lease_s=3600),
            "small": small.create_queue("q", lease_s=3600, compress_over_bytes=OVER_BYTES),
        }
        speed = compared(queues, payload, total)
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
    parser.add_argument("--quick", action="store_true", help="fewer messages: a rough look")
    parser.add_argument("--json", type=Path, help="write the results there too")
    args = parser.parse_args()
    scale = 10 if args.quick else 1
    print(f"{datetime.now(UTC):%Y-%m-%d} {platform.platform()} {os.cpu_count()} cores, Python "
          f"{platform.python_version()}, mode os, batch {BATCH}, journal on")  # fmt: skip
    results: dict[str, list[dict[str, Any]]] = {"encryption": [], "compression": [], "rekeying": []}
    with tempfile.TemporaryDirectory() as folder:
        for size, total in ((200, 200_000), (4096, 40_000), (65_536, 4000)):
            row = encryption(Path(folder, f"e{size}"), size, total // scale)
            results["encryption"].append(row)
            print(row, flush=True)
        for what, payload in (("4 KiB of JSON", records(4096)), ("4 KiB of noise", noise(4096))):
            row = compression(Path(folder, what.replace(" ", "-")), what, payload, 20_000 // scale)
            results["compression"].append(row)
            print(row, flush=True)
        results["rekeying"].append(rekeying(Path(folder), 500_000 // scale))
        print(results["rekeying"][0])
    if args.json:
        args.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
