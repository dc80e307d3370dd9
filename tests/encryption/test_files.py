"""Nothing secret is in the files of an encrypted store, whichever way it got there."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock import Entry, ManualClock
from penstock.kv.wal import SET_ASIDE
from tests.encryption.stores import SECRETS, contents, fill, opened, raw_store, rows, secrets_in


def test_without_encryption_every_secret_can_be_read(tmp_path: Path) -> None:
    ps = opened(tmp_path, None)
    fill(ps)
    assert secrets_in(tmp_path) == set(SECRETS)
    ps.close()


def test_with_encryption_no_file_shows_a_secret_while_open_or_closed_or_compacted(tmp_path: Path) -> None:
    ps = opened(tmp_path)
    fill(ps)
    assert secrets_in(tmp_path) == set(), "in the log"
    ps.close()
    assert secrets_in(tmp_path) == set(), "in tables"
    with raw_store(tmp_path) as store:
        store.compact()
        assert secrets_in(tmp_path) == set(), "compacted"
    names = {file.name.split("-")[0].rstrip("0123456789") for file in tmp_path.iterdir()}
    assert {"MANIFEST", "OPTIONS", "LOG", "PENSTOCK", "CURRENT"} <= names


def test_what_is_read_is_what_was_written(tmp_path: Path) -> None:
    clock = ManualClock()
    with (
        opened(tmp_path / "plain", None, clock=clock) as plain,
        opened(tmp_path / "sealed", clock=clock) as ps,
    ):
        for system in (plain, ps):
            fill(system)
        assert contents(plain) == contents(ps)
        for system in (plain, ps):
            clock.advance(100)
            system.sweep()
            assert system.check().problems == []
        text = SECRETS["dedup-id"]
        repeated = ps.queue("q").enqueue(b"again", dedup_id=f"{text}-7")
        assert ps.queue("q").get(repeated).payload == SECRETS["payload"].encode()


def test_what_is_set_aside_of_a_damaged_log_shows_no_secret(tmp_path: Path) -> None:
    ps = opened(tmp_path)
    fill(ps)
    # A copy of what a killed process leaves: its log, and damage in it that RocksDB would hang on.
    left = tmp_path.parent / "left"
    left.mkdir()
    for file in tmp_path.iterdir():
        if file.is_file():
            (left / file.name).write_bytes(file.read_bytes())
    ps.close()
    (log,) = [file for file in left.glob("*.log") if file.stat().st_size]
    raw = bytearray(log.read_bytes())
    raw[6] = 5  # The type of the first record.
    log.write_bytes(raw)
    opened(left).close()
    assert list((left / SET_ASIDE).iterdir())
    assert secrets_in(left) == set()


def test_what_stays_readable_is_what_the_page_says(tmp_path: Path) -> None:
    with opened(tmp_path) as ps:
        q = ps.create_queue("queue-name")
        q.cursor("cursor-name")
        q.enqueue(b"", fairness_key="fairness-key")
        q.lease(consumer="consumer-name")
        ps.journal("world-name").append([Entry("kind")])
        ps.state.put("state-key", b"")
        # From the log: tables leave out what a key shares with the one before it.
        raw = b"".join(file.read_bytes() for file in tmp_path.glob("*.log"))
    for name in ("queue-name", "world-name", "cursor-name", "fairness-key", "consumer-name", "state-key"):
        assert name.encode() in raw, name


def test_dedup_ids_are_hashed_with_a_secret_that_each_store_has_for_itself(tmp_path: Path) -> None:
    found: list[bytes] = []
    for name in ("one", "other"):
        with opened(tmp_path / name, None) as ps:
            ps._default._engine.dedup_secret = name.encode()  # type: ignore[attr-defined]
            ps.create_queue("q").enqueue(b"", dedup_id="the same")
        with raw_store(tmp_path / name) as store:
            found += rows(store, "dedup")
    assert len(set(found)) == 2


@pytest.mark.parametrize("key_id", ["main", None])
def test_a_dedup_id_is_recognized_after_reopening(tmp_path: Path, key_id: str | None) -> None:
    with opened(tmp_path, key_id) as ps:
        first = ps.create_queue("q").enqueue(b"first", dedup_id="order 7")
    with opened(tmp_path, key_id) as ps:
        assert ps.queue("q").enqueue(b"second", dedup_id="order 7") == first
