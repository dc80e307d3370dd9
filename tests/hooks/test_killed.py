"""Killed in the middle of scripts and of what they decide: nothing is lost, half done or left behind."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import penstock
from penstock import ManualClock, SystemClock
from penstock.testing.folding import prove_journal
from tests.hooks.running import alive, until

ROOT = Path(__file__).parents[2]


def work_until_killed(folder: Path, after_s: float) -> tuple[set[int], set[int], set[int]]:
    """Numbers that were stored, numbers whose end was decided, helpers."""
    command = [sys.executable, "-m", "tests.hooks.crashing", str(folder)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        first = child.stdout.readline()
        killer = threading.Timer(after_s, child.kill)
        killer.start()
        lines = [first, *child.stdout]
        killer.join()
    stored: set[int] = set()
    decided: set[int] = set()
    helpers: set[int] = set()
    for line in lines:
        if not line.endswith("\n"):
            continue  # It was killed in the middle of its last word.
        what, helper, *numbers = line.split()
        helpers.add(int(helper))
        (stored if what == "stored" else decided).update(map(int, numbers))
    return stored, decided, helpers


def rounds(folder: Path, count: int, seed: int) -> None:
    rng = random.Random(seed)
    stored: set[int] = set()
    decided: set[int] = set()
    for _ in range(count):
        more, ended, helpers = work_until_killed(folder, rng.uniform(0.05, 0.6))
        stored |= more
        decided |= ended
        for helper in helpers:
            until(lambda helper=helper: not alive(helper))  # type: ignore[misc]
        # With a clock that stands still nobody sweeps: what is looked at does not move.
        with penstock.open(folder, clock=ManualClock(SystemClock().now_ns())) as ps:
            report = ps.check()
            assert report.ok, report.problems
            q = ps.queue("q")
            prove_journal(q)
            held = {int(message.payload): message for message in q.iter()}
            assert not [n for n in held if n % 7 == 0], "a refused message was stored"
            dropped = {event.message_id for event in q.events(limit=10**6) if event.kind == "dropped"}
            # None was acked: whatever was stored is there, or the journal says that the script let it go.
            assert len(stored - held.keys()) <= len(dropped)
            assert not {n for n in stored - held.keys() if n % 3 != 0}, "lost"
            assert all(held[n].state == "dead" for n in decided & held.keys()), "undone"


def test_killed_again_and_again_nothing_is_lost_or_half_done(tmp_path: Path) -> None:
    rounds(tmp_path / "store", 3, seed=1)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(10, 15))
def test_killed_many_times_nothing_is_lost_or_half_done(tmp_path: Path, seed: int) -> None:
    rounds(tmp_path / "store", 12, seed)
