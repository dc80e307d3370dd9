"""One measurement of the server's benchmark, in a process of its own that ends with it.

    python -m benchmarks.server_process TASK

Never forked: a store that is open has threads and locks, of which a fork keeps the locks alone.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Literal

import msgspec

import penstock
from benchmarks.server_load import Measured, Script, run
from benchmarks.server_native import Embedded, Native, run_embedded
from benchmarks.server_sqs import Sqs

#: As long as the payloads of the other benchmarks.
PAYLOAD = "x" * 200
#: What a measurement may take besides its own time: Python starts, a store opens.
GRACE_S = 60.0


class Task(msgspec.Struct, frozen=True):
    """What is done to whom. `where` is HOST:PORT, or the URL of a store that no other process has."""

    kind: Literal["sqs", "native", "embedded"]
    where: str
    queue: str
    operation: str
    batch: int
    clients: int
    warm_up_s: float
    seconds: float


class Figures(msgspec.Struct, frozen=True):
    """What came of it. `load` is the share of a core that the clients took."""

    per_s: float
    p50_ms: float
    p99_ms: float
    load: float


def measured(task: Task) -> Figures:
    """Have it done, in another process; an error says what that process said last."""
    command = [sys.executable, "-m", "benchmarks.server_process", msgspec.json.encode(task).decode()]
    root = Path(__file__).parents[1]
    within_s = task.warm_up_s + task.seconds + GRACE_S
    try:
        done = subprocess.run(command, cwd=root, capture_output=True, timeout=within_s, check=False)
    except subprocess.TimeoutExpired as late:
        raise RuntimeError(f"{task} had not ended after {within_s:.0f} s") from late
    if done.returncode:
        raise RuntimeError(f"{task} failed: {done.stderr.decode(errors='replace')[-2000:]}")
    return msgspec.json.decode(done.stdout, type=Figures)


def _over_http(task: Task) -> Measured:
    host, _, port = task.where.rpartition(":")
    address = host, int(port)
    queue = (Sqs if task.kind == "sqs" else Native)(address, task.queue, PAYLOAD)
    scripts: list[Script] = [getattr(queue, task.operation)(task.batch) for _ in range(task.clients)]
    return run(address, scripts, task.warm_up_s, task.seconds)


def _embedded(task: Task) -> Measured:
    with penstock.open(task.where) as ps:
        step = getattr(Embedded(ps.create_queue(task.queue), PAYLOAD), task.operation)
        return run_embedded(lambda: int(step(task.batch)), task.clients, task.warm_up_s, task.seconds)


def main() -> None:
    task = msgspec.json.decode(sys.argv[1], type=Task)
    found = _embedded(task) if task.kind == "embedded" else _over_http(task)
    figures = Figures(
        found.per_s, found.quantile_ms(0.5), found.quantile_ms(0.99), found.cpu_s / found.seconds
    )
    os.write(1, msgspec.json.encode(figures))


if __name__ == "__main__":
    main()
