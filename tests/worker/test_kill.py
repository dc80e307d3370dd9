"""Workers and their processes are killed under load: every message is handled, and none is lost."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections import Counter
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

import penstock
from penstock import NewMessage, Penstock, Worker
from penstock.testing.background import wait_until
from tests.worker.conftest import in_mode
from tests.worker.handlers import digest, notes
from tests.worker.rig import Program, lives

LEASE_S = 1.0
#: Nobody dies of being interrupted: what is dead in the end would be a message that was given up.
MAX_ATTEMPTS = 1000


class Oracle:
    """What was enqueued, against what handlers noted and what the store says."""

    def __init__(self, store: Path, log: Path, messages: int) -> None:
        self.store, self.log = store, log
        with penstock.open(store) as ps:
            q = ps.create_queue("q", lease_s=LEASE_S, max_attempts=MAX_ATTEMPTS)
            results = q.enqueue_many(
                [NewMessage(b"x" * 200, headers={"log": str(log)}) for _ in range(messages)]
            )
        self.ids = {result.id for result in results}

    def handled(self) -> Counter[str]:
        return Counter(line.split()[1] for line in notes(self.log))

    def wait_handled(self, count: float) -> None:
        wait_until(lambda: self.log.exists() and self.log.read_bytes().count(b"\n") > count)

    def pids(self) -> set[int]:
        return {int(line.split()[3]) for line in notes(self.log)}

    def finish(self, mode: str) -> None:
        """A worker that nobody kills does the rest."""
        with penstock.open(self.store) as ps:
            worker = Worker(ps, "q", concurrency=2, **in_mode(mode, digest))
            with worker:
                wait_until(lambda: ps.queue("q").length() == 0)
            self.judge(ps)

    def judge(self, ps: Penstock) -> None:
        stats = ps.queue("q").stats()
        assert (stats.delayed, stats.ready, stats.leased, stats.dead) == (0, 0, 0, 0)
        assert stats.acked_total == len(self.ids)
        assert set(self.handled()) == self.ids, "a message was acked that no handler had"
        report = ps.check()
        assert report.ok, report.problems


def kill_workers(mode: str, seed: int, rounds: int, messages: int, tmp_path: Path, log: Path) -> None:
    rng = random.Random(seed)
    oracle = Oracle(tmp_path / "store", log, messages)
    for turn in range(rounds):
        with Program(oracle.store, handler="digest", mode=mode, concurrency=4) as program:
            oracle.wait_handled((turn + rng.random()) * messages / rounds)
            program.kill()
        # Handlers end with their worker: nobody would renew their leases.
        wait_until(lambda: not any(lives(pid) for pid in oracle.pids()))
    oracle.finish(mode)


@pytest.mark.parametrize("mode", ["threads", "processes", "asyncio"])
def test_a_worker_that_is_killed_loses_nothing(mode: str, tmp_path: Path, log: Path) -> None:
    kill_workers(mode, 1, 3, 1500, tmp_path, log)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("mode", ["threads", "processes", "asyncio"])
def test_workers_that_are_killed_again_and_again_lose_nothing(
    mode: str, seed: int, tmp_path: Path, log: Path
) -> None:
    kill_workers(mode, seed, 10, 5000, tmp_path, log)


def test_what_a_killed_worker_had_is_delivered_again_after_its_lease(tmp_path: Path, log: Path) -> None:
    from tests.worker.handlers import order

    store = tmp_path / "store"
    with penstock.open(store) as ps:
        message_id = ps.create_queue("q", lease_s=LEASE_S).enqueue(order(do="sleep", for_s=600, log=log))
    with Program(store, handler="obey", mode="processes") as program:
        wait_until(lambda: len(notes(log)) == 1)
        program.kill()
    with penstock.open(store) as ps:
        (again,) = ps.queue("q").lease(wait_s=30)
        assert (again.id, again.attempts) == (message_id, 2)


def kill_owners(mode: str, seed: int, rounds: int, messages: int, tmp_path: Path, log: Path) -> None:
    """Two workers on one folder. Whenever one is killed, the store may have lost its owner, too."""
    rng = random.Random(seed)
    oracle = Oracle(tmp_path / "store", log, messages)
    options = {"handler": "digest", "mode": mode, "concurrency": 2}
    with ExitStack() as ending:
        programs = [ending.enter_context(Program(oracle.store, **options)) for _ in range(2)]
        for turn in range(rounds):
            oracle.wait_handled((turn + rng.random()) * messages / rounds)
            victim = rng.randrange(2)
            programs[victim].kill()
            programs[victim] = ending.enter_context(Program(oracle.store, **options))
        for program in programs:
            program.kill()
    oracle.finish(mode)


@pytest.mark.parametrize("mode", ["threads", "processes"])
def test_workers_that_share_a_folder_lose_nothing_when_one_is_killed(
    mode: str, tmp_path: Path, log: Path
) -> None:
    kill_owners(mode, 1, 3, 3000, tmp_path, log)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("mode", ["threads", "processes"])
def test_workers_that_share_a_folder_lose_nothing_when_they_are_killed_in_turns(
    mode: str, seed: int, tmp_path: Path, log: Path
) -> None:
    kill_owners(mode, seed, 15, 30_000, tmp_path, log)


def kill_children(seed: int, kills: int, messages: int, tmp_path: Path, log: Path) -> None:
    rng = random.Random(seed)
    oracle = Oracle(tmp_path / "store", log, messages)
    killed: set[int] = set()
    with penstock.open(oracle.store) as ps:
        worker = Worker(ps, "q", "tests.worker.handlers:digest", mode="processes", concurrency=3)
        with worker:
            while ps.queue("q").length() and worker.stats.state == "running":
                threading.Event().wait(rng.uniform(0.001, 0.05))
                pids = [slot.pid for slot in worker.stats.slots if slot.doing == "running" and slot.pid]
                if pids and len(killed) < kills:
                    victim = rng.choice(pids)
                    with suppress(ProcessLookupError):
                        os.kill(victim, signal.SIGKILL)
                    killed.add(victim)  # Once, though it may be chosen again before its death is noticed.
        stats = worker.stats
        assert stats.succeeded == messages
        assert stats.lost == 0, "a message of a dead process went back before its lease ended"
        # One that dies with its answer on the line has done its work; one may die after the last message.
        assert len(killed) >= stats.replaced >= max(stats.failed, len(killed) - 3)
        oracle.judge(ps)


def test_worker_processes_that_are_killed_under_load_lose_nothing(tmp_path: Path, log: Path) -> None:
    kill_children(1, 8, 3000, tmp_path, log)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(3))
def test_worker_processes_that_are_killed_again_and_again_lose_nothing(
    seed: int, tmp_path: Path, log: Path
) -> None:
    kill_children(seed, 100, 20_000, tmp_path, log)
