"""Jobs written one after the other by processes that are killed at random: each row is enqueued once."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from random import Random

import pytest

import penstock
from penstock import Txn
from penstock.backends.tables import jobs
from penstock.clock import SystemClock
from tests.bulk_write.campaigner import APP, ROWS

ROOT = Path(__file__).parents[2]
#: Until a process has answered its first job; generous, for a machine that has much else to do.
PATIENCE_S = 120.0


def run_and_kill(folder: Path, acknowledged: Path, rng: Random) -> None:
    """Let it answer a job, and some time more; then it dies, wherever it is."""
    before = acknowledged.read_text().count("\n")
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.bulk_write.campaigner", str(folder), str(acknowledged)], cwd=ROOT
    )
    try:
        until_ns = SystemClock().now_ns() + int(PATIENCE_S * 1e9)
        while acknowledged.read_text().count("\n") == before and SystemClock().now_ns() < until_ns:
            assert process.poll() is None, f"it ended by itself, with {process.returncode}"
            threading.Event().wait(0.01)
        threading.Event().wait(rng.uniform(0, 0.4))
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def ids_of(version: int) -> set[str]:
    """Those that follow from job, partition and row."""
    prefix = jobs.id_prefix(Txn(APP, version), 1)
    lows = (jobs.first_low(partition) + row for partition, rows in enumerate(ROWS) for row in range(rows))
    return {penstock.message.format_id(prefix + low.to_bytes(6, "big")) for low in lows}


def judge(folder: Path, versions: list[int]) -> None:
    with penstock.open(folder) as ps:
        assert ps.check().ok
        while ps.sweep():
            pass
        assert ps.check().ok
        q, after, counts = ps.queue("q"), 0, Counter[str]()
        while events := q.events(after=after, limit=10_000):
            counts.update(event.message_id for event in events if event.kind == "enqueued")
            after = events[-1].seq
        assert set(counts.values()) <= {1}
        last = versions[-1]
        assert versions == list(range(last + 1))
        for version in versions:
            assert ids_of(version) <= counts.keys()
        # The one that was under way when it was killed is there as a whole, or not at all.
        others = counts.keys() - set().union(*(ids_of(version) for version in versions))
        assert others in (set(), ids_of(last + 1))


def campaign(folder: Path, rounds: int, seed: int) -> None:
    rng, acknowledged = Random(seed), folder / "acknowledged"
    acknowledged.touch()
    with penstock.open(folder / "store") as ps:
        ps.create_queue("q", max_attempts=1000)
    for _ in range(rounds):
        run_and_kill(folder / "store", acknowledged, rng)
        versions = [int(line) for line in acknowledged.read_text().split()]
        judge(folder / "store", versions)


def test_each_row_is_enqueued_once_by_processes_that_are_killed(tmp_path: Path) -> None:
    campaign(tmp_path, 3, 7)


@pytest.mark.soak
def test_each_row_is_enqueued_once_by_many_processes_that_are_killed(tmp_path: Path) -> None:
    campaign(tmp_path, 40, 11)
