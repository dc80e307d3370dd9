"""Both ordered stores pass the suite; then what each promises on its own: faults, and what disks do."""

from __future__ import annotations

import contextlib
import resource
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Literal

import pytest

from penstock.codec.vault import Vault
from penstock.errors import BackendNotInstalled, StorageCorrupt, StorageError, StorageFull, StoreLocked
from penstock.kv.base import Store
from penstock.kv.memory import Faults, MemoryStore, SimulatedCrash
from penstock.kv.rocksdb import RocksStore
from penstock.kv.sealed import Rule, SealedStore
from penstock.kv.tuning import Mode
from penstock.testing.background import wait_until
from penstock.testing.kv_suite import SPACES, StoreSuite, numbered, put

if TYPE_CHECKING:
    _memory_is_a_store: Callable[..., Store] = MemoryStore
    _rocks_is_a_store: Callable[..., Store] = RocksStore
    _sealed_is_a_store: Callable[..., Store] = SealedStore


class TestMemoryStore(StoreSuite):
    def make(self, folder: str) -> Store:
        return MemoryStore(SPACES)

    def open_checkpoint(self, path: str) -> Store:
        return MemoryStore.load(path)


class TestMemoryStoreWithFaults(TestMemoryStore):
    def make(self, folder: str) -> Store:
        return MemoryStore(SPACES, Faults())


class TestRocksStore(StoreSuite):
    def make(self, folder: str) -> Store:
        return RocksStore.open(folder, SPACES)

    def open_checkpoint(self, path: str) -> Store:
        return RocksStore.open(path, SPACES)


def sealed(store: Store) -> SealedStore:
    """One space is sealed as a whole, of the other every second row."""
    rules: dict[str, Rule] = {
        "left": lambda key, value: True,
        "right": lambda key, value: len(value) % 2 == 0,
    }
    return SealedStore(store, Vault({"main": bytes(32)}, "main"), rules)


class TestSealedMemoryStore(TestMemoryStore):
    def make(self, folder: str) -> Store:
        return sealed(super().make(folder))

    def open_checkpoint(self, path: str) -> Store:
        return sealed(super().open_checkpoint(path))


class TestSealedRocksStore(TestRocksStore):
    def make(self, folder: str) -> Store:
        return sealed(super().make(folder))

    def open_checkpoint(self, path: str) -> Store:
        return sealed(super().open_checkpoint(path))


class TestRocksStoreInLowSpace(StoreSuite):
    def make(self, folder: str) -> Store:
        return RocksStore.open(folder, SPACES, mode="low_space")

    def open_checkpoint(self, path: str) -> Store:
        return RocksStore.open(path, SPACES, mode="low_space")


def content(store: Store) -> dict[bytes, bytes]:
    return dict(store.scan(store.space("left"), b"", None))


def put_one(store: Store, number: int, *, sync: bool = False) -> None:
    put(store, store.space("left"), {b"%06d" % number: b"value %d" % number}, sync=sync)


# Faults of the in-memory store


def test_failed_write_leaves_nothing_and_stops_the_store_until_reopened() -> None:
    store = MemoryStore(SPACES, Faults(fail_write_at=2))
    put_one(store, 0)
    with pytest.raises(StorageFull):
        put_one(store, 1)
    with pytest.raises(StorageFull):
        put_one(store, 2)
    assert content(store) == numbered(1)
    reopened = store.reopen()
    put_one(reopened, 1)
    assert content(reopened) == numbered(2)


def test_failed_write_may_recover_and_raises_the_error_asked_for() -> None:
    store = MemoryStore(SPACES, Faults(fail_write_at=1, write_error=StorageError("worn"), recovers=True))
    with pytest.raises(StorageError, match="worn"):
        put_one(store, 0)
    put_one(store, 0)
    assert content(store) == numbered(1)


def test_failed_sync_stops_the_store_and_a_power_cut_may_lose_what_it_covered() -> None:
    store = MemoryStore(SPACES, Faults(fail_sync_at=2))
    put_one(store, 0, sync=True)
    with pytest.raises(StorageError, match="sync"):
        put_one(store, 1, sync=True)
    with pytest.raises(StorageError, match="sync"):
        store.sync()
    left_over = {len(content(store.crash(Random(seed)))) for seed in range(50)}
    assert left_over == {1, 2}


def test_power_cut_keeps_what_was_synced_and_a_prefix_of_the_rest() -> None:
    store = MemoryStore(SPACES, Faults())
    for number in range(6):
        put_one(store, number, sync=number == 2)
    lengths = set()
    for seed in range(200):
        survivor = store.crash(Random(seed))
        lengths.add(len(content(survivor)))
        assert content(survivor) == numbered(len(content(survivor)))
        put_one(survivor, 9, sync=True)
        assert b"000009" in content(survivor.crash(Random(seed)))
    assert lengths == {3, 4, 5, 6}
    assert content(store) == numbered(6)


def test_killed_process_keeps_everything_but_a_later_power_cut_still_may_not() -> None:
    store = MemoryStore(SPACES, Faults())
    put_one(store, 0)
    put_one(store, 1)
    reopened = store.reopen()
    assert content(reopened) == numbered(2)
    assert {len(content(reopened.crash(Random(seed)))) for seed in range(50)} == {0, 1, 2}


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("step", range(1, 9))
def test_crash_at_each_step_keeps_acknowledged_synced_writes(
    step: int, moment: Literal["before", "after"]
) -> None:
    store = MemoryStore(SPACES, Faults(crash_at_step=step, crash_moment=moment))
    acknowledged = (step - 1) // 2  # each write is two steps
    for number in range(acknowledged):
        put_one(store, number, sync=True)
    with pytest.raises(SimulatedCrash):
        put_one(store, acknowledged, sync=True)
    with pytest.raises(StorageError):
        put_one(store, 9)
    written = step // 2 if moment == "before" else (step + 1) // 2
    assert content(store.reopen()) == numbered(written)
    for seed in range(20):
        assert len(content(store.crash(Random(seed)))) in range(acknowledged, written + 1)


def test_store_without_faults_cannot_say_what_a_power_cut_leaves() -> None:
    with pytest.raises(StorageError, match="faults"):
        MemoryStore(SPACES).crash(Random(0))


def test_swapped_bounds_are_refused_because_rocksdb_would_stop() -> None:
    store = MemoryStore(SPACES)
    with pytest.raises(ValueError, match="swapped"):
        store.batch().delete_range(b"b", b"a", store.space("left"))


def test_damaged_image_is_reported(tmp_path: Path) -> None:
    MemoryStore(SPACES).checkpoint(str(tmp_path / "copy"))
    image = tmp_path / "copy" / "memory.kv"
    image.write_bytes(image.read_bytes()[:-1] + b"x")
    with pytest.raises(StorageCorrupt, match="copy"):
        MemoryStore.load(str(tmp_path / "copy"))
    with pytest.raises(StorageError, match="nothing"):
        MemoryStore.load(str(tmp_path / "nothing"))


# RocksDB and the disk


def in_child(script: str, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", script, *arguments]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_reopened_store_has_its_data_and_spaces_not_asked_for(tmp_path: Path) -> None:
    store = RocksStore.open(tmp_path / "store", ["left", "old"])
    put(store, store.space("old"), {b"a": b"1"})
    put_one(store, 0)
    store.close()
    store = RocksStore.open(tmp_path / "store", ["left", "new"])
    assert content(store) == numbered(1)
    put(store, store.space("new"), {b"b": b"2"})
    store.close()
    store = RocksStore.open(tmp_path / "store", ["old", "new"], read_only=True)
    assert store.get(b"a", store.space("old")) == b"1"
    assert store.get(b"b", store.space("new")) == b"2"
    with pytest.raises(StorageError, match="read only"):
        put(store, store.space("new"), {b"c": b"3"})
    store.close()


def test_killed_process_loses_nothing_that_was_written(tmp_path: Path) -> None:
    script = """if True:
        import os, sys
        from penstock.kv.rocksdb import RocksStore
        from penstock.testing.kv_suite import numbered, put
        store = RocksStore.open(sys.argv[1], ["left"])
        put(store, store.space("left"), numbered(1000))
        os.kill(os.getpid(), 9)
    """
    with in_child(script, str(tmp_path / "store")) as child:
        assert child.wait(60) == -9
    store = RocksStore.open(tmp_path / "store", SPACES)
    assert content(store) == numbered(1000)
    store.close()


def test_torn_end_of_the_log_costs_only_the_end(tmp_path: Path) -> None:
    script = """if True:
        import os, sys
        from penstock.kv.rocksdb import RocksStore
        from penstock.testing.kv_suite import put
        store = RocksStore.open(sys.argv[1], ["left"])
        for number in range(100):
            put(store, store.space("left"), {b"%06d" % number: b"value %d" % number})
        os._exit(0)
    """
    with in_child(script, str(tmp_path / "store")) as child:
        assert child.wait(60) == 0
    log = max((tmp_path / "store").glob("*.log"), key=lambda path: path.stat().st_size)
    log.write_bytes(log.read_bytes()[:-700] + bytes(300))
    store = RocksStore.open(tmp_path / "store", SPACES)
    survivors = content(store)
    assert 50 < len(survivors) < 100
    assert survivors == numbered(len(survivors))
    store.close()


def test_store_of_another_process_is_locked(tmp_path: Path) -> None:
    script = """if True:
        import sys
        from penstock.kv.rocksdb import RocksStore
        store = RocksStore.open(sys.argv[1], ["left"])
        print("open", flush=True)
        sys.stdin.readline()
        store.close()
    """
    owner = in_child(script, str(tmp_path / "store"))
    assert owner.stdout is not None
    assert owner.stdout.readline() == "open\n"
    with pytest.raises(StoreLocked, match="another process"):
        RocksStore.open(tmp_path / "store", SPACES)
    owner.communicate("close\n", timeout=60)
    RocksStore.open(tmp_path / "store", SPACES).close()


def test_store_open_twice_in_one_process_is_locked_until_closed(tmp_path: Path) -> None:
    store = RocksStore.open(tmp_path / "store", SPACES)
    with pytest.raises(StoreLocked, match="this process"):
        RocksStore.open(tmp_path / "store", SPACES)
    store.close()
    RocksStore.open(tmp_path / "store", SPACES).close()


def test_closed_store_stays_locked_while_a_space_is_held_but_not_by_a_snapshot(tmp_path: Path) -> None:
    """The driver's handle keeps its database alive, so whoever closes a store must drop its spaces too."""
    store = RocksStore.open(tmp_path / "store", SPACES)
    snapshot, held = store.snapshot(), store.space("left")
    store.close()
    with pytest.raises(StoreLocked, match="open already"):
        RocksStore.open(tmp_path / "store", SPACES)
    with pytest.raises(StorageError, match="released"):
        snapshot.get(b"key", held)
    del held
    RocksStore.open(tmp_path / "store", SPACES).close()


def test_full_disk_raises_and_keeps_what_was_acknowledged(tmp_path: Path) -> None:
    script = """if True:
        import resource, sys
        from penstock.errors import StorageFull
        from penstock.kv.rocksdb import RocksStore
        from penstock.testing.kv_suite import put
        store = RocksStore.open(sys.argv[1], ["left"])
        resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
        acknowledged = 0
        try:
            while acknowledged < 1000:
                put(store, store.space("left"), {b"%06d" % acknowledged: bytes(5000)}, sync=True)
                acknowledged += 1
        except StorageFull:
            assert store.get(b"%06d" % acknowledged, store.space("left")) is None
            print(acknowledged)
        store.close()
    """
    child = in_child(script, str(tmp_path / "store"))
    printed, _ = child.communicate(timeout=60)
    assert child.returncode == 0
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY
    store = RocksStore.open(tmp_path / "store", SPACES)
    assert 10 < int(printed) < 100
    assert list(content(store)) == list(numbered(int(printed)))
    put_one(store, 999_999)
    store.close()


@pytest.mark.parametrize("mode", ["low_space", "high_throughput"])
def test_damaged_file_is_reported_by_every_read_instead_of_missing_rows(tmp_path: Path, mode: Mode) -> None:
    random = Random(0)
    rows = {b"%06d" % number: random.randbytes(1000) for number in range(1000)}
    store = RocksStore.open(tmp_path / "store", SPACES, mode=mode)
    put(store, store.space("left"), rows)
    store.close()
    table = max((tmp_path / "store").glob("*.sst"), key=lambda path: path.stat().st_size)
    damaged = bytearray(table.read_bytes())
    damaged[500_000:500_100] = bytes(100)
    table.write_bytes(damaged)
    store = RocksStore.open(tmp_path / "store", SPACES, mode=mode)
    left = store.space("left")
    with pytest.raises(StorageCorrupt, match="backup"):
        list(store.scan(left, b"", None))
    with pytest.raises(StorageCorrupt):
        list(store.scan(left, b"", None, reverse=True))
    with pytest.raises(StorageCorrupt):
        list(store.snapshot().scan(left, b"", None))
    with pytest.raises(StorageCorrupt):
        [store.get(key, left) for key in rows]
    with pytest.raises(StorageCorrupt):
        store.get_many(list(rows), left)
    del left
    store.close()


def test_damaged_manifest_is_reported_at_opening(tmp_path: Path) -> None:
    RocksStore.open(tmp_path / "store", SPACES).close()
    manifest = next((tmp_path / "store").glob("MANIFEST-*"))
    manifest.write_bytes(bytes(reversed(manifest.read_bytes())))
    with pytest.raises(StorageCorrupt, match="store"):
        RocksStore.open(tmp_path / "store", SPACES)


def test_folder_that_cannot_be_is_named_in_the_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(StorageError, match="file/store"):
        RocksStore.open(tmp_path / "file" / "store", SPACES)
    with pytest.raises(StorageError, match="file"):
        RocksStore.open(tmp_path / "file", SPACES)
    with pytest.raises(StorageError, match="no store"):
        RocksStore.open(tmp_path / "absent", SPACES, read_only=True)
    assert not (tmp_path / "absent").exists()


def test_read_only_folder_is_named_in_the_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`os.access` is told what to answer, because permission bits do not stop root."""
    monkeypatch.setattr("os.access", lambda *_: False)
    with pytest.raises(StorageError, match=r"store is not writable; change its permissions"):
        RocksStore.open(tmp_path / "store", SPACES)


def test_missing_driver_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rocksdict", None)
    with pytest.raises(BackendNotInstalled, match=r"pip install 'penstock\[rocksdb\]'"):
        RocksStore.open(tmp_path / "store", SPACES)


def test_sorted_files_are_taken_in(tmp_path: Path) -> None:
    from rocksdict import Options, SstFileWriter

    writer = SstFileWriter(Options(raw_mode=True))
    writer.open(str(tmp_path / "rows.sst"))
    for key, value in numbered(100).items():
        writer[key] = value
    writer.finish()
    store = RocksStore.open(tmp_path / "store", SPACES)
    put(store, store.space("left"), {b"000000": b"older"})
    store.ingest([str(tmp_path / "rows.sst")], store.space("left"))
    assert content(store) == numbered(100)
    store.close()


def test_wrong_types_are_not_taken_for_storage_errors(tmp_path: Path) -> None:
    store = RocksStore.open(tmp_path / "store", SPACES)
    with pytest.raises(TypeError, match="bytes"):
        store.get("text", store.space("left"))  # type: ignore[arg-type]
    with pytest.raises(StorageError, match="not a space"):
        store.get(b"key", "left")
    store.close()


def files_with(marker: bytes, folder: Path) -> list[str]:
    found = []
    for file in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):
            if file.is_file() and marker in file.read_bytes():
                found.append(file.name)
    return found


@pytest.mark.parametrize("mode", ["high_throughput", "low_space"])
def test_compaction_leaves_nothing_in_the_files_of_what_was_overwritten_or_deleted(
    tmp_path: Path, mode: Mode
) -> None:
    store = RocksStore.open(tmp_path, SPACES, mode=mode)
    left, right = store.space("left"), store.space("right")
    for number in range(200):
        # In two spaces, so that the log is shared; more than once, so that rows sink to the last level.
        put(store, left, {b"%06d" % number: b"marker" + bytes(5000)})
        put(store, right, {b"%06d" % number: b"marker"})
        if number % 100 == 50:
            store.compact()
    assert files_with(b"marker", tmp_path)
    batch = store.batch()
    for number in range(200):
        batch.put(b"%06d" % number, b"harmless", left)
    batch.delete_range(b"000000", b"000100", right)
    for number in range(100, 200):
        batch.delete(b"%06d" % number, right)
    store.write(batch)
    store.compact()
    wait_until(lambda: files_with(b"marker", tmp_path) == [])  # A log that nobody needs goes a little later.
    store.close()
    assert files_with(b"marker", tmp_path) == []


def test_a_compaction_that_is_cut_off_by_closing_says_so_and_closing_waits_for_it(tmp_path: Path) -> None:
    store = RocksStore.open(tmp_path, SPACES)
    for number in range(40):
        put(store, store.space("left"), {b"%06d %06d" % (number, n): bytes(1000) for n in range(500)})
    raised: list[Exception] = []
    started = threading.Event()

    def compact() -> None:
        started.set()
        try:
            while True:
                store.compact()
        except StorageError as error:
            raised.append(error)

    running = threading.Thread(target=compact)
    running.start()
    started.wait()
    store.close()
    running.join()
    assert len(raised) == 1
    RocksStore.open(tmp_path, SPACES).close()
