"""A commit that goes to the owner of the store, which is killed on the way: the caller goes on by itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from tests.bulk_write import scenario
from tests.bulk_write.scenario import contents

ROOT = Path(__file__).parents[2]


def commit_with_an_owner_killed_at(step: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name, value in scenario.SIZES:
        monkeypatch.setattr(module, name, value)
    store = folder / f"store-{step}"
    plan = scenario.prepare(store)
    owner = subprocess.Popen(
        [sys.executable, "-m", "tests.bulk_write.owner", str(store), str(step)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "open\n"
        with scenario.open_store(store) as ps:
            assert ps.info().default.attached_to == owner.pid
            before = contents(ps)
            written = scenario.commit(ps, plan)
            assert owner.wait(60) == -9
            assert ps.info().default.attached_to is None
            after = contents(ps)
            assert written.enqueued == len(after) - len(before)
            assert (written.enqueued, written.rejected) == (272, 6)
            assert scenario.commit(ps, plan).again
            assert ps.check().ok
            assert contents(ps) == after
    finally:
        owner.kill()
        owner.communicate()


def test_a_commit_whose_owner_is_killed_is_finished_by_the_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = Random(3)
    for step in (2, 5, rng.randint(6, 40)):
        commit_with_an_owner_killed_at(step, tmp_path, monkeypatch)


@pytest.mark.soak
def test_a_commit_whose_owner_is_killed_anywhere_is_finished_by_the_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in range(1, 40):
        commit_with_an_owner_killed_at(step, tmp_path, monkeypatch)
