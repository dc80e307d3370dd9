"""A Celery app whose broker is the server: a sender and two workers, each a process of its own."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import penstock
from tests.cli.calling import Cli
from tests.docs.pages import ROOT
from tests.redis.servers import wait_until
from tests.server.clients.served import ACCESS_KEY, SECRET, environment, signed_server
from tests.server.processes import TIMEOUT_S

MODULE = "tests.server.clients.celery_app"
SENDER = "tests.server.clients.celery_sender"
TASKS = 200
COUNTDOWN_S = 2
#: How long a task that is acknowledged late is kept for the worker that has it.
VISIBILITY_S = 3


class Shop:
    """The app, run by processes that share a folder of results."""

    def __init__(self, folder: Path, url: str) -> None:
        self.results = folder / "results"
        self.results.mkdir()
        self._said = folder / "said"
        broker = f"sqs://{ACCESS_KEY}:{SECRET}@{url.removeprefix('http://')}"
        self._environ = environment(RESULTS=str(self.results), BROKER=broker)

    def send(self, *what: str) -> None:
        command = [sys.executable, "-m", SENDER, *what]
        done = subprocess.run(
            command, cwd=ROOT, env=self._environ, capture_output=True, timeout=TIMEOUT_S, check=False
        )
        assert done.returncode == 0, done.stderr.decode()

    @contextmanager
    def worker(self, name: str) -> Iterator[subprocess.Popen[bytes]]:
        command = [sys.executable, "-m", "celery", "-A", MODULE, "worker", "--pool", "solo", "-n", name]
        command += ["-Q", "work,late", "--without-gossip", "--without-mingle", "--without-heartbeat"]
        with self._said.open("ab") as sink:
            process = subprocess.Popen(
                [*command, "--loglevel", "INFO"], cwd=ROOT, env=self._environ, stdout=sink, stderr=sink
            )
        try:
            yield process
        finally:
            process.kill()
            process.wait(TIMEOUT_S)

    def noted(self, name: str) -> list[tuple[int, float]]:
        """Process and moment of each time that it was done."""
        found = []
        for path in self.results.glob(f"{name}.*.done"):
            pid, at_s = path.read_text().split()
            found.append((int(pid), float(at_s)))
        return sorted(found, key=lambda one: one[1])

    def waits_for(self, name: str, times: int = 1) -> None:
        assert wait_until(lambda: len(self.noted(name)) >= times, TIMEOUT_S), self._said.read_text()[-4000:]


def test_each_task_is_done_once_and_one_whose_worker_is_killed_by_the_other(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "penstock-data") as ps:
        ps.create_queue("late", lease_s=VISIBILITY_S)
    with signed_server(tmp_path) as server:
        shop = Shop(tmp_path, server.url)
        with shop.worker("one") as one, shop.worker("two") as two:
            shop.waits_for("ready", 2)
            shop.send("many", str(TASKS))
            shop.waits_for("short-*", TASKS)
            shop.waits_for("try-2")
            shop.waits_for("later")
            _check_tasks(shop, {one.pid, two.pid})
            _check_times(shop)

            shop.send("one-long")
            shop.waits_for("begun")
            [(busy, _)] = shop.noted("begun")
            killed, other = (one, two) if busy == one.pid else (two, one)
            killed.kill()
            shop.waits_for("ended")
            assert [pid for pid, _ in shop.noted("ended")] == [other.pid]
            assert [pid for pid, _ in shop.noted("begun")] == [killed.pid, other.pid]
            # Done too late, it is acknowledged all the same: nobody else has had it.
            shop.send("one-slow", str(VISIBILITY_S + 1))
            shop.waits_for("slow")
            other.send_signal(signal.SIGTERM)
            assert other.wait(TIMEOUT_S) == 0
        _check_tasks(shop, {one.pid, two.pid})
        assert server.stop() == 0
        assert "Traceback" not in server.errors
    with penstock.open(tmp_path / "penstock-data") as ps:
        left = {queue.name: ps.queue(queue.name).stats() for queue in ps.queues()}
        assert {queue: (one.ready, one.leased, one.delayed, one.dead) for queue, one in left.items()} == {
            "work": (0, 0, 0, 0),
            "late": (0, 0, 0, 0),
        }
    assert Cli(tmp_path).process("check").code == 0


def _check_tasks(shop: Shop, workers: set[int]) -> None:
    """Each once, and both of them at work."""
    done = [shop.noted(f"short-{number}") for number in range(TASKS)]
    assert [len(times) for times in done] == [1] * TASKS
    assert {times[0][0] for times in done} == workers


def _check_times(shop: Shop) -> None:
    """Countdowns are counted from when the task was sent, or failed."""
    [(_, sent_s)], [(_, later_s)] = shop.noted("sent"), shop.noted("later")
    assert later_s - sent_s >= COUNTDOWN_S - 0.1
    tries = [shop.noted(f"try-{number}") for number in range(3)]
    assert [len(times) for times in tries] == [1, 1, 1]
    moments = [times[0][1] for times in tries]
    assert all(after - before >= 0.9 for before, after in pairwise(moments))
