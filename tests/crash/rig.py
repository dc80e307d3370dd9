"""The parent's side: starts children, kills them, reopens what they leave, and asks the oracle."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Any

import msgspec
import pytest

import penstock
from tests.crash.child import ENDED, Order
from tests.crash.clocks import now_clock
from tests.crash.oracle import Oracle
from tests.crash.probe import Answer, ProbeOrder, read_answer
from tests.crash.record import read_log
from tests.crash.system import System
from tests.crash.truth import Truth, read_truth

ROOT = Path(__file__).parents[2]
SEED_VARIABLE = "PENSTOCK_CRASH_SEED"
#: For a child that hangs: no step of these suites takes nearly as long.
PATIENCE_S = 60.0
#: An engine that hangs in a probe is told from a machine that is busy.
PROBE_PATIENCE_S = 40.0
SHOWN = 12
#: Where a killed owner listened: not to be copied along with its store.
NO_SOCKET = shutil.ignore_patterns("penstock.sock")


def seeds(first: int, count: int) -> Sequence[int]:
    """The seeds of a test: its own, or the one to replay."""
    replayed = os.environ.get(SEED_VARIABLE)
    return [int(replayed)] if replayed else range(first, first + count)


def campaigns(*, short: tuple[int, int], soak: tuple[int, int]) -> list[Any]:
    """`seed, rounds` of a test: short campaigns every time, long ones in a soak; (how many, rounds) each."""
    return [
        *(pytest.param(seed, short[1]) for seed in seeds(1, short[0])),
        *(pytest.param(seed, soak[1], marks=pytest.mark.soak) for seed in seeds(101, soak[0])),
    ]


class Zygote:
    """A warm process, and the one child that it has at a time."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.crash.zygote"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )
        self._buffer = b""
        #: A handle, not a number: a number may be another process by the time it is killed.
        self._child: int | None = None

    def __enter__(self) -> Zygote:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._kill_child()
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def run(self, order: Order | ProbeOrder, kill_after_s: float, *, once_open: bool) -> int:
        """Let a child work and kill it; its wait status. It may have killed itself before."""
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(order) + b"\n")
        seen = self._wait_for("started", "ended")
        if once_open and "ended" not in seen:
            seen |= self._wait_for("opened", "ended")
        deadline_s = time.perf_counter() + kill_after_s
        while "ended" not in seen and (left_s := deadline_s - time.perf_counter()) > 0:
            seen |= self._answers(left_s)
        if "ended" not in seen:
            self._kill_child()
            seen |= self._wait_for("ended")
        self._forget_child()
        return int(seen["ended"])

    def probe(self, order: ProbeOrder) -> Answer:
        """What became of a store in another process, which must end by itself."""
        status = self.run(order, PROBE_PATIENCE_S, once_open=False)
        assert status != signal.SIGKILL, f"{order.what} of {order.path} hangs"
        assert status == ENDED << 8, f"{order.what} of {order.path} crashed the interpreter: status {status}"
        return read_answer(order)

    def _wait_for(self, *words: str) -> dict[str, str]:
        deadline_s = time.perf_counter() + PATIENCE_S
        seen: dict[str, str] = {}
        while not any(word in seen for word in words):
            assert time.perf_counter() < deadline_s, f"the child is not {' or '.join(words)}"
            seen |= self._answers(1.0)
        return seen

    def _answers(self, timeout_s: float) -> dict[str, str]:
        """What the zygote has said since: word -> its number."""
        assert self._process.stdout is not None
        readable, _, _ = select.select([self._process.stdout], [], [], timeout_s)
        if readable:
            read = os.read(self._process.stdout.fileno(), 4096)
            assert read, "the zygote has ended"
            self._buffer += read
        *lines, self._buffer = self._buffer.split(b"\n")
        seen = {word: rest for word, _, rest in (line.decode().partition(" ") for line in lines)}
        if "started" in seen:
            with contextlib.suppress(ProcessLookupError):  # It has killed itself already.
                self._child = os.pidfd_open(int(seen["started"]))
        return seen

    def _kill_child(self) -> None:
        if self._child is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._child, signal.SIGKILL)
        self._forget_child()

    def _forget_child(self) -> None:
        if self._child is not None:
            os.close(self._child)
        self._child = None


@dataclass
class Campaign:
    """One seed's rounds on one store after the other."""

    seed: int
    folder: Path
    test: str
    rounds: int = 0
    stores: int = 0
    acknowledged: int = 0
    cut_short: Counter[str] = field(default_factory=Counter)
    reopening_s: list[float] = field(default_factory=list)
    oracle: Oracle = field(default_factory=Oracle)
    path: Path = field(init=False)

    def __post_init__(self) -> None:
        self.rng = Random(f"{self.test} {self.seed}")
        self.fresh_store()

    def fresh_store(self) -> None:
        """Leave the store that has grown, and start with none."""
        if self.stores:
            shutil.rmtree(self.path)
        self.count_what_was_told()
        self.stores += 1
        self.oracle = Oracle()
        self.path = self.folder / f"store-{self.stores}"

    def order(self, durability: str = "sync") -> Order:
        """The next round: most children are killed by a timer, some by themselves at a write or sync."""
        rng = self.rng
        self.rounds += 1
        logs = self.folder / f"logs-{self.rounds}"
        logs.mkdir()
        heavy = rng.random() < 0.15
        return msgspec.convert(
            {
                "path": str(self.path),
                "logs": str(logs),
                "seed": self.seed,
                "round": self.rounds,
                "durability": durability,
                # Heavy rounds fill memory tables: the log is switched and tables are written meanwhile.
                "mode": "low_space" if heavy else "high_throughput",
                "heavy": heavy,
                "kill_at_step": round(2 ** rng.uniform(0, 10)) if rng.random() < 0.4 else None,
                "kill_moment": rng.choice(["before", "after"]),
            },
            Order,
        )

    def kill(self, zygote: Zygote, order: Order, after_start_s: float | None = None) -> None:
        """Run the child until it is killed, somewhere, and let the oracle read what it wrote."""
        rng = self.rng
        if after_start_s is None and rng.random() < 0.1:
            after_start_s = rng.uniform(0, 0.1)  # While it opens the store, or soon after.
        kill_after_s = rng.uniform(0.01, 0.5) if after_start_s is None else after_start_s
        status = zygote.run(order, kill_after_s, once_open=after_start_s is None)
        logs = Path(order.logs)
        for file in sorted(logs.iterdir()):
            if file.name != "syncs":
                self.oracle.read(read_log(file))
        if status != signal.SIGKILL:
            self.oracle.complaints.append(f"the child ended by itself, with status {status}")

    def count_what_was_told(self) -> None:
        """Take the oracle's numbers over for the report."""
        self.acknowledged += self.oracle.acknowledged
        self.cut_short += self.oracle.cut_short
        self.oracle.acknowledged, self.oracle.cut_short = 0, Counter()

    def reopen(self, path: Path) -> System:
        started_s = time.perf_counter()
        system = penstock.open(path, clock=now_clock())
        self.reopening_s.append(time.perf_counter() - started_s)
        return system

    def read(self, path: Path) -> Truth:
        """What a store holds, reopened."""
        system = self.reopen(path)
        try:
            return read_truth(system)
        finally:
            system.close()

    def insist(self, complaints: Iterable[str], order: Order | None = None) -> None:
        """Fail with what was broken and how to see it again."""
        found = list(complaints)
        if found:
            more = f"\n  … and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
            raise AssertionError(
                f"seed {self.seed}, round {self.rounds}: {len(found)} broken promises\n  "
                + "\n  ".join(found[:SHOWN])
                + f"{more}\nround: {order}\nstore: {self.path}\nreplay: {SEED_VARIABLE}={self.seed} "
                f".venv/bin/pytest -m 'soak or not soak' tests/crash/{self.test}.py"
            )

    def report(self) -> str:
        """One line for the summary."""
        self.count_what_was_told()
        cut_short = ", ".join(f"{count} {op}" for op, count in self.cut_short.most_common())
        line = (
            f"{self.test} seed {self.seed}: {self.rounds} rounds, {self.stores} stores, "
            f"{self.acknowledged} calls acknowledged, {self.cut_short.total()} cut short ({cut_short})"
        )
        if not self.reopening_s:
            return line
        times_ms = sorted(round(seconds * 1000) for seconds in self.reopening_s)
        middle = times_ms[len(times_ms) // 2]
        return f"{line}; {len(times_ms)} reopenings, median {middle} ms, worst {times_ms[-1]} ms"


def sweep_all(system: System) -> None:
    """Until time and jobs have nothing left to do."""
    while system.sweep(1000):
        pass
