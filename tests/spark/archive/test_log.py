"""The log of an archive: whole commits in order, one writer at a time, and damage that is told."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from penstock import InvalidConfig, ManualClock, StorageCorrupt
from penstock.clock import SystemClock, to_ns
from penstock.spark.archive import log as logs
from penstock.spark.archive import merging
from penstock.spark.archive.log import ArchiveBusy, ArchiveFile, ArchiveLog, Commit, Position
from penstock.spark.archive.merging import clean


def _file(path: str, rows: int = 1) -> ArchiveFile:
    return ArchiveFile(
        table="events", name="q", generation=1, day="2026-11-16", path=path, rows=rows, size_bytes=9
    )


def _commit(log: ArchiveLog, *paths: str, **more: object) -> None:
    for path in paths:
        log.root.mkdir(parents=True, exist_ok=True)
        (log.root / path).write_bytes(b"123456789")
    log.commit(Commit(added=[_file(path) for path in paths], **more), lambda _: True)  # type: ignore[arg-type]


def test_a_folder_that_nothing_was_committed_to_is_empty(tmp_path: Path) -> None:
    log = ArchiveLog(tmp_path / "none")
    assert not log.exists()
    assert log.read().number == 0


def test_commits_are_numbered_and_add_up(tmp_path: Path) -> None:
    log = ArchiveLog(tmp_path)
    _commit(log, "a", "b", queues={"q": Position(seq=2)})
    _commit(log, "c", queues={"q": Position(seq=3)}, worlds={"w": Position(seq=1)})
    _commit(log, "d", removed=["a", "c"])
    state = log.read()
    assert state.number == 3
    assert sorted(state.files) == ["b", "d"]
    assert sorted(state.removed) == ["a", "c"]
    assert state.queues["q"].seq == 3
    assert state.worlds["w"].seq == 1


def test_an_archive_keeps_the_name_that_it_was_given_first(tmp_path: Path) -> None:
    log = ArchiveLog(tmp_path)
    _commit(log, "a")
    first = log.read().archive_id
    _commit(log, "b")
    assert first
    assert ArchiveLog(tmp_path).read().archive_id == first


def test_a_state_that_is_written_down_says_what_the_commits_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, noted = ArchiveLog(tmp_path / "plain"), ArchiveLog(tmp_path / "noted")
    for number in range(7):
        _commit(plain, f"f{number}")
    monkeypatch.setattr(logs, "STATE_EVERY", 3)
    for number in range(7):
        _commit(noted, f"f{number}")
    assert list((tmp_path / "noted" / "_log").glob("*.state"))
    assert noted.read().files == plain.read().files
    noted.tidy()
    assert noted.read().files == plain.read().files
    assert len(list((tmp_path / "noted" / "_log").glob("*.json"))) == 4


def test_of_two_who_commit_at_once_both_are_heard_if_they_do_not_touch_each_other(tmp_path: Path) -> None:
    log = ArchiveLog(tmp_path)

    def commit_all(name: str) -> None:
        for number in range(20):
            _commit(log, f"{name}-{number}")

    threads = [threading.Thread(target=commit_all, args=(name,)) for name in ("one", "other")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    state = log.read()
    assert state.number == 40
    assert len(state.files) == 40


def test_a_commit_that_rests_on_what_another_changed_is_refused(tmp_path: Path) -> None:
    log = ArchiveLog(tmp_path)
    _commit(log, "a", queues={"q": Position(seq=5)})
    with pytest.raises(ArchiveBusy, match="another process is at work"):
        log.commit(Commit(added=[_file("a")]), lambda state: state.queues["q"].seq == 4)
    assert sorted(log.read().files) == ["a"]


def test_a_file_that_only_a_worker_sees_is_not_committed(tmp_path: Path) -> None:
    log = ArchiveLog(tmp_path)
    with pytest.raises(InvalidConfig, match="the driver and all workers share"):
        log.commit(Commit(added=[_file("elsewhere")]), lambda _: True)
    assert log.read().number == 0


def test_what_a_killed_writer_left_of_a_commit_is_not_read(tmp_path: Path) -> None:
    log = ArchiveLog(tmp_path)
    _commit(log, "a")
    (tmp_path / "_log" / ".00000000000000000002.json.0123").write_bytes(b'{"version":1,"num')
    assert sorted(log.read().files) == ["a"]
    _commit(log, "b")
    assert sorted(log.read().files) == ["a", "b"]


@pytest.mark.parametrize("change", [lambda raw: raw[:-20], lambda raw: raw.replace(b'"rows":1', b'"rows":2')])
def test_a_damaged_commit_is_named_and_never_guessed_at(tmp_path: Path, change: object) -> None:
    log = ArchiveLog(tmp_path)
    _commit(log, "a")
    file = tmp_path / "_log" / "00000000000000000001.json"
    file.write_bytes(change(file.read_bytes()))  # type: ignore[operator]
    with pytest.raises(StorageCorrupt, match=r"00000000000000000001\.json is damaged"):
        log.read()


def test_a_queue_that_is_made_anew_keeps_its_earlier_histories_and_when_they_ended(tmp_path: Path) -> None:
    log = ArchiveLog(tmp_path)
    first, second = Position(seq=3, began_ns=1), Position(generation=2, began_ns=9)
    _commit(log, queues={"q": first, "other": Position(seq=1)})
    _commit(log, gone={"q": 5})
    assert log.read().gone == {"q": 5}
    _commit(log, queues={"q": second})
    _commit(log, gone={"other": 6}, queues={"other": second})
    state = log.read()
    assert state.gone == {}
    assert state.histories("q") == [Position(seq=3, began_ns=1, gone_ns=5), second]
    assert state.histories("other") == [Position(seq=1, gone_ns=6), second]
    assert ArchiveLog(tmp_path).read() == state


def test_what_was_read_stays_as_it_is_and_only_what_came_since_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, other = ArchiveLog(tmp_path), ArchiveLog(tmp_path)
    _commit(log, "a")
    before = log.read()
    _commit(other, "b", queues={"q": Position(seq=1)}, removed=["a"])
    (tmp_path / "_log" / "00000000000000000001.json").write_bytes(b"not read again")
    assert sorted(log.read().files) == ["b"]
    assert (sorted(before.files), before.queues) == (["a"], {})


def test_an_older_copy_that_is_put_in_its_place_is_read_as_it_is(tmp_path: Path) -> None:
    log = ArchiveLog(tmp_path)
    for path in ("a", "b"):
        _commit(log, path)
    assert log.read().number == 2
    (tmp_path / "_log" / "00000000000000000002.json").unlink()
    assert sorted(log.read().files) == ["a"]
    _commit(log, "c")
    assert sorted(ArchiveLog(tmp_path).read().files) == ["a", "c"]


def test_an_archive_is_not_begun_among_the_files_of_others(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text("mine")
    with pytest.raises(InvalidConfig, match="not those of an archive"):
        ArchiveLog(tmp_path).check_own()
    with pytest.raises(InvalidConfig, match="is a file"):
        ArchiveLog(tmp_path / "mine.csv").check_own()
    ArchiveLog(tmp_path / "new").check_own()
    begun = ArchiveLog(tmp_path / "begun")
    begun.identity()
    begun.check_own()


def test_what_nobody_needs_is_deleted_and_nothing_that_others_have_put_there(tmp_path: Path) -> None:
    log = ArchiveLog(tmp_path)
    _commit(log, "a")
    part = tmp_path / "events" / "queue=q" / "day=2026-11-16"
    part.mkdir(parents=True)
    left = [
        part / "0123456789abcdef-0000.parquet",
        part / "0123456789abcdef-merged.parquet",
        tmp_path / "_log" / f".00000000000000000009.json.{'0' * 32}",
    ]
    others = [tmp_path / "events" / "mine.parquet", part / "mine.csv", tmp_path / "_log" / ".keep"]
    for path in (*left, *others):
        path.write_text("x")
    soon, later = SystemClock().now_ns() + to_ns(3000), SystemClock().now_ns() + to_ns(4000)
    assert clean(log, ManualClock(soon), keep_s=0) == 0
    assert clean(log, ManualClock(later), keep_s=0) == 3
    assert [path for path in (*left, *others) if path.exists()] == others


def test_a_file_that_is_committed_while_others_clean_up_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, later_ns = ArchiveLog(tmp_path), SystemClock().now_ns() + to_ns(4000)
    path = "events/queue=q/day=2026-11-16/0123456789abcdef-0000.parquet"
    (tmp_path / path).parent.mkdir(parents=True)
    (tmp_path / path).write_bytes(b"123456789")
    looked = merging._own_files

    def meanwhile(root: Path) -> list[str]:
        found = list(looked(root))
        _commit(ArchiveLog(root), path)
        return found

    monkeypatch.setattr(merging, "_own_files", meanwhile)
    assert clean(log, ManualClock(later_ns), keep_s=0) == 0
    assert (tmp_path / path).exists()


def test_a_file_that_is_about_to_be_committed_has_another_hour(tmp_path: Path) -> None:
    log, path = ArchiveLog(tmp_path), tmp_path / "events" / "day=2026-11-16" / "0123456789abcdef-0000.parquet"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"123456789")
    os.utime(path, (0, 0))
    with pytest.raises(ArchiveBusy):
        log.commit(Commit(added=[_file(str(path.relative_to(tmp_path)))]), lambda _: False)
    assert clean(log, SystemClock(), keep_s=0) == 0
    assert path.exists()


def test_a_commit_whose_number_was_taken_and_tidied_away_meanwhile_gets_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "STATE_EVERY", 3)
    late, put = ArchiveLog(tmp_path), ArchiveLog._put
    _commit(late, "a")

    def held_up(log: ArchiveLog, path: Path, raw: bytes) -> bool:
        monkeypatch.setattr(ArchiveLog, "_put", put)
        others = ArchiveLog(tmp_path)
        for number in range(8):
            _commit(others, f"other-{number}")
        others.tidy()
        assert not path.exists()
        return put(log, path, raw)

    (tmp_path / "late").write_bytes(b"123456789")
    monkeypatch.setattr(ArchiveLog, "_put", held_up)
    state = late.commit(Commit(added=[_file("late")]), lambda _: True)
    assert (state.number, "late" in ArchiveLog(tmp_path).read().files) == (10, True)


def test_a_commit_that_a_state_has_in_it_already_is_not_made_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "STATE_EVERY", 3)
    log, put = ArchiveLog(tmp_path), ArchiveLog._put
    _commit(log, "a")

    def hurried(log: ArchiveLog, path: Path, raw: bytes) -> bool:
        monkeypatch.setattr(ArchiveLog, "_put", put)
        made = put(log, path, raw)
        for number in range(5):
            _commit(ArchiveLog(tmp_path), f"other-{number}")
        return made

    monkeypatch.setattr(ArchiveLog, "_put", hurried)
    _commit(log, "b")
    assert (log.read().number, len(log.read().files)) == (7, 7)


def test_a_missing_commit_is_a_gap_and_told(tmp_path: Path) -> None:
    log = ArchiveLog(tmp_path)
    for path in ("a", "b", "c"):
        _commit(log, path)
    (tmp_path / "_log" / "00000000000000000002.json").unlink()
    with pytest.raises(StorageCorrupt, match="gap"):
        ArchiveLog(tmp_path).read()


def test_an_archive_of_a_later_version_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = ArchiveLog(tmp_path)
    _commit(log, "a", version=2)
    with pytest.raises(InvalidConfig, match="version 2"):
        log.read()


@pytest.mark.parametrize("folder", ["s3a://bucket/archive", "hdfs://host/archive"])
def test_an_object_store_is_refused_with_the_reason(folder: str) -> None:
    with pytest.raises(InvalidConfig, match="created at most once"):
        ArchiveLog(folder)


def test_a_folder_whose_name_spark_takes_for_a_pattern_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="patterns"):
        ArchiveLog(tmp_path / "a*b")
