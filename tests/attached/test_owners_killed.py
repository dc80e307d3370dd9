"""Ten processes work on one folder while its owner is killed again and again: every call happens once."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import penstock
from penstock.event import Kind
from tests.attached.child import QUEUE

ROOT = Path(__file__).parents[2]
PROCESSES = 10


@dataclass
class Told:
    """What the children were told, from their logs."""

    begun: set[str] = field(default_factory=set)
    enqueued: dict[str, str] = field(default_factory=dict)
    deliveries: Counter[tuple[str, str]] = field(default_factory=Counter)
    acked: Counter[str] = field(default_factory=Counter)
    failed: list[str] = field(default_factory=list)


def read_logs(folder: Path) -> Told:
    told = Told()
    for path in sorted(folder.glob("*.log")):
        for line in path.read_text().splitlines():
            what, *rest = line.split(" ")
            if what == "enqueueing":
                told.begun.update(rest)
            elif what == "enqueued":
                told.enqueued[rest[0]] = rest[1]
            elif what == "leased":
                told.deliveries[rest[1], rest[2]] += 1
            elif what == "acked":
                told.acked[rest[0]] += 1
            elif what == "failed":
                told.failed.append(" ".join(rest))
    return told


class Crowd:
    """The processes. One that is killed is replaced."""

    def __init__(self, store: Path, logs: Path, seed: int) -> None:
        self._store, self._logs, self._seed = store, logs, seed
        self._started = 0
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        logs.mkdir()

    def fill(self) -> None:
        while len(self._processes) < PROCESSES:
            name = f"c{self._started}"
            log = self._logs / f"{name}.log"
            arguments = [str(self._store), str(log), name, str(self._seed * 1000 + self._started)]
            with (self._logs / f"{name}.err").open("wb") as err:
                process = subprocess.Popen(
                    [sys.executable, "-m", "tests.attached.child", *arguments], cwd=ROOT, stderr=err
                )
            self._processes[process.pid] = process
            self._started += 1

    def owner(self) -> int | None:
        try:
            pid = int((self._store / "OWNER").read_text())
        except (OSError, ValueError):
            return None
        return pid if pid in self._processes else None

    def kill_owner(self) -> bool:
        pid = self.owner()
        if pid is None:
            return False
        process = self._processes.pop(pid)
        process.kill()
        process.wait()
        return True

    def end(self) -> None:
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            process.wait()

    def died_alone(self) -> list[str]:
        ended = [p for p in self._processes.values() if p.poll() not in (None, -signal.SIGKILL)]
        errors = [path.read_text() for path in sorted(self._logs.glob("*.err"))]
        return [f"{len(ended)} ended by themselves", *(text for text in errors if text)] if ended else []


@pytest.mark.parametrize(
    ("seed", "kills"), [(1, 6), pytest.param(101, 60, marks=pytest.mark.soak)], ids=["short", "a minute"]
)
def test_every_call_happens_once_while_owners_are_killed(
    seed: int, kills: int, tmp_path: Path, record_property: object
) -> None:
    store, pause = tmp_path / "store", threading.Event()
    with penstock.open(store) as ps:
        ps.create_queue(QUEUE, max_attempts=1000)
    crowd = Crowd(store, tmp_path / "logs", seed)
    killed = 0
    try:
        crowd.fill()
        pause.wait(2.0)
        for _ in range(kills * 3):
            pause.wait(1.0)
            alone = crowd.died_alone()
            assert not alone, alone
            killed += crowd.kill_owner()
            crowd.fill()
            if killed == kills:
                break
        pause.wait(1.0)
        alone = crowd.died_alone()
        assert not alone, alone
    finally:
        crowd.end()
    assert killed == kills
    told = read_logs(tmp_path / "logs")
    with penstock.open(store) as ps:
        assert ps.info().default.attached_to is None
        report = ps.check()
        assert report.ok, report.problems
        q = ps.queue(QUEUE)
        stored = Counter(m.payload.decode() for m in q.iter())
        events = list(journal(q))
    judge(told, stored, events)
    print(f"{killed} owners killed, {len(told.enqueued)} enqueued, {sum(told.acked.values())} acked")  # noqa: T201


def journal(q: penstock.Queue) -> list[penstock.Event]:
    found: list[penstock.Event] = []
    while page := q.events(found[-1].seq if found else 0, 10_000):
        found += page
    return found


def judge(told: Told, stored: Counter[str], events: list[penstock.Event]) -> None:
    # Leases are long: whoever was handed a message can ack it, whichever owner it asks.
    assert told.failed == []
    # Nothing that was acknowledged is missing, and nothing acked is there.
    missing = [text for text in told.enqueued if text not in told.acked and text not in stored]
    acked_ids = {event.message_id for event in events if event.kind == Kind.ACKED}
    assert [text for text in missing if told.enqueued[text] not in acked_ids] == []
    assert [text for text in told.acked if stored[text]] == []
    # Each call happened once: no text was stored under two ids, none was acked twice.
    assert [text for text, count in stored.items() if count > 1] == []
    assert [text for text, count in told.acked.items() if count > 1] == []
    enqueued = Counter(event.message_id for event in events if event.kind == Kind.ENQUEUED)
    assert [one for one, count in enqueued.items() if count > 1] == []
    assert len(told.enqueued) <= len(enqueued) <= len(told.begun)
    # No lease was handed to two consumers.
    assert [one for one, count in told.deliveries.items() if count > 1] == []
    # And they did work.
    assert len(told.acked) > 10
