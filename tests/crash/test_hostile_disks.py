"""Disks that are full, read-only, damaged or from the future: a clear error, never a hang, nothing lost."""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Protocol

import pytest

import penstock
from penstock import NewMessage, StorageError
from penstock.backends.embedded import keys
from penstock.backends.embedded.keys import SPACES, Meta
from penstock.backends.embedded.opening import LABEL, LABEL_TEXT
from penstock.backends.embedded.rows import MARK
from penstock.kv.rocksdb import RocksStore
from tests.crash.clocks import now_clock
from tests.crash.probe import Answer, ProbeOrder
from tests.crash.rig import NO_SOCKET, Zygote, seeds

MESSAGES = 3000
IN_TABLES = 2000
LOG_BLOCK_BYTES = 32768
LOG_HEADER = struct.Struct("<IHB")
LOG_FULL_RECORD = 1


class Look(Protocol):
    def __call__(self, store: Path, *, unprivileged: bool = False) -> Answer: ...


@pytest.fixture(scope="module")
def crashed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of a process that died: tables, and a log with a third of the messages."""
    folder = tmp_path_factory.mktemp("crashed")
    path = folder / "open"
    for opening in range(3):
        system = penstock.open(path, clock=now_clock())
        queue = system.queue("q") if opening else system.create_queue("q")
        queue.enqueue_many([NewMessage(os.urandom(100)) for _ in range(MESSAGES // 3)])
        for _ in range(50):
            queue.nack([delivery.receipt for delivery in queue.lease(1)], delay_s=0)
        if opening == 2:
            shutil.copytree(path, folder / "crashed", ignore=NO_SOCKET)
        system.close()
    return folder / "crashed"


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    with Zygote() as zygote:
        yield zygote


@pytest.fixture
def look(zygote: Zygote, tmp_path: Path) -> Look:
    """Open, check and use a store in another process."""

    def look(store: Path, *, unprivileged: bool = False) -> Answer:
        answer = str(tmp_path / "answer")
        return zygote.probe(
            ProbeOrder(what="look", path=str(store), answer=answer, unprivileged=unprivileged)
        )

    return look


def damage_missing(file: Path) -> None:
    file.unlink()


def damage_empty(file: Path) -> None:
    file.write_bytes(b"")


def damage_half(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def damage_garbage(file: Path) -> None:
    file.write_bytes(Random(file.name).randbytes(file.stat().st_size))


def damage_one_byte(file: Path) -> None:
    raw = bytearray(file.read_bytes())
    raw[len(raw) // 3] ^= 0xFF
    file.write_bytes(raw)


def damage_a_folder_instead(file: Path) -> None:
    file.unlink()
    file.mkdir()


DAMAGES = (
    damage_missing,
    damage_empty,
    damage_half,
    damage_garbage,
    damage_one_byte,
    damage_a_folder_instead,
)


def damaged(crashed: Path, folder: Path, pattern: str, damage: Callable[[Path], None]) -> Path:
    store = shutil.copytree(crashed, folder / "store")
    damage(max(store.glob(pattern), key=lambda file: file.stat().st_size))
    return store


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("pattern", ["CURRENT", "MANIFEST-*"])
def test_a_store_without_its_list_of_tables_is_refused_with_its_path(
    pattern: str, damage: Callable[[Path], None], crashed: Path, look: Look, tmp_path: Path
) -> None:
    store = damaged(crashed, tmp_path, pattern, damage)
    answer = look(store)
    assert answer.is_storage_error, answer
    assert str(store) in answer.text
    assert answer.step == "open"


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_store_with_a_damaged_table_opens_is_repaired_and_goes_on(
    damage: Callable[[Path], None], crashed: Path, look: Look, tmp_path: Path
) -> None:
    store = damaged(crashed, tmp_path, "*.sst", damage)
    answer = look(store)
    assert (answer.step, answer.left) == ("done", []), answer
    assert answer.problems
    assert answer.messages < MESSAGES
    assert list((store / "lost").iterdir())


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("pattern", ["OPTIONS-*", "IDENTITY", "rocksdict-config.json", LABEL])
def test_damage_to_a_file_that_holds_no_data_loses_none(
    pattern: str, damage: Callable[[Path], None], crashed: Path, look: Look, tmp_path: Path
) -> None:
    store = damaged(crashed, tmp_path, pattern, damage)
    answer = look(store)
    if answer.step == "done":
        assert (answer.messages, answer.problems) == (MESSAGES, [])
    else:
        assert answer.is_storage_error, answer
        assert str(store) in answer.text


@pytest.mark.parametrize("damage", DAMAGES)
def test_of_a_damaged_log_a_prefix_without_holes_is_kept(
    damage: Callable[[Path], None], crashed: Path, look: Look, tmp_path: Path
) -> None:
    store = damaged(crashed, tmp_path, "*.log", damage)
    answer = look(store)
    if answer.step == "done":
        assert IN_TABLES <= answer.messages <= MESSAGES
        assert not answer.problems
    else:
        assert answer.is_storage_error, answer
        assert str(store) in answer.text


def log_records(raw: bytes | bytearray) -> Iterator[int]:
    """Where the records of a log start: checksum, length, type; none crosses the end of a block."""
    at = 0
    while at + LOG_HEADER.size <= len(raw):
        left = LOG_BLOCK_BYTES - at % LOG_BLOCK_BYTES
        if left < LOG_HEADER.size:
            at += left
            continue
        yield at
        at += LOG_HEADER.size + LOG_HEADER.unpack_from(raw, at)[1]


@pytest.mark.parametrize("bit", [1 << n for n in range(8)])
def test_a_log_whose_record_turned_into_another_type_does_not_hang(
    bit: int, crashed: Path, look: Look, tmp_path: Path
) -> None:
    """The engine spins for ever on a type that only recycled logs have (facebook/rocksdb#13333)."""
    store = shutil.copytree(crashed, tmp_path / "store")
    log = max(store.glob("*.log"))
    raw = bytearray(log.read_bytes())
    whole = [at for at in log_records(raw) if LOG_HEADER.unpack_from(raw, at)[2] == LOG_FULL_RECORD]
    raw[whole[len(whole) // 2] + LOG_HEADER.size - 1] ^= bit
    log.write_bytes(raw)
    answer = look(store)
    assert answer.is_storage_error or (answer.step == "done" and not answer.problems), answer


@pytest.mark.parametrize("kind", [0, 1, 5, 6, 7, 8, 9, 10, 11, 130, 131, 255])
@pytest.mark.parametrize(
    "torn_by",
    [
        pytest.param(b"\xff" * 7, id="a bad length"),
        pytest.param(bytes(7), id="zeros"),
        pytest.param(b"\0" * 4 + b"\5\0\1" + b"torn!", id="a bad checksum"),
    ],
)
def test_garbage_behind_a_torn_log_does_not_hang(
    torn_by: bytes, kind: int, crashed: Path, look: Look, tmp_path: Path
) -> None:
    """Where a record is damaged the engine reads on at the next block, whatever that starts with."""
    store = shutil.copytree(crashed, tmp_path / "store")
    log = max(store.glob("*.log"))
    raw = log.read_bytes()
    to_block = LOG_BLOCK_BYTES - (len(raw) + len(torn_by)) % LOG_BLOCK_BYTES
    log.write_bytes(raw + torn_by + bytes(to_block) + LOG_HEADER.pack(1, 20, kind) + bytes(100))
    answer = look(store)
    assert (answer.step, answer.problems, answer.messages) == ("done", [], MESSAGES), answer


@pytest.mark.parametrize("also_missing", ["*.log", "LOG*", "[!0-9]*"])
def test_a_folder_that_has_lost_its_current_file_is_not_taken_for_a_new_store(
    also_missing: str, crashed: Path, look: Look, tmp_path: Path
) -> None:
    store = shutil.copytree(crashed, tmp_path / "store")
    (store / "CURRENT").unlink()
    for file in [*store.glob(also_missing), *store.glob("*.log")]:
        file.unlink(missing_ok=True)
    tables = {file.name: file.read_bytes() for file in store.glob("*.sst")}
    answer = look(store)
    assert (answer.step, answer.is_storage_error) == ("open", True), answer
    assert str(store) in answer.text
    assert {file.name: file.read_bytes() for file in store.glob("*.sst")} == tables


def newer_store(path: Path, copy: Path) -> None:
    """Two stores of version 99: one was closed; of the other, the newer row is in the log alone."""
    penstock.open(path, clock=now_clock()).close()
    raw = RocksStore.open(path, SPACES)
    batch = raw.batch()
    batch.put(keys.meta(Meta.FORMAT), MARK + keys.u32(99), raw.space("meta"))
    raw.write(batch, sync=True)
    shutil.copytree(path, copy, ignore=NO_SOCKET)
    raw.close()


def test_a_store_of_a_newer_version_is_refused_and_left_as_it_is(look: Look, tmp_path: Path) -> None:
    stores = (tmp_path / "closed", tmp_path / "crashed")
    newer_store(*stores)
    for store in stores:
        (store / LABEL).write_text(LABEL_TEXT.format(99))
        before = stored_bytes(store)
        assert_refused_as_newer(look(store), store)
        assert stored_bytes(store) == before


def test_a_store_of_a_newer_version_without_its_label_is_refused_too(look: Look, tmp_path: Path) -> None:
    stores = (tmp_path / "closed", tmp_path / "crashed")
    newer_store(*stores)
    for store in stores:
        for _ in range(2):
            assert_refused_as_newer(look(store), store)


def assert_refused_as_newer(answer: Answer, store: Path) -> None:
    assert (answer.step, answer.error) == ("open", "StorageError"), answer
    for part in (str(store), "format 99", "up to 1:"):
        assert part in answer.text


def stored_bytes(store: Path) -> dict[str, bytes]:
    """Every file but the engine's diary and its lock."""
    files = [file for file in store.iterdir() if not file.name.startswith(("LOG", "LOCK"))]
    return {file.name: file.read_bytes() for file in files}


@pytest.mark.parametrize("durability", ["sync", "os"])
@pytest.mark.parametrize("limit_bytes", [0, 1000, 70_000, 300_000])
@pytest.mark.parametrize("size_bytes", [100, 20_000])
def test_a_full_disk_is_told_and_loses_nothing_acknowledged(
    size_bytes: int, limit_bytes: int, durability: str, zygote: Zygote, look: Look, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    answer = zygote.probe(
        ProbeOrder(
            what="fill",
            path=str(store),
            answer=str(tmp_path / "filled"),
            limit_bytes=limit_bytes,
            size_bytes=size_bytes,
            durability=durability,
        )
    )
    assert answer.error == "StorageFull", answer
    assert str(store) in answer.text
    if answer.step != "open":
        assert answer.retry_error in ("StorageFull", "StorageError")
        assert answer.health != "healthy"
    with penstock.open(store, clock=now_clock()) as system:
        report = system.check()
        assert report.ok, report.problems
        there = {message.id for s in system.queues() for message in system.queue(s.name).iter()}
        assert not set(answer.stored) - set(answer.acked) - there
        assert not set(answer.acked) & there
    again = look(store)
    assert (again.step, again.problems) == ("done", []), again


@pytest.mark.parametrize("below", ["", "deep/er"])
def test_a_path_that_runs_through_a_file_is_refused(below: str, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("not a folder")
    with pytest.raises(StorageError) as refused:
        penstock.open(file / below)
    assert str(file) in str(refused.value)
    assert file.read_text() == "not a folder"


def test_a_folder_without_permission_to_write_is_refused(look: Look, tmp_path: Path) -> None:
    locked = tmp_path / "locked"
    penstock.open(locked, clock=now_clock()).close()
    for parent in (tmp_path, *tmp_path.parents[:2]):
        parent.chmod(0o755)  # Only the last one is the hindrance.
    locked.chmod(0o555)
    for path in (locked, locked / "new"):
        answer = look(path, unprivileged=True)
        assert (answer.step, answer.is_storage_error) == ("open", True), answer
        assert str(path) in answer.text
    locked.chmod(0o755)
    assert look(locked).step == "done"


def test_a_file_without_permission_to_read_is_refused(crashed: Path, look: Look, tmp_path: Path) -> None:
    for parent in (tmp_path, *tmp_path.parents[:2]):
        parent.chmod(0o755)
    for name in ("CURRENT", "rocksdict-config.json"):
        store = shutil.copytree(crashed, tmp_path / f"without-{name}")
        for file in (store, *store.iterdir()):
            file.chmod(0o777)
        (store / name).chmod(0)
        answer = look(store, unprivileged=True)
        assert (answer.step, answer.is_storage_error) == ("open", True), answer
        assert str(store) in answer.text


@pytest.mark.soak
@pytest.mark.parametrize("seed", seeds(1, 120))
def test_random_damage_is_reported_or_loses_only_the_end_of_the_log(
    seed: int, crashed: Path, look: Look, tmp_path: Path
) -> None:
    rng = Random(f"damage {seed}")
    store = shutil.copytree(crashed, tmp_path / "store")
    files = [f for p in ("*.sst", "*.log", "MANIFEST-*", "CURRENT", "OPTIONS-*") for f in store.glob(p)]
    for _ in range(rng.choice([1, 1, 3])):
        damage_somewhere(rng.choice(files), rng)
    answer = look(store)
    if answer.step != "done":
        assert answer.is_storage_error, answer
        assert str(store) in answer.text
    elif answer.problems:
        assert answer.left == [], answer
    else:
        assert IN_TABLES <= answer.messages <= MESSAGES


def damage_somewhere(file: Path, rng: Random) -> None:
    raw = bytearray(file.read_bytes())
    at = rng.randrange(len(raw) + 1)
    size = rng.choice([1, 10, 5000])
    what = rng.choice(["bit", "cut", "garbage", "zeros", "more", "again"])
    if what == "bit" and at < len(raw):
        raw[at] ^= 1 << rng.randrange(8)
    elif what == "cut":
        del raw[at:]
    elif what == "garbage":
        raw[at : at + size] = rng.randbytes(size)
    elif what == "zeros":
        raw[at : at + size] = bytes(size)
    elif what == "more":
        raw += rng.randbytes(5000)
    else:
        raw[at:at] = raw[at : at + size]
    file.write_bytes(raw)
