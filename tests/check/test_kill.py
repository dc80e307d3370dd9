"""A process that mends a store is killed at any moment: the store opens, is mended, and lost nothing."""

from __future__ import annotations

import contextlib
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import penstock
from tests.check.damaged import build, damage, payloads, tables
from tests.check.stores import contents, fill
from tests.crash.clocks import now_clock

ROOT = Path(__file__).parents[2]
MESSAGES = 400
#: How long a mender is left alone at most, from the moment that it starts to mend.
LONGEST_S = 0.5
PATIENCE_S = 60.0


def url(path: Path) -> str:
    return f"rocksdb:{path}?durability=os"


def base_store(path: Path) -> dict[str, tuple[str, str, bytes]]:
    with penstock.open(url(path), clock=now_clock()) as ps:
        fill(ps)
        q = ps.queue("jobs")
        for n in range(MESSAGES):
            q.enqueue(b"more %d" % n, ttl_s=3000 + n, fairness_key=str(n % 7))
        q.nack([delivery.receipt for delivery in q.lease(MESSAGES // 4)], delay_s=0)
        return contents(ps)


def kill_while_mending(path: Path, what: str, delay_s: float) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "tests.check.mender", url(path), what],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as child:
        assert child.stdout is not None
        try:
            assert child.stdout.readline() == b"spoilt\n"
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(delay_s)
                raise AssertionError(f"the mender ended by itself: {child.returncode}")
        finally:
            child.kill()


def campaign(seed: int, rounds: int, what: str, folder: Path) -> None:
    rng, path = random.Random(seed), folder / "store"
    before = base_store(path)
    for round_ in range(rounds):
        kill_while_mending(path, what, rng.uniform(0, LONGEST_S))
        with penstock.open(url(path), clock=now_clock()) as ps:
            report = ps.check(repair=True)
            assert report.ok, (seed, round_, [p for p in report.problems if p.action.startswith("left")])
            assert ps.check().problems == []
            after = contents(ps)
            # Delays and leases may have ended meanwhile; a message and its payload are as they were.
            assert {i: (one[0], one[2]) for i, one in after.items()} == {
                i: (one[0], one[2]) for i, one in before.items()
            }, (seed, round_)


@pytest.mark.parametrize("what", ["repair", "reindex"])
def test_a_killed_mender_leaves_a_store_that_opens_and_can_be_mended(what: str, tmp_path: Path) -> None:
    campaign(1, 4, what, tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("what", ["repair", "reindex"])
@pytest.mark.parametrize("seed", range(100, 106))
def test_menders_killed_many_times_leave_a_store_that_can_be_mended(
    seed: int, what: str, tmp_path: Path
) -> None:
    campaign(seed, 30, what, tmp_path)


def salvage_campaign(seed: int, rounds: int, folder: Path) -> None:
    """Tables with a damaged block, whose space is being written anew when the process is killed."""
    rng, base = random.Random(seed), folder / "base"
    build(base)
    with penstock.open(url(base), clock=now_clock()) as ps:
        before = payloads(ps)
    found = [table for table, space in tables(base).items() if space in ("messages", "state", "journal")]
    for round_ in range(rounds):
        path = folder / f"store-{round_}"
        shutil.copytree(base, path)
        damage(path / rng.choice(found), "flip")
        kill_repairing(path, rng.uniform(0, LONGEST_S))
        with penstock.open(url(path), clock=now_clock()) as ps:
            assert ps.check(repair=True).ok, (seed, round_)
            assert ps.check().problems == []
            after = payloads(ps)
            assert all(after[i] == before[i] for i in before.keys() & after.keys()), (seed, round_)
            assert len(before.keys() - after.keys()) < 100, (seed, round_)


def kill_repairing(path: Path, delay_s: float) -> None:
    program = (
        "import penstock, sys\n"
        "ps = penstock.open(sys.argv[1])\n"
        "print('open', flush=True)\n"
        "ps.check(repair=True)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, url(path)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as child:
        assert child.stdout is not None
        try:
            assert child.stdout.readline() == b"open\n"
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(delay_s)
        finally:
            child.kill()


def test_a_process_killed_while_it_writes_a_space_anew_loses_no_more_than_the_damage(tmp_path: Path) -> None:
    salvage_campaign(1, 4, tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(200, 206))
def test_processes_killed_while_they_write_spaces_anew_lose_no_more_than_the_damage(
    seed: int, tmp_path: Path
) -> None:
    salvage_campaign(seed, 20, tmp_path)
