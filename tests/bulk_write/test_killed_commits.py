"""A commit that is killed between any two of its writes neither loses a row nor doubles one."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import NamedTuple

import msgspec
import pytest

from penstock import Penstock
from penstock.backends.bulk import Written
from tests.bulk_write import scenario
from tests.bulk_write.killed import Forker
from tests.bulk_write.scenario import Told

#: Steps of the job's commit, at least: the job, and for each slice a note, a sync, tables and a write.
STEPS = 40


class Prepared(NamedTuple):
    """A store with a staged job, and what it is before and after it."""

    store: Path
    plan: Path
    before: dict[str, Told]
    after: dict[str, Told]
    written: Written


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prepared]:
    folder = tmp_path_factory.mktemp("prepared")
    with pytest.MonkeyPatch.context() as patch:
        for module, name, value in scenario.SIZES:
            patch.setattr(module, name, value)
        plan = scenario.prepare(folder / "store")
        (folder / "plan").write_bytes(msgspec.msgpack.encode(plan))
        shutil.copytree(folder / "store", folder / "whole")
        with scenario.open_store(folder / "whole") as ps:
            before = scenario.contents(ps)
            written = scenario.commit(ps, plan)
            after = scenario.contents(ps)
            assert ps.check().ok
        assert written.enqueued == len(after) - len(before) > 250
        assert written.existing > 10
        assert written.rejected == 6
        yield Prepared(folder / "store", folder / "plan", before, after, written)


@pytest.fixture(scope="module")
def forker() -> Iterator[Forker]:
    with Forker() as one:
        yield one


def cut_logs(store: Path) -> None:
    """Take what a power cut may take: what was not synced."""
    synced = store.with_suffix(".synced")
    sizes = json.loads(synced.read_text()) if synced.exists() else {}
    logs = sorted(store.glob("*.log"), key=lambda file: int(file.stem))
    for file in logs[-1:]:
        with file.open("r+b") as log:
            log.truncate(min(sizes.get(file.name, 0), file.stat().st_size))


def judge(ps: Penstock, prepared: Prepared, *, begun: bool) -> None:
    """Whatever has come so far is right; then all of it comes, once."""
    report = ps.check()
    assert report.ok, report.problems[:5]
    now = scenario.contents(ps)
    assert set(prepared.before) <= set(now) <= set(prepared.after)
    if begun:
        while ps.sweep():
            pass
    plan = msgspec.msgpack.decode(prepared.plan.read_bytes(), type=scenario.Plan)
    written = scenario.commit(ps, plan)
    assert (written.enqueued, written.existing) == (prepared.written.enqueued, prepared.written.existing)
    same(scenario.contents(ps), prepared.after)
    report = ps.check()
    assert report.ok, report.problems[:5]
    assert scenario.commit(ps, plan).again
    for name in scenario.QUEUES:
        stats = ps.queue(name).stats()
        kinds = [event.kind for event in ps.queue(name).events(limit=10_000)]
        assert kinds.count("enqueued") == stats.enqueued_total  # type: ignore[arg-type]
        assert len(kinds) == stats.last_seq
        leased = ps.queue(name).lease(1000)
        assert len(leased) == stats.ready


def same(found: dict[str, Told], expected: dict[str, Told]) -> None:
    assert found.keys() == expected.keys()
    for one, told in expected.items():
        assert found[one] == told


def kill_at(step: int, moment: str, prepared: Prepared, forker: Forker, folder: Path, rng: Random) -> bool:
    """Whether it was killed there: there may be fewer steps."""
    store = folder / f"store-{step}-{moment}"
    shutil.copytree(prepared.store, store)
    killed = forker.run(store, prepared.plan, "commit", step, moment)
    power_cut = killed and rng.random() < 0.5
    if power_cut:
        cut_logs(store)
    if killed and rng.random() < 0.5:
        # Whoever takes it up is killed too.
        forker.run(store, prepared.plan, rng.choice(("open", "commit")), rng.randint(1, 8), moment)
    with scenario.open_store(store) as ps:
        judge(ps, prepared, begun=rng.random() < 0.5)
        assert list((store / "staging").iterdir()) == []
    shutil.rmtree(store)
    return killed


def test_a_commit_killed_at_some_of_its_steps_is_finished_without_loss_or_double(
    prepared: Prepared, forker: Forker, tmp_path: Path
) -> None:
    rng = Random(5)
    for step in (1, 2, 3, 4, 5, 6, *rng.sample(range(7, STEPS), 6)):
        assert kill_at(step, rng.choice(("before", "after")), prepared, forker, tmp_path, rng)


@pytest.mark.soak
@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_commit_killed_at_each_of_its_steps_is_finished_without_loss_or_double(
    prepared: Prepared, forker: Forker, tmp_path: Path, moment: str
) -> None:
    rng, step = Random(moment), 1
    while kill_at(step, moment, prepared, forker, tmp_path, rng):
        step += 1
    assert step > STEPS
