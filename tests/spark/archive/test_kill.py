"""Archiving drivers, killed at random moments beside a writer: nothing is missing, nothing is there twice."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import penstock
from penstock import ManualClock
from penstock.clock import SystemClock, to_ns
from penstock.spark.archive.log import ArchiveLog
from penstock.spark.archive.merging import clean
from penstock.spark.jobs.archive import archive
from penstock.spark.store import Store
from penstock.testing.harness import sweep_all
from tests.spark.archive.contents import has_everything, rows
from tests.spark.archive.writer import QUEUES

DEADLINE_S = 600.0


@pytest.mark.soak
def test_many_killed_drivers_leave_every_event_once_and_every_body(
    spark: SparkSession, driver: None, tmp_path: Path
) -> None:
    _campaign(spark, tmp_path, rounds=24, seed=2)


def _campaign(spark: SparkSession, tmp_path: Path, rounds: int, seed: int) -> None:
    rng = random.Random(seed)
    store, folder = tmp_path / "store", tmp_path / "archive"
    with _started("tests.spark.archive.writer", str(store), str(seed)) as writer:
        _line(writer, "working")
        committed = []
        for number in range(rounds):
            before = ArchiveLog(folder).read().number
            with _started("tests.spark.archive.driver", str(store), str(folder)) as process:
                _line(process, "archiving")
                if number % 4 < 2:  # Every other one has committed something, and is about something else.
                    _until_committed(folder, before)
                _wait(rng.uniform(0.0, 0.2 if number % 4 == 2 else 3.0))
                # The driver with its Java and its workers, or the driver alone: its tasks then outlive it.
                if number % 2:
                    process.kill()
                else:
                    os.killpg(process.pid, signal.SIGKILL)
            committed.append(ArchiveLog(folder).read().number > before)
        assert {*committed} == {True, False}, "drivers must be killed both before and after a commit"
        assert writer.stdin is not None
        writer.stdin.close()
        assert writer.wait(DEADLINE_S) == 0
    clock = ManualClock(SystemClock().now_ns())  # Nothing becomes due, and is recorded, while it is compared.
    with penstock.open(store, clock=clock) as ps:
        sweep_all(ps)
        archive(spark, Store(str(store)), str(folder))
        clean(ArchiveLog(folder), ManualClock(SystemClock().now_ns() + to_ns(7200)), keep_s=0)
        for name in QUEUES:
            has_everything(folder, ps, name)
            assert ArchiveLog(folder).read().queues[name].seq == ps.queue(name).stats().last_seq
    archived = [row["payload"].decode() for row in rows(folder, "bodies")]
    enqueued = (tmp_path / "store.enqueued").read_text().splitlines()
    assert sorted(archived) == sorted(enqueued), f"seed {seed}"


@contextmanager
def _started(module: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()


def _line(process: subprocess.Popen[str], expected: str) -> None:
    """Wait for what it says first; one that says nothing for long is ended, and then says nothing."""
    late = threading.Timer(DEADLINE_S, process.kill)
    late.start()
    assert process.stdout is not None
    try:
        assert process.stdout.readline().strip() == expected
    finally:
        late.cancel()


def _until_committed(folder: Path, number: int) -> None:
    """Something after that number."""
    late = time.monotonic() + DEADLINE_S
    while ArchiveLog(folder).read().number <= number:
        assert time.monotonic() < late
        _wait(0.05)


def _wait(seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        with (woken := threading.Condition()):
            SystemClock().wait(woken, 10_000_000)
