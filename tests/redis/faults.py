"""Faults while producers and workers are at it, each of them counted: what was promised and is missing.

Another kind of store joins by a line in `TARGETS`.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import penstock
from penstock.testing.folding import prove_journal
from tests.redis.one_server import started
from tests.redis.proxy import Proxy
from tests.redis.servers import RunningServer, wait_until

ROOT = Path(__file__).resolve().parents[2]
WORKERS, PRODUCERS = 2, 1
LEASE_S = 2.0
PAUSED_S = 10.0
#: So many messages are handled between two faults: they are at work, however slow the machine is.
HANDLED_BETWEEN = 40
PATIENCE_S = 120.0


class Target(NamedTuple):
    """What is tested: a kind of store on a kind of server."""

    flavour: str
    kind: str = "lists"

    def __str__(self) -> str:
        return f"{self.flavour}+{self.kind}"


TARGETS = [Target("redis", "lists"), Target("redis", "streams")]


class Result(NamedTuple):
    """`missing` were acknowledged, and neither handled nor found; `told` are errors that callers had."""

    target: str
    fault: str
    rounds: int
    acknowledged: int
    missing: int
    duplicates: int
    told: int

    def row(self) -> str:
        return f"| {' | '.join(f'{value:,}' if isinstance(value, int) else value for value in self)} |"


class Scene:
    """A server, a proxy before it, and the processes that work through it."""

    def __init__(self, target: Target, folder: Path, seed: int) -> None:
        self.rng = random.Random(seed)
        self.pause = threading.Event()
        self.server: RunningServer = started(folder / "server", target.flavour)
        self.proxy = Proxy(self.server.port)
        self._folder = folder
        self._number = 0
        self.url = self.server.url(target.kind).replace(f":{self.server.port}/", f":{self.proxy.port}/")
        self.workers: list[subprocess.Popen[bytes]] = []
        self.producers: list[subprocess.Popen[bytes]] = []
        try:
            with penstock.open(self.url) as ps:
                ps.create_queue("q", max_attempts=1000, lease_s=LEASE_S)
            for _ in range(WORKERS):
                self.hire()
            for _ in range(PRODUCERS):
                self.producers.append(self._start("produce"))
        except BaseException:
            self.close()
            raise

    def hire(self) -> None:
        self.workers.append(self._start("work"))

    def _start(self, what: str) -> subprocess.Popen[bytes]:
        self._number += 1
        command = [sys.executable, "-m", "tests.redis.working", what, self.url]
        said, told = (self._folder / f"{name}-{self._number}" for name in ("said", "told"))
        with said.open("wb") as out, told.open("wb") as err:
            return subprocess.Popen(command, stdout=out, stderr=err, cwd=ROOT)

    def said(self) -> dict[str, Counter[str]]:
        """What by mark; a line that was cut short was never said."""
        out: dict[str, Counter[str]] = {mark: Counter() for mark in "+=!"}
        for file in self._folder.glob("said-*"):
            for line in file.read_text().splitlines(keepends=True):
                if line.endswith("\n"):
                    out[line[0]][line[2:-1]] += 1
        return out

    def told(self) -> str:
        """What workers logged."""
        return "".join(file.read_text() for file in sorted(self._folder.glob("told-*")))

    def go_on(self) -> None:
        """Until so many more were handled, by those who are there."""
        goal = self.said()["="].total() + HANDLED_BETWEEN
        at_work = wait_until(lambda: self.said()["="].total() >= goal, PATIENCE_S)
        assert at_work, f"nobody works any more:\n{self.told()[-2000:]}"

    def drain(self) -> None:
        """No more is enqueued; the workers that there are have to come to the end by themselves."""
        for process in self.producers:
            process.send_signal(signal.SIGKILL)
            process.wait(20)
        self.producers.clear()
        with penstock.open(self.server_url) as ps:
            done = wait_until(
                lambda: not ps.queue("q").length() and not ps.queue("q").stats().leased, PATIENCE_S
            )
        assert done, f"the workers do not come to the end:\n{self.told()[-2000:]}"

    @property
    def server_url(self) -> str:
        return self.url.replace(f":{self.proxy.port}/", f":{self.server.port}/")

    def close(self) -> None:
        for process in (*self.workers, *self.producers):
            process.kill()
            process.wait(20)
        self.proxy.close()
        self.server.resume_and_kill()


def kill_worker(scene: Scene) -> None:
    victim = scene.workers.pop(0)
    os.kill(victim.pid, signal.SIGKILL)
    victim.wait(20)
    scene.hire()


def kill_server(scene: Scene) -> None:
    scene.server.kill()
    scene.pause.wait(0.5 * scene.rng.random())
    scene.server.start()


def keep_server_away(scene: Scene) -> None:
    """For longer than calls are tried: they fail, and the breaker opens."""
    scene.server.kill()
    scene.pause.wait(4)
    scene.server.start()


def cut_mid_reply(scene: Scene) -> None:
    for _ in range(20):
        scene.proxy.cut_after(scene.rng.randrange(200))
        scene.pause.wait(0.02)


def cut_all(scene: Scene) -> None:
    scene.proxy.refuse()
    scene.proxy.cut()
    scene.pause.wait(2)
    scene.proxy.refuse(False)


def pause_server(scene: Scene) -> None:
    scene.server.pause()
    scene.pause.wait(PAUSED_S)
    scene.server.resume()


def fill_memory(scene: Scene) -> None:
    scene.server.do("CONFIG", "SET", "maxmemory", 1)
    scene.pause.wait(1)
    scene.server.do("CONFIG", "SET", "maxmemory", 0)


#: fault -> what is done in each round, and rounds in a run of the tests
FAULTS: dict[str, tuple[Callable[[Scene], None], int]] = {
    "worker killed -9": (kill_worker, 3),
    "server killed -9, back at once, with its log": (kill_server, 3),
    "server killed -9, away for 4 s": (keep_server_away, 1),
    "connections cut in the middle of 20 replies": (cut_mid_reply, 3),
    "all connections cut, none for 2 s": (cut_all, 1),
    "server paused for 10 s": (pause_server, 1),
    "server without memory for 1 s": (fill_memory, 1),
}


def run_fault(target: Target, fault: str, rounds: int, folder: Path, seed: int = 1) -> Result:
    """The fault again and again while they work; then they come to the end, and everything is proved."""
    scene = Scene(target, folder, seed)
    happens = FAULTS[fault][0]
    try:
        scene.go_on()
        for _ in range(rounds):
            happens(scene)
            scene.go_on()
        scene.drain()
        said = scene.said()
        acknowledged, handled = said["+"].keys(), said["="]
        with penstock.open(scene.server_url) as ps:
            there = {message.id for message in ps.queue("q").iter()}
            report = ps.check()
            assert report.ok, report.problems
            prove_journal(ps.queue("q"))
        duplicates = handled.total() - len(handled)
        missing = acknowledged - handled.keys() - there
        return Result(
            str(target), fault, rounds, len(acknowledged), len(missing), duplicates, said["!"].total()
        )
    finally:
        scene.close()
