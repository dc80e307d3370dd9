"""A space written anew: nothing sound is given up with what is damaged, now or when the next table is."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path
from threading import Condition

import pytest

from penstock.clock import SystemClock
from penstock.errors import StorageFull
from penstock.kv.damage import keep_tables
from penstock.kv.losses import NOTES
from penstock.kv.rocksdb import RocksStore
from penstock.kv.wal import SET_ASIDE
from tests.check.damaged import damage

SPACES = ("a", "b", "c")
ROWS = 500


def put(store: RocksStore, space: str, prefix: str, count: int = ROWS) -> None:
    batch = store.batch()
    for n in range(count):
        batch.put(b"%s-%06d" % (prefix.encode(), n), b"value %d" % n, store.space(space))
    store.write(batch)


def add_tables(path: Path, prefix: str, *spaces: str) -> None:
    """A table in each of the spaces; closing a store writes it."""
    store = RocksStore.open(path, SPACES)
    for space in spaces:
        put(store, space, prefix)
    store.close()


def tables(path: Path, space: str) -> list[Path]:
    store = RocksStore.open(path, SPACES)
    found = sorted(store._tables(space))
    store.close()
    return [path / name for name in found]


def counts(store: RocksStore) -> dict[str, int]:
    return {name: sum(1 for _ in store.scan(store.space(name), b"", None)) for name in SPACES}


def waiting(store: RocksStore, space: str) -> int:
    """Tables that no compaction has been at."""
    return int(store._families[store.space(space)].property_value("rocksdb.num-files-at-level0") or 0)


def nothing(start: bytes, end: bytes | None) -> list[bytes]:
    return []


@pytest.mark.parametrize("victim", [0, 1, 2])
@pytest.mark.parametrize("how", ["index", "half", "missing"])
def test_the_first_call_to_a_store_with_a_broken_table_may_be_to_write_the_space_anew(
    tmp_path: Path, how: str, victim: int
) -> None:
    for prefix in "xyz":
        add_tables(tmp_path, prefix, "a", "b")
    old = tables(tmp_path, "a")
    damage(old[victim], how)
    store = RocksStore.open(tmp_path, SPACES)
    store.salvage("a", nothing)
    assert counts(store) == {"a": 2 * ROWS, "b": 3 * ROWS, "c": 0}
    assert any(old[victim].name in loss.what for loss in store.losses())
    store.close()
    # All of them: who looks into the broken one may need the others.
    kept = {path.name for path in (tmp_path / SET_ASIDE).glob("*.sst")}
    assert kept >= {path.name for path in old} - ({old[victim].name} if how == "missing" else set())
    assert not (tmp_path / "scratch").exists()


@pytest.mark.parametrize("again", [False, True])
def test_a_file_system_without_second_names_for_files_will_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    for prefix in "xyz":
        add_tables(tmp_path, prefix, "a")
    old = tables(tmp_path, "a")
    damage(old[0], "half")
    monkeypatch.setattr("os.link", refused)
    if again:  # Killed before: some are kept already.
        keep_tables(str(tmp_path), [path.name for path in old[:2]])
    store = RocksStore.open(tmp_path, SPACES)
    assert counts(store)["a"] == 2 * ROWS
    store.close()
    assert {path.name for path in (tmp_path / SET_ASIDE).glob("*.sst*")} == {path.name for path in old}


def test_no_room_for_a_space_that_is_written_anew_leaves_the_old_one_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    add_tables(tmp_path, "x", "a")
    store = RocksStore.open(tmp_path, SPACES)
    with monkeypatch.context() as patched:
        patched.setattr("penstock.kv.rocksdb.keep_tables", refused)
        with pytest.raises(StorageFull):
            store.salvage("a", nothing)
    assert not list(tmp_path.glob("*.unfinished"))
    put(store, "a", "y")
    store.salvage("a", nothing)
    assert counts(store)["a"] == 2 * ROWS
    store.close()


def test_a_broken_table_does_not_hide_another(tmp_path: Path) -> None:
    for _ in range(3):
        add_tables(tmp_path, "same", "a")
    add_tables(tmp_path, "other", "a")
    old = tables(tmp_path, "a")
    damage(old[0], "index")
    damage(old[2], "index")
    store = RocksStore.open(tmp_path, SPACES)
    store.salvage("a", nothing)
    assert counts(store)["a"] == 2 * ROWS
    noted = " ".join(loss.what for loss in store.losses())
    assert old[0].name in noted
    assert old[2].name in noted
    store.close()


def test_a_space_that_was_written_anew_bears_the_next_broken_table(tmp_path: Path) -> None:
    add_tables(tmp_path, "x", "a", "b")
    store = RocksStore.open(tmp_path, SPACES)
    store.salvage("a", nothing)
    store.close()
    known = set(tables(tmp_path, "a"))
    add_tables(tmp_path, "y", "a", "b")
    (new,) = set(tables(tmp_path, "a")) - known
    damage(new, "half")
    for table in tables(tmp_path, "b")[-1:]:
        damage(table, "half")
    store = RocksStore.open(tmp_path, SPACES)
    assert counts(store) == {"a": ROWS, "b": ROWS, "c": 0}
    store.close()


_WRITES_AND_DIES = """
import os, sys
from tests.unit.test_salvage import SPACES, RocksStore, put
store = RocksStore.open(sys.argv[1], SPACES)
for space in SPACES:
    put(store, space, "log", 100)
store.sync()
os._exit(9)
"""


def die_with_a_log(path: Path) -> None:
    root = Path(__file__).parents[2]
    died = subprocess.run([sys.executable, "-c", _WRITES_AND_DIES, str(path)], cwd=root, check=False)
    assert died.returncode == 9


@pytest.mark.parametrize("how", ["half", "missing", "index", "flip"])
@pytest.mark.parametrize("space", ["a", "b"])
def test_what_the_log_of_a_killed_process_has_survives_a_damaged_table(
    tmp_path: Path, how: str, space: str
) -> None:
    for prefix in "xy":
        add_tables(tmp_path, prefix, "a", "b")
    victim = tables(tmp_path, space)[0]
    die_with_a_log(tmp_path)
    damage(victim, how)
    store = RocksStore.open(tmp_path, SPACES)
    store.salvage(space, nothing)
    found = counts(store)
    store.close()
    assert found["c"] == 100  # No table of it was there to tell of the space.
    assert found["b" if space == "a" else "a"] == 2 * ROWS + 100
    assert found[space] >= ROWS + 100


def test_of_a_damaged_log_nothing_behind_the_damage_counts_beside_a_damaged_table_too(tmp_path: Path) -> None:
    add_tables(tmp_path, "x", "a", "b")
    victim = tables(tmp_path, "b")[0]
    die_with_a_log(tmp_path)
    (log,) = (path for path in tmp_path.glob("*.log") if path.stat().st_size)
    raw = bytearray(log.read_bytes())
    raw[len(raw) // 2] ^= 1  # In the second of three batches, that of `b`.
    log.write_bytes(raw)
    damage(victim, "half")
    store = RocksStore.open(tmp_path, SPACES)
    assert counts(store) == {"a": ROWS + 100, "b": 0, "c": 0}
    store.close()
    assert list((tmp_path / SET_ASIDE).glob("*.log.*"))


def test_compaction_goes_on_once_the_damage_is_gone(tmp_path: Path) -> None:
    for prefix in "xy":
        add_tables(tmp_path, prefix, "a", "b")
    damage(tables(tmp_path, "a")[0], "flip")
    store = RocksStore.open(tmp_path, SPACES)
    snapshot = store.snapshot()
    with pytest.raises(Exception, match="damaged"):
        list(snapshot.scan(store.space("a"), b"", None))
    snapshot.release()
    assert store.damage(), "a snapshot's reader meets it too"
    store.salvage("a", nothing)
    for n in range(12):
        put(store, "b", f"later {n}", 10)
        store._families[store.space("b")].flush(True)
    clock, pause = SystemClock(), Condition()
    patience_ns = clock.now_ns() + 30 * 10**9
    while waiting(store, "b") > 8 and clock.now_ns() < patience_ns:
        with pause:
            clock.wait(pause, 50_000_000)
    assert waiting(store, "b") <= 8
    store.close()


def test_notes_that_cannot_be_read_count_as_a_loss(tmp_path: Path) -> None:
    add_tables(tmp_path, "x", "a")
    (tmp_path / SET_ASIDE).mkdir()
    (tmp_path / SET_ASIDE / NOTES).write_text("{")
    store = RocksStore.open(tmp_path, SPACES)
    assert [loss.space for loss in store.losses()] == [""]
    store.close()
