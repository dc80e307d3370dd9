"""What an attachment costs, against owning the store, in the same run; and how long a take-over lasts.

One process works on a store that it owns, and on one that another process owns. Then the owner is killed and
the time is taken until an attached process that keeps enqueueing gets its next answer.

    python -m benchmarks.attached [--mode os] [--quick]
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import penstock
from benchmarks.core import MODES, ROUNDS, STEPS, Times, machine, penstock_round

BATCHES = (1, 100)
OWNER = """
import sys, penstock
ps = penstock.open(sys.argv[1])
print("open", flush=True)
sys.stdin.read()
"""


class Owner:
    """Another process that owns the store and does nothing else."""

    def __init__(self, target: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", OWNER, target], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"open\n"

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


def measure(folder: Path, mode: str, batch: int, total: int) -> tuple[Times, Times]:
    """Medians of alternating rounds: owned, attached."""
    rounds: dict[str, list[Times]] = {"owned": [], "attached": []}
    owner = Owner(f"rocksdb:{folder}/attached?durability={mode}")
    for _ in range(ROUNDS):
        for which in rounds:
            with penstock.open(f"rocksdb:{folder}/{which}?durability={mode}") as ps:
                assert (ps.info().default.attached_to is not None) == (which == "attached")
                q = ps.create_queue(f"q{len(rounds[which])}")
                rounds[which].append(penstock_round(q, total, batch))
    owner.kill()
    owned, attached = (
        {step: statistics.median(one[step] for one in found) for step in STEPS} for found in rounds.values()
    )
    return owned, attached


def take_overs(folder: Path, count: int) -> list[float]:
    """Seconds from the owner's death to the next answer, with 10,000 messages in the store."""
    target, seconds = f"rocksdb:{folder}/taken?durability=os", []
    for _ in range(count):
        owner = Owner(target)
        with penstock.open(target) as ps:
            q = ps.queue("q") if ps.queues() else ps.create_queue("q")
            q.enqueue_many([penstock.NewMessage(b"x" * 200)] * 10_000)
            owner.kill()
            started = time.perf_counter()
            q.enqueue(b"next")
            seconds.append(time.perf_counter() - started)
            q.purge()
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--mode", choices=MODES, default="os")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    print(machine())
    with tempfile.TemporaryDirectory() as folder:
        print(f"\nmode {options.mode}, payloads of 200 bytes, median of {ROUNDS} rounds\n")
        print("| batch | step | owned msg/s | attached msg/s | attached/owned |")
        print("| --- | --- | --- | --- | --- |")
        for batch in BATCHES:
            total = {1: 2_000, 100: 20_000}[batch] // (4 if options.quick else 1)
            owned, attached = measure(Path(folder) / str(batch), options.mode, batch, total)
            for step in STEPS:
                rates = total / owned[step], total / attached[step]
                print(f"| {batch} | {step} | {rates[0]:,.0f} | {rates[1]:,.0f} | {rates[1] / rates[0]:.2f} |")
        seconds = take_overs(Path(folder), 5 if options.quick else 20)
        median, longest = statistics.median(seconds), max(seconds)
        print(f"\ntake-over after kill -9, 10,000 messages in the store: median {median:.3f} s,")
        print(f"longest of {len(seconds)}: {longest:.3f} s")


if __name__ == "__main__":
    main()
