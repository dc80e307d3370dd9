"""Which tables are set aside when a store is opened: the damaged ones, and no other, whatever else fails."""

from __future__ import annotations

import gc
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from penstock import StorageError, StorageFull
from penstock.kv.damage import broken_tables, refused_tables
from penstock.kv.rocksdb import RocksStore

SPACES = ("a", "b")


def filled(path: Path, rounds: int = 2) -> None:
    for round_ in range(rounds):
        store = RocksStore.open(path, SPACES)
        batch = store.batch()
        for n in range(500):
            for name in SPACES:
                batch.put(b"%d-%06d" % (round_, n), b"value %d" % n, store.space(name))
        store.write(batch)
        del batch
        store.close()


def rows(path: Path) -> dict[str, int]:
    store = RocksStore.open(path, SPACES)
    found = {name: sum(1 for _ in store.scan(store.space(name), b"", None)) for name in SPACES}
    store.close()
    return found


def test_only_the_table_that_is_cut_short_is_done_without(tmp_path: Path) -> None:
    filled(tmp_path / "s")
    table = max((tmp_path / "s").glob("*.sst"))
    table.write_bytes(table.read_bytes()[:-10])
    assert sorted(rows(tmp_path / "s").values()) == [500, 1000]
    assert table.name in [path.name for path in (tmp_path / "s" / "lost").glob("*.sst")]


def test_a_store_says_what_is_lost_until_that_is_dealt_with(tmp_path: Path) -> None:
    filled(tmp_path / "s")
    gone = max((tmp_path / "s").glob("*.sst"))
    gone.unlink()
    for _ in range(2):
        store = RocksStore.open(tmp_path / "s", SPACES)
        (loss,) = store.losses()
        assert gone.name in loss.what
        assert store.damage() == [loss.what]
        store.close()
    store = RocksStore.open(tmp_path / "s", SPACES)
    store.forget_losses()
    assert store.damage() == []
    store.close()
    store = RocksStore.open(tmp_path / "s", SPACES)
    assert store.losses() == []
    store.close()


# The limit is on a file's number, so this wants a process of its own: one that has run other tests has gaps
# among its open files, and room where the test means to leave none.
_OPENS_WITH_FEW_FILES = """
import os, resource, sys
from penstock import StorageError
from penstock.kv.rocksdb import RocksStore

_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
os.close(lowest := os.dup(0))
for room in range(1, 200):
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + room, hard))
    try:
        RocksStore.open(sys.argv[1], ("a", "b")).close()
        break
    except StorageError as error:
        print(repr(error))
"""
_WRITES_AND_DIES = """
import os, sys
from penstock.kv.rocksdb import RocksStore

store = RocksStore.open(sys.argv[1], ("a", "b"))
batch = store.batch()
batch.put(b"last", b"in the log", store.space("a"))
store.write(batch)
os._exit(0)
"""


def in_child(script: str, path: Path) -> str:
    return subprocess.run(
        [sys.executable, "-c", script, path], stdout=subprocess.PIPE, text=True, timeout=60, check=True
    ).stdout


@pytest.mark.parametrize("log", [False, True], ids=["closed", "with a log to replay"])
def test_no_table_is_given_up_for_want_of_open_files(tmp_path: Path, log: bool) -> None:
    filled(tmp_path / "s", rounds=6)
    if log:
        in_child(_WRITES_AND_DIES, tmp_path / "s")
    refused = in_child(_OPENS_WITH_FEW_FILES, tmp_path / "s").splitlines()
    assert len(refused) >= 5
    assert all("Too many open files" in line and "StoreLocked" not in line for line in refused)
    assert any(".sst" in line for line in refused) or not log
    assert not (tmp_path / "s" / "lost").exists()
    assert rows(tmp_path / "s") == {"a": 3000 + log, "b": 3000}


def test_a_table_that_cannot_be_looked_at_is_not_taken_for_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(tmp_path / "s")
    live = [{"name": f"/{path.name}", "size": path.stat().st_size} for path in (tmp_path / "s").glob("*.sst")]
    assert broken_tables(str(tmp_path / "s"), live) == []

    def refuse(*what: object) -> None:
        raise PermissionError(13, "no")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(PermissionError):
        broken_tables(str(tmp_path / "s"), live)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("Corruption: Sst file size mismatch: /x/000023.sst. Expected 9, actual size 8", ["000023.sst"]),
        ("IO error: No such file or directory: /x/000023.sst: No such file or directory", ["000023.sst"]),
        ("IO error: While open a file: /x/000023.sst: Too many open files", []),
        ("IO error: While open a file: /x/000023.sst: Permission denied", []),
        ("Corruption: CURRENT file corrupted", []),
    ],
)
def test_an_opening_is_refused_for_tables_that_are_damaged_or_gone(text: str, names: list[str]) -> None:
    assert refused_tables(text) == names


def test_a_space_is_emptied_and_used_again_under_a_new_handle(tmp_path: Path) -> None:
    filled(tmp_path / "s")
    store = RocksStore.open(tmp_path / "s", SPACES)
    store.clear("a")
    batch = store.batch()
    batch.put(b"k", b"v", store.space("a"))
    store.write(batch)
    del batch
    store.close()
    assert rows(tmp_path / "s") == {"a": 1, "b": 1000}


def test_a_space_written_anew_has_what_it_had_and_goes_on_after_a_kill(tmp_path: Path) -> None:
    filled(tmp_path / "s")
    store = RocksStore.open(tmp_path / "s", SPACES)
    store.salvage("a", lambda start, end: [])
    assert sum(1 for _ in store.scan(store.space("a"), b"", None)) == 1000
    store.close()
    # Killed before the table took its place: what was written waits, and what is there does not count.
    (tmp_path / "s" / "b.pending").write_bytes(b"")
    assert rows(tmp_path / "s") == {"a": 1000, "b": 0}


def test_writes_are_refused_after_one_has_failed(tmp_path: Path) -> None:
    store = RocksStore.open(tmp_path / "s", SPACES)
    batch = store.batch()
    batch.put(b"k", b"v", store.space("a"))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (16, hard))
    try:
        with pytest.raises(StorageError):
            store.write(batch, sync=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    again = store.batch()
    with pytest.raises(StorageError, match="open the store again"):
        store.write(again)
    del batch, again
    store.close()


def test_an_opening_that_cannot_mend_the_store_leaves_it_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(tmp_path / "s")

    def fail(self: RocksStore) -> None:
        list(self.scan(self.space("a"), b"", None))
        raise StorageFull("no room")

    gc.disable()
    try:
        with monkeypatch.context() as broken:
            broken.setattr(RocksStore, "_go_without_broken_tables", fail)
            with pytest.raises(StorageFull):
                RocksStore.open(tmp_path / "s", SPACES)
        assert rows(tmp_path / "s") == {"a": 1000, "b": 1000}
    finally:
        gc.enable()
