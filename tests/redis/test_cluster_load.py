"""Under load, clients and masters of a cluster are killed and slots move: nothing acknowledged is missing."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis.crc import key_slot

import penstock
from penstock.clock import ManualClock, SystemClock
from penstock.testing.folding import prove_journal
from penstock.testing.harness import sweep_all
from tests.redis.servers import HOST, RunningCluster, RunningServer, running_cluster, wait_until

pytestmark = pytest.mark.xdist_group("redis-lists-cluster")

ROOT = Path(__file__).resolve().parents[2]
WORKERS = 3
QUEUES = ("dead", "spare", "work")
HOUR_NS = 3600 * 10**9


class Crew:
    """Processes at work, and everything that they were promised."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self._folder = folder
        self._started = 0
        self.running: list[subprocess.Popen[bytes]] = []

    def hire(self) -> None:
        self._started += 1
        command = [sys.executable, str(ROOT / "tests/redis/roaming.py"), self.url, str(self._started)]
        with (self._folder / f"said-{self._started}").open("wb") as out:
            self.running.append(subprocess.Popen(command, stdout=out, cwd=ROOT))

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        process.kill()
        process.wait(20)
        self.running.remove(process)

    def said(self) -> dict[str, Counter[str]]:
        """Ids by what was said of them; a line that was cut short was never said."""
        out: dict[str, Counter[str]] = {what: Counter() for what in "+?-!*"}
        for file in self._folder.glob("said-*"):
            for line in file.read_text().splitlines(keepends=True):
                if line.endswith("\n"):
                    out[line[0]][line[2:-1]] += 1
        return out

    def wait_for(self, acks: int) -> None:
        """Until so many more were acked: however slow the machine, they are at work."""
        goal = len(self.said()["-"]) + acks
        assert wait_until(lambda: len(self.said()["-"]) >= goal or self.said()["!"], 90), self.said()["*"]

    def end(self) -> None:
        for process in list(self.running):
            self.kill(process)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RunningCluster]:
    with running_cluster(tmp_path / "cluster") as cluster:
        yield cluster


@pytest.fixture(params=["lists", pytest.param("streams", marks=pytest.mark.soak)])
def crew(request: pytest.FixtureRequest, cluster: RunningCluster, tmp_path: Path) -> Iterator[Crew]:
    url = f"{cluster.url(request.param)}&min_replicas=1"
    with penstock.open(url) as ps:
        ps.create_queue("dead")
        ps.create_queue("spare")
        ps.create_queue("work", dead_letter="dead", max_attempts=1000)
    crew = Crew(url, tmp_path)
    for _ in range(WORKERS):
        crew.hire()
    crew.wait_for(acks=30)
    yield crew
    crew.end()


def prove(crew: Crew) -> dict[str, int]:
    """What was acknowledged is in exactly one queue, or was acked; acked ones are gone. Counts the rest."""
    crew.end()
    said = crew.said()
    assert not said["!"], said["!"]
    # So much later that every lease has ended, and nobody goes on with a transfer by himself.
    clock = ManualClock(SystemClock().now_ns() + HOUR_NS)
    with penstock.open(crew.url, clock=clock) as ps:
        sweep_all(ps)
        there = Counter(message.id for name in QUEUES for message in ps.queue(name).iter())
        report = ps.check()
        assert report.ok, report.problems
        for name in QUEUES:
            prove_journal(ps.queue(name))
    missing = said["+"].keys() - there.keys() - said["?"].keys()
    assert missing == set(), f"{len(missing)} acknowledged and missing"
    doubled = [one for one, count in there.items() if count > 1]
    assert doubled == [], f"{len(doubled)} in two queues"
    back = there.keys() & said["-"].keys()
    assert back == set(), f"{len(back)} acked and back again"
    twice = [one for one, count in said["-"].items() if count > 1]
    assert twice == [], f"{len(twice)} acked twice"
    counted = {
        "enqueued": len(said["+"]),
        "acked": len(said["-"]),
        "finished twice": sum(count > 1 for count in said["?"].values()),
        "let down": sum(said["*"].values()),
    }
    sys.stdout.write(f"{counted}\n")  # Shown by -rP.
    return counted


def slot_of(queue: str) -> int:
    """Of lists as of streams: what counts is in braces."""
    return int(key_slot(f"penstock:ps1:{{{queue}}}:c".encode()))


def test_queues_lie_on_several_masters() -> None:
    assert len({slot_of(queue) * 3 // 16384 for queue in (*QUEUES, "~")}) == 3


def test_clients_that_are_killed_lose_and_double_nothing(crew: Crew) -> None:
    rng, pause = random.Random(1), threading.Event()
    for _ in range(6):
        pause.wait(0.3 * rng.random())
        crew.kill(crew.running[0])
        crew.hire()
        crew.wait_for(acks=10)
    prove(crew)


def is_master(server: RunningServer) -> bool:
    return bool(server.do("ROLE")[0] == b"master")


def test_a_master_that_is_killed_takes_nothing_with_it_that_a_replica_has_confirmed(
    crew: Crew, cluster: RunningCluster
) -> None:
    """Each in turn: of the store, of the work, of the dead letters. Without logs, what it had is gone."""
    for master, replica in zip(cluster.masters, cluster.replicas, strict=True):
        crew.wait_for(acks=20)
        master.kill()
        assert wait_until(lambda: is_master(replica), 30)  # noqa: B023  (called at once)
        master.start()  # As a replica: else nobody would confirm.
        assert wait_until(lambda: all_follow(cluster), 30)
        crew.wait_for(acks=20)
    assert prove(crew)["let down"] > 0


def all_follow(cluster: RunningCluster) -> bool:
    """Whether every master has a replica again, whichever of them is what by now."""
    roles = [server.do("ROLE") for server in cluster.servers]
    following = [role for role in roles if role[0] == b"slave" and role[3] == b"connected"]
    return len(following) == len(cluster.replicas)


def reshard(
    cluster: RunningCluster, slot: int, source: RunningServer, target: RunningServer, pause_s: float
) -> None:
    """As an operator's tool does it; half way, a pause."""
    source_id, target_id = source.do("CLUSTER", "MYID"), target.do("CLUSTER", "MYID")
    target.do("CLUSTER", "SETSLOT", slot, "IMPORTING", source_id)
    source.do("CLUSTER", "SETSLOT", slot, "MIGRATING", target_id)
    while keys := source.do("CLUSTER", "GETKEYSINSLOT", slot, 3):
        source.do("MIGRATE", HOST, target.port, "", 0, 5000, "KEYS", *keys)
        threading.Event().wait(pause_s)
        pause_s = 0
    for server in (target, source, *(one for one in cluster.masters if one not in (source, target))):
        server.do("CLUSTER", "SETSLOT", slot, "NODE", target_id)


def test_slots_that_move_under_load_take_everything_along(crew: Crew, cluster: RunningCluster) -> None:
    for queue in (*QUEUES, "~"):
        slot = slot_of(queue)
        at = min(slot * 3 // 16384, 2)
        for step in (0, 1, 2):  # Round all masters, and home.
            crew.wait_for(acks=5)
            source, target = (cluster.masters[(at + n) % 3] for n in (step, step + 1))
            reshard(cluster, slot, source, target, pause_s=2 if queue == "work" else 0)
    crew.wait_for(acks=20)
    assert prove(crew)["let down"] == 0, "calls wait until a slot has moved"
