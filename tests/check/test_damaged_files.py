"""Truncated and bit-flipped tables: the store opens, says what and where, goes on, and is mended."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from tests.check.damaged import QUEUES, Outcome

ROOT = Path(__file__).parents[2]
PATIENCE_S = 240.0
#: Spaces that have nothing which is not somewhere else too.
DERIVED = ("ready", "due", "held", "entries")


@pytest.mark.parametrize(
    "how", ["flip", *(pytest.param(how, marks=pytest.mark.soak) for how in ("half", "index", "missing"))]
)
def test_a_store_with_one_damaged_table_goes_on_and_is_mended(how: str, tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "tests.check.damaged", str(tmp_path), how],
        cwd=ROOT,
        capture_output=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert run.returncode == 0, run.stderr.decode()[-2000:]
    outcomes = [msgspec.json.decode(line, type=Outcome) for line in run.stdout.splitlines()]
    assert {outcome.space for outcome in outcomes} >= {"messages", "state", "journal", "ready", "due", "meta"}
    for outcome in outcomes:
        judge(outcome, how)


def judge(outcome: Outcome, how: str) -> None:
    assert not outcome.refused, outcome
    assert outcome.left == {}, outcome
    assert outcome.unusable == [], outcome
    assert outcome.altered == 0, outcome
    if outcome.counts and how == "missing":
        assert outcome.table in outcome.health, outcome
    elif outcome.counts:
        assert outcome.kept or outcome.space in DERIVED, outcome
        named = " ".join(outcome.problems) + outcome.health
        assert outcome.table in named or outcome.space == "meta", outcome
    if outcome.space in DERIVED:
        assert outcome.lost == 0, outcome
    if how == "flip" and outcome.space in ("messages", "state", "journal"):
        # One block: the queues that it has no part of are used as before.
        assert len(outcome.failed) < len(QUEUES), outcome
