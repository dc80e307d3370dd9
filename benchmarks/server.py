"""The server beside moto's, ElasticMQ and the embedded engine: messages a second, p50, p99, in one run.

    python -m benchmarks.server [--quick] [--interface sqs] [--mode interval] [--clients 1,10,50] [--rounds 3]
    python -m benchmarks.server --elasticmq FOLDER    # keeps what is fetched from Maven for the next run

`penstock serve` runs as a process of its own on a store in mode `sync` (`--mode`), its request log on. Over
SQS it is measured beside moto's server (in memory) and, where java and mvn are, ElasticMQ with its messages
in a database; over its native interface beside an embedded store in the same mode in a process of its own,
with as many threads as there are clients. `sends` is one request of a batch; `cycles` are three: send,
receive, delete. Times are of one such round. All take turns; a ratio is the median of the rounds' ratios.

Clients are connections of one process, which sends requests made beforehand and is the same for all servers.
They run on the cores that the server runs on: `load` is the share of a core that they took.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

from benchmarks import server_rivals as rivals
from benchmarks.core import machine
from benchmarks.server_process import Figures, Task, measured

BATCHES = {"sqs": (1, 10), "native": (1, 10, 100)}
OPERATIONS = ("sends", "cycles")
WARM_UP_S = 0.4
#: Before anything is measured each server works for so long: Java compiles what it runs often.
FIRST_WARM_UP_S = 4.0
OURS = "penstock"

#: Operation, batch, clients, how long -> what came of it.
Runner = Callable[[str, int, int, float], Figures]


class Cell(NamedTuple):
    """What is measured on all of them in turn."""

    interface: str
    operation: str
    batch: int
    clients: int


class Queues:
    """A new queue for each measurement, so that none has what another left."""

    def __init__(self) -> None:
        self._count = 0

    def runner(self, kind: Literal["sqs", "native", "embedded"], where: str) -> Runner:
        def run(operation: str, batch: int, clients: int, seconds: float) -> Figures:
            self._count += 1
            os.sync()  # What the one before has left to be written is not this one's to wait for.
            queue = f"bench-{self._count}"
            return measured(Task(kind, where, queue, operation, batch, clients, WARM_UP_S, seconds))

        return run


def made(folder: Path, mode: str) -> str:
    """A store that is there before anything is measured. This process never opens one."""
    store = f"rocksdb:{folder}?durability={mode}"
    command = [sys.executable, "-m", "penstock", "init", "--store", store]
    subprocess.run(command, check=True, timeout=60, stdout=subprocess.DEVNULL)
    return store


@contextmanager
def penstock_server(folder: Path, mode: str) -> Iterator[str]:
    """As it is started from a shell: everything as by default, requests logged to a file."""
    port = rivals.free_port()
    store = made(folder / "served", mode)
    command = [sys.executable, "-m", "penstock", "serve", "--store", store, "--port", str(port)]
    with rivals.running(command, port, folder / "penstock.log") as address:
        yield address


def open_all(stack: ExitStack, folder: Path, options: argparse.Namespace) -> dict[str, dict[str, Runner]]:
    """By interface, who is measured; Penstock's server first."""
    queues = Queues()
    ours = stack.enter_context(penstock_server(folder, options.mode))
    found: dict[str, dict[str, Runner]] = {}
    if "native" in options.interface:
        beside = queues.runner("embedded", made(folder / "embedded", options.mode))
        found["native"] = {OURS: queues.runner("native", ours), "embedded": beside}
    if "sqs" in options.interface:
        found["sqs"] = {OURS: queues.runner("sqs", ours)}
        found["sqs"]["moto"] = queues.runner("sqs", stack.enter_context(rivals.moto(folder)))
        kept = options.elasticmq or folder
        kept.mkdir(parents=True, exist_ok=True)
        try:
            address = stack.enter_context(rivals.elasticmq(folder, rivals.elasticmq_jars(kept.resolve())))
        except RuntimeError as missing:
            print(f"ElasticMQ: not run: {missing}", flush=True)
        else:
            found["sqs"]["elasticmq"] = queues.runner("sqs", address)
    return found


def measure(found: dict[str, dict[str, Runner]], options: argparse.Namespace) -> list[dict[str, Any]]:
    """Rounds outermost: what the machine does meanwhile is spread over all cells."""
    cells = [
        Cell(interface, operation, batch, clients)
        for interface in found
        for operation in OPERATIONS
        for batch in BATCHES[interface]
        if not options.batches or batch in options.batches
        for clients in options.clients
    ]
    for interface, runners in found.items():
        for one in runners.values():
            one("cycles", BATCHES[interface][-1], 10, min(FIRST_WARM_UP_S, 2 * options.seconds))
    kept: dict[Cell, list[dict[str, Figures]]] = {cell: [] for cell in cells}
    for number in range(options.rounds):
        for cell in cells:
            runners = found[cell.interface]
            kept[cell].append(
                {
                    name: one(cell.operation, cell.batch, cell.clients, options.seconds)
                    for name, one in runners.items()
                }
            )
        print(f"round {number + 1}, load average {os.getloadavg()[0]:.1f}", file=sys.stderr, flush=True)
    return [row(cell, rounds) for cell, rounds in kept.items()]


def row(cell: Cell, rounds: list[dict[str, Figures]]) -> dict[str, Any]:
    out: dict[str, Any] = cell._asdict()
    for name in rounds[0]:
        taken = [one[name] for one in rounds]
        out[name] = {
            field: statistics.median(getattr(one, field) for one in taken)
            for field in Figures.__struct_fields__
        }
        out[name]["all_per_s"] = [round(one.per_s) for one in taken]
        if name != OURS:
            ratios = [one[OURS].per_s / one[name].per_s for one in rounds if one[name].per_s]
            out[name]["ratio"] = statistics.median(ratios) if ratios else None
    return out


def show(rows: list[dict[str, Any]], names: list[str]) -> None:
    """As it stands in docs/performance.md."""
    head = ["", "batch", "clients", "messages/s", "p50 ms", "p99 ms", "load"]
    for name in names:
        head += [f"{name}/s", "p50 ms", "p99 ms", f"of {name}"]
    print("| " + " | ".join(head) + " |\n| --- |" + " ---: |" * (len(head) - 1))
    for one in rows:
        ours = one[OURS]
        shown = [one["operation"], str(one["batch"]), str(one["clients"]), f"{ours['per_s']:,.0f}"]
        shown += [f"{ours['p50_ms']:.2f}", f"{ours['p99_ms']:.2f}", f"{ours['load']:.2f}"]
        for other in (one[name] for name in names):
            shown += [f"{other['per_s']:,.0f}", f"{other['p50_ms']:.2f}", f"{other['p99_ms']:.2f}"]
            shown.append("" if other["ratio"] is None else f"{other['ratio']:.2f}")
        print("| " + " | ".join(shown) + " |")


def numbers(text: str) -> list[int]:
    return [int(one) for one in text.split(",") if one]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--interface", choices=tuple(BATCHES), action="append", help="default: both")
    parser.add_argument("--quick", action="store_true", help="one short round, to see that all of it runs")
    parser.add_argument("--mode", choices=("sync", "interval", "os"), default="sync", help="of Penstock")
    parser.add_argument("--clients", type=numbers, default=[1, 10, 50])
    parser.add_argument("--batches", type=numbers, default=[], help="of those that there are, these alone")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
    parser.add_argument("--elasticmq", type=Path, help="a folder that keeps ElasticMQ between runs")
    parser.add_argument("--json", type=Path, help="write the results there too")
    options = parser.parse_args()
    options.interface = options.interface or tuple(BATCHES)
    if options.quick:
        options.rounds, options.seconds = 1, 0.5
    # Ended from outside, it ends what it has started.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    loads, begun_s = [os.getloadavg()[0]], time.monotonic()
    print(f"{machine()}, mode {options.mode}; load average before: {loads[0]:.1f}", flush=True)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        found = open_all(stack, Path(folder), options)
        rows = measure(found, options)
        for interface, runners in found.items():
            print(f"\n{interface}, medians of {options.rounds} rounds of {options.seconds:g} s\n")
            show([one for one in rows if one["interface"] == interface], list(runners)[1:])
    loads.append(os.getloadavg()[0])
    print(f"\nload average after: {loads[1]:.1f}; {time.monotonic() - begun_s:.0f} s in all")
    if options.json:
        results = {"machine": machine(), "mode": options.mode, "load_averages": loads, "cells": rows}
        options.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
