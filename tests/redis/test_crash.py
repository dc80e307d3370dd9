"""Consumers and the server are killed -9 in the middle of their work: nothing acknowledged is missing."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from penstock.testing.background import wait_until
from penstock.testing.folding import prove_journal
from tests.redis.one_server import started
from tests.redis.servers import RunningServer

ROOT = Path(__file__).resolve().parents[2]
CONSUMERS = 3
ROUNDS = 4


class Crew:
    """Processes at work, and everything that they were promised."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self._folder = folder
        self._started = 0
        self.running: list[subprocess.Popen[bytes]] = []

    def hire(self) -> None:
        self._started += 1
        out = (self._folder / f"said-{self._started}").open("wb")
        command = [sys.executable, str(ROOT / "tests/redis/crashing.py"), self.url, str(self._started)]
        with out:
            self.running.append(subprocess.Popen(command, stdout=out, cwd=ROOT))

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        process.kill()
        process.wait(20)
        self.running.remove(process)

    def said(self) -> dict[str, Counter[str]]:
        """Ids by what was said of them; a line that was cut short was never said."""
        out: dict[str, Counter[str]] = {what: Counter() for what in "+?-!"}
        for file in self._folder.glob("said-*"):
            for line in file.read_text().splitlines(keepends=True):
                if line.endswith("\n"):
                    out[line[0]][line[2:-1]] += 1
        return out

    def wait_for(self, acks: int) -> None:
        """Until so many more were acked: however slow the machine, they are at work."""
        goal = len(self.said()["-"]) + acks
        wait_until(lambda: len(self.said()["-"]) >= goal)


@pytest.fixture(params=["lists", "streams"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    server = started(tmp_path)
    yield server
    server.kill()


@pytest.fixture
def crew(server: RunningServer, tmp_path: Path, kind: str) -> Iterator[Crew]:
    crew = Crew(server.url(kind), tmp_path)
    yield crew
    for process in list(crew.running):
        crew.kill(process)


def prove(crew: Crew) -> None:
    """Whatever was acknowledged is there, or was acked; and the store is whole."""
    said = crew.said()
    assert not said["!"], said["!"]
    assert len(said["-"]) > 50, "hardly anything was done"
    with penstock.open(crew.url) as ps:
        q = ps.queue("q")
        there = {message.id for message in q.iter()}
        missing = said["+"].keys() - there - said["?"].keys()
        assert missing == set(), f"{len(missing)} acknowledged and missing"
        back = {one for one in there if one in said["-"]}
        assert back == set(), f"{len(back)} acked and back again"
        twice = [one for one, count in said["-"].items() if count > 1]
        assert twice == [], f"{len(twice)} acked twice"
        report = ps.check()
        assert report.ok, report.problems
        # Leases of the killed that end between two looks would make these differ.
        ended = threading.Event()
        while q.stats().leased:
            ended.wait(0.05)
        prove_journal(q)


def test_consumers_that_are_killed_lose_nothing(crew: Crew) -> None:
    with penstock.open(crew.url) as ps:
        ps.create_queue("q", max_attempts=1000)
    rng, pause = random.Random(1), threading.Event()
    for _ in range(CONSUMERS):
        crew.hire()
    for _ in range(ROUNDS):
        crew.wait_for(acks=50)
        pause.wait(0.2 * rng.random())
        crew.kill(crew.running[0])
        crew.hire()
    crew.wait_for(acks=50)
    for process in list(crew.running):
        crew.kill(process)
    prove(crew)


def test_a_server_that_is_killed_and_comes_back_lost_nothing(crew: Crew, server: RunningServer) -> None:
    with penstock.open(crew.url) as ps:
        ps.create_queue("q", max_attempts=1000)
        assert ps.info().default.durability == "sync"
    rng, pause = random.Random(2), threading.Event()
    for _ in range(CONSUMERS):
        crew.hire()
    for _ in range(ROUNDS):
        crew.wait_for(acks=50)
        pause.wait(0.2 * rng.random())
        server.kill()
        pause.wait(0.1)
        server.start()
    crew.wait_for(acks=50)
    for process in list(crew.running):
        crew.kill(process)
    prove(crew)
