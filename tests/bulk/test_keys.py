"""Bulk reads of encrypted stores: with the keys they are like any, without them nothing is read."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock import DecryptFailed, KeyMissing
from penstock.backends.embedded import keys as layout
from penstock.backends.registry import open_reader
from penstock.message import parse_id
from tests.bulk.reading import raw_store, read
from tests.encryption.stores import ALL_KEYS, Keys, fill, opened, secrets_in


def test_with_the_key_everything_is_read(tmp_path: Path) -> None:
    with opened(tmp_path / "s") as ps:
        fill(ps)
        snapshot = ps.take_snapshot()
        payloads = {message.id: message.payload for message in ps.queue("q").iter()}
        entries = ps.journal("world").scan()
    found = read(snapshot, "messages", names=("q",), keys=ALL_KEYS)
    assert {row["id"]: row["payload"] for row in found} == payloads
    assert [row["body"] for row in read(snapshot, "entries", names=("world",), keys=ALL_KEYS)] == [
        entry.body for entry in entries
    ]
    assert {row["kind"] for row in read(snapshot, "events", keys=ALL_KEYS)} >= {"nacked", "dead"}
    assert secrets_in(Path(snapshot.place)) == set()


def test_keys_come_from_the_environment_unless_they_are_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path / "s") as ps:
        fill(ps)
        snapshot = ps.take_snapshot()
    with pytest.raises(KeyMissing, match="PENSTOCK_KEY_MAIN"):
        open_reader(snapshot)
    monkeypatch.setenv("PENSTOCK_KEY_MAIN", ALL_KEYS.known["main"].hex())
    assert read(snapshot, "messages")


def test_without_the_key_or_with_another_nothing_is_read(tmp_path: Path) -> None:
    with opened(tmp_path / "s") as ps:
        fill(ps)
        snapshot = ps.take_snapshot()
    with pytest.raises(KeyMissing, match="'main'"):
        open_reader(snapshot, Keys())
    with pytest.raises(DecryptFailed, match="key 'main' is not the one"):
        open_reader(snapshot, Keys(main=bytes(32)))
    # The reader that was refused has let go of everything: the right key opens it.
    assert read(snapshot, "queues", keys=ALL_KEYS)


def test_a_store_between_two_keys_is_read_with_both(tmp_path: Path) -> None:
    with opened(tmp_path / "s") as ps:
        fill(ps)
    with opened(tmp_path / "s", "new") as ps:
        ps.queue("q").enqueue(b"new")
        snapshot = ps.take_snapshot()
        expected = {message.id for message in ps.queue("q").iter()}
    assert {row["id"] for row in read(snapshot, "messages", names=("q",), keys=ALL_KEYS)} == expected
    with pytest.raises(KeyMissing, match="'main'"):
        open_reader(snapshot, Keys("new"))


def test_a_record_in_another_ones_place_does_not_open(tmp_path: Path) -> None:
    with opened(tmp_path / "s") as ps:
        q = ps.create_queue("q")
        first, second = q.enqueue(b"1"), q.enqueue(b"2")
        snapshot = ps.take_snapshot()
    with raw_store(snapshot.place) as store:
        space = store.space("messages")
        batch = store.batch()
        record = store.get(layout.message(1, parse_id(first)), space)
        assert record is not None
        batch.put(layout.message(1, parse_id(second)), record, space)
        store.write(batch)
    with pytest.raises(DecryptFailed, match=f"queue 'q', message {second}: "):
        read(snapshot, "messages", keys=ALL_KEYS)
    rows = read(snapshot, "messages", keys=ALL_KEYS, on_damage="skip")
    assert [row["payload"] for row in rows] == [b"1"]


def test_a_key_that_is_thrown_away_is_missed_at_once_and_not_in_the_middle(tmp_path: Path) -> None:
    with opened(tmp_path / "s") as ps:
        ps.create_queue("q").enqueue(b"1")
        snapshot = ps.take_snapshot()
    provider = Keys("main")
    with open_reader(snapshot, provider) as reader:
        provider.known.clear()
        assert reader.snapshot == snapshot
