"""What a store has lost is said until a repair has dealt with it, and nothing else goes with it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import penstock
from penstock import NewMessage, Penstock, StorageCorrupt
from tests.check.damaged import damage, tables
from tests.crash.clocks import now_clock

ROOT = Path(__file__).parents[2]
COUNT = 300


def opened(path: Path) -> Penstock:
    return penstock.open(f"rocksdb:{path}?durability=os", clock=now_clock())


def tables_of(path: Path, space: str) -> list[Path]:
    return sorted(path / name for name, owner in tables(path).items() if owner == space)


def build(path: Path, names: str = "ab") -> None:
    """A queue, and with it a table of every space that it needs, in each opening."""
    for name in names:
        with opened(path) as ps:
            q = ps.create_queue(name)
            q.enqueue_many([NewMessage(b"%s %d" % (name.encode(), n)) for n in range(COUNT)])


def lengths(ps: Penstock) -> dict[str, int]:
    return {settings.name: ps.queue(settings.name).length() for settings in ps.queues()}


@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("how", ["index", "half"])
def test_a_repair_that_is_the_first_call_costs_no_sound_message(
    tmp_path: Path, how: str, victim: int
) -> None:
    build(tmp_path)
    damage(tables_of(tmp_path, "messages")[victim], how)
    with opened(tmp_path) as ps:
        report = ps.check(repair=True)
        assert report.ok
        assert not [problem for problem in report.problems if problem.action.startswith("left")]
        assert lengths(ps) == {"a": COUNT * victim, "b": COUNT * (1 - victim)}
        assert ps.check().problems == []
    with opened(tmp_path) as ps:
        assert ps.check().problems == []
        assert ps.health().status == "healthy"


def test_messages_that_a_repair_saved_are_not_lost_with_the_next_table(tmp_path: Path) -> None:
    build(tmp_path, "a")
    damage(tables_of(tmp_path, "messages")[0], "flip")
    with opened(tmp_path) as ps:
        ps.check(repair=True)
        saved = ps.queue("a").length()
        assert saved > COUNT // 2
    damage(tables_of(tmp_path, "ready")[0], "half")
    with opened(tmp_path) as ps:
        assert "body_missing" not in ps.check(repair=True).counts
        assert ps.queue("a").length() == saved
        assert len(ps.queue("a").lease(COUNT)) == saved


_ENQUEUES_AND_DIES = """
import os, sys, penstock
q = penstock.open(sys.argv[1]).queue("a")
assert all(result.ok for result in q.enqueue_many([penstock.NewMessage(b"%d" % n) for n in range(200)]))
os._exit(9)
"""


@pytest.mark.parametrize("space", ["ready", "entries", "journal", "messages"])
def test_acknowledged_messages_in_the_log_of_a_killed_process_survive_a_damaged_table(
    tmp_path: Path, space: str
) -> None:
    build(tmp_path, "a")
    (victim,) = tables_of(tmp_path, space)
    died = subprocess.run([sys.executable, "-c", _ENQUEUES_AND_DIES, str(tmp_path)], cwd=ROOT, check=False)
    assert died.returncode == 9
    damage(victim, "half")
    with opened(tmp_path) as ps:
        ps.check(repair=True)
        assert ps.queue("a").length() == 200 + (0 if space == "messages" else COUNT)
        assert ps.check().problems == []


@pytest.mark.parametrize("how", ["flip", "half", "index"])
def test_a_store_that_lost_what_names_its_queues_says_so_until_it_is_repaired(
    tmp_path: Path, how: str
) -> None:
    folder = tmp_path / "s"
    build(folder, "a")
    damage(tables_of(folder, "meta")[0], how)
    config = tmp_path / "penstock.yaml"
    config.write_text(f"storage: {{path: {folder}}}\nqueues: {{a: {{}}}}\n")
    for _ in range(2):
        with opened(folder) as ps:
            assert ps.queues() == []
            assert ps.health().status == "degraded"
            assert ps.check().counts["lost"] == 1
            for make in (
                lambda ps=ps: ps.create_queue("a"),
                lambda ps=ps: ps.replace_queues(["a"]),
                lambda ps=ps: ps.journal("w").append([penstock.Entry("k", b"")]),
            ):
                with pytest.raises(StorageCorrupt, match="check --repair"):
                    make()
    # Nor does a configuration make them anew, empty and under the same names.
    with pytest.raises(StorageCorrupt, match="check --repair"):
        penstock.open(str(config))
    run = subprocess.run(
        [sys.executable, "-m", "penstock", "--store", str(config), "check", "--repair"],
        cwd=ROOT,
        env={**os.environ, "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    with penstock.open(str(config)) as ps:
        assert lengths(ps) == {"a": COUNT}
        assert ps.health().status == "healthy"
        assert ps.check().problems == []
        ps.create_queue("b")
        (entry,) = ps.journal("_penstock").scan(kinds=["repaired"])
        assert b'"lost":1' in entry.body


@pytest.mark.parametrize("how", ["flip", "index"])
def test_indexes_are_not_rebuilt_over_what_cannot_be_read(tmp_path: Path, how: str) -> None:
    build(tmp_path, "a")
    damage(tables_of(tmp_path, "messages")[0], how)
    with opened(tmp_path) as ps:
        before = ps.queue("a").length()
        report = ps.reindex()
        assert not report.ok
        assert set(report.counts) == {"unreadable"}
        assert "repair first" in report.problems[0].action
        assert ps.queue("a").length() == before
        assert ps.check(repair=True).ok
        assert ps.reindex().ok
