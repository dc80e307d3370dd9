"""Wrong and missing keys, altered and swapped records: each is refused by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import DecryptFailed, InvalidConfig, KeyMissing, ManualClock, NewMessage, StorageCorrupt
from penstock.backends.embedded import keys
from penstock.backends.embedded.keys import Meta
from penstock.config import Config, EncryptionSettings, StorageSettings
from tests.encryption.stores import KEYS, Keys, fill, opened, raw_store, rows


def everything(folder: Path) -> dict[str, dict[bytes, bytes]]:
    with raw_store(folder) as store:
        return {space: rows(store, space) for space in keys.SPACES}


# -- keys -------------------------------------------------------------------------------------------


@pytest.fixture
def sealed(tmp_path: Path) -> Path:
    with opened(tmp_path) as ps:
        fill(ps)
    return tmp_path


@pytest.mark.parametrize("key_id", ["main", "new", None, "follow"])
def test_a_missing_key_is_named_at_opening_with_its_variable_and_nothing_is_written(
    sealed: Path, key_id: str | None
) -> None:
    before = everything(sealed)
    with pytest.raises(KeyMissing, match=r"needs the key 'main'.*PENSTOCK_KEY_MAIN"):
        opened(sealed, key_id, Keys("new"), follow=key_id == "follow")
    assert everything(sealed) == before


@pytest.mark.parametrize("key_id", ["main", "new", None, "follow"])
def test_a_wrong_key_is_named_at_opening_and_nothing_is_written(sealed: Path, key_id: str | None) -> None:
    before = everything(sealed)
    with pytest.raises(DecryptFailed, match=r"key 'main' is not the one.*PENSTOCK_KEY_MAIN"):
        opened(sealed, key_id, Keys("new", main=KEYS["third"]), follow=key_id == "follow")
    assert everything(sealed) == before


def test_a_folder_without_settings_names_the_missing_key_too(
    sealed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PENSTOCK_KEY_MAIN", raising=False)
    with pytest.raises(KeyMissing, match="PENSTOCK_KEY_MAIN"):
        penstock.open(sealed)
    monkeypatch.setenv("PENSTOCK_KEY_MAIN", KEYS["main"].hex())
    with penstock.open(sealed, clock=ManualClock()) as ps:
        assert ps.info().default.sealed_with == "main"
        ps.queue("q").enqueue(b"from a folder")
    assert all(value[0] == 0xE1 for value in everything(sealed)["messages"].values())


def test_every_key_that_records_may_name_must_be_there(sealed: Path) -> None:
    opened(sealed, "new").close()
    for lacking in ("main", "new"):
        with pytest.raises(KeyMissing, match=f"needs the key '{lacking}'"):
            opened(sealed, "new", Keys(*{"main", "new"} - {lacking}))


def test_several_keys_are_readable_at_once(tmp_path: Path) -> None:
    for key_id in ("main", "new", "third"):
        with opened(tmp_path, key_id) as ps:
            q = ps.queue("q") if ps.queues() else ps.create_queue("q")
            q.enqueue(key_id.encode())
    with opened(tmp_path, follow=True) as ps:
        assert ps.info().default.sealed_with == "third"
        assert ps.info().default.rekey_from == ["main", "new"]
        assert [delivery.payload for delivery in ps.queue("q").lease(9)] == [b"main", b"new", b"third"]


@pytest.mark.parametrize("key", [b"short", bytes(31), bytes(33), "0" * 64])
def test_a_provider_must_give_32_bytes(tmp_path: Path, key: bytes) -> None:
    with pytest.raises(InvalidConfig, match="key 'main': the key provider must give 32 bytes"):
        opened(tmp_path, keys=Keys(main=key))


@pytest.mark.parametrize("key_id", ["", "a b", "x" * 65])
def test_an_id_that_cannot_be_used_is_refused_however_the_settings_were_made(
    tmp_path: Path, key_id: str
) -> None:
    settings = StorageSettings(path=str(tmp_path), encryption=EncryptionSettings(enabled=True, key_id=key_id))
    with pytest.raises(InvalidConfig, match="key_id is"):
        penstock.open(Config(source="test", default=settings), keys=Keys())


def test_a_store_that_never_was_encrypted_asks_for_no_key(tmp_path: Path) -> None:
    provider = Keys()
    opened(tmp_path, None, provider).close()
    opened(tmp_path, None, provider, follow=True).close()
    assert provider.asked == []


def test_a_key_is_listed_before_its_first_use(tmp_path: Path) -> None:
    opened(tmp_path, None).close()
    assert keys.meta(Meta.KEYS) not in everything(tmp_path)["meta"]
    opened(tmp_path, "main").close()
    assert b"main" in everything(tmp_path)["meta"][keys.meta(Meta.KEYS)]
    assert KEYS["main"] not in everything(tmp_path)["meta"][keys.meta(Meta.KEYS)]


# -- records ----------------------------------------------------------------------------------------


def tamper(folder: Path, space: str, change: Callable[[dict[bytes, bytes]], None]) -> None:
    with raw_store(folder) as store:
        found = rows(store, space)
        change(found)
        batch = store.batch()
        for key, value in found.items():
            batch.put(key, value, store.space(space))
        store.write(batch)


def flip_last_bit_of_the_first(found: dict[bytes, bytes]) -> None:
    key, value = next((key, value) for key, value in found.items() if value[0] == 0xE1)
    found[key] = value[:-1] + bytes((value[-1] ^ 1,))


def swap_the_first_two(found: dict[bytes, bytes]) -> None:
    one, other, *_ = [key for key, value in found.items() if value[0] == 0xE1]
    found[one], found[other] = found[other], found[one]


TAMPERINGS = [flip_last_bit_of_the_first, swap_the_first_two]


@pytest.fixture
def messages(tmp_path: Path) -> list[str]:
    with opened(tmp_path) as ps:
        results = ps.create_queue("q").enqueue_many([NewMessage(b"%d" % n) for n in range(20)])
    return [str(result.id) for result in results]


@pytest.mark.parametrize("change", TAMPERINGS)
def test_an_altered_or_swapped_body_is_refused_by_name_and_the_others_are_delivered(
    tmp_path: Path, messages: list[str], change: Callable[[dict[bytes, bytes]], None]
) -> None:
    tamper(tmp_path, "messages", change)
    bad = 1 if change is flip_last_bit_of_the_first else 2
    with opened(tmp_path) as ps:
        q = ps.queue("q")
        with pytest.raises(DecryptFailed, match=r"message body .* sealed with key 'main', does not open"):
            q.get(messages[0])
        assert [
            p for p in ps.check().problems if "'main', does not open" in p.what and messages[0] in p.where
        ]
        delivered = q.lease(100)
        assert [delivery.id for delivery in delivered] == messages[bad:]
        assert all(outcome.ok for outcome in q.ack([delivery.receipt for delivery in delivered]))
        assert [item.space for item in ps.quarantine()] == ["messages"] * bad
        assert q.stats().ready == 0


@pytest.mark.parametrize("change", TAMPERINGS)
def test_an_altered_or_swapped_journal_frame_is_refused_by_name(
    tmp_path: Path, change: Callable[[dict[bytes, bytes]], None]
) -> None:
    with opened(tmp_path) as ps:
        ps.create_queue("q").enqueue(b"")
        ps.queue("q").lease()

    def of_queue(found: dict[bytes, bytes]) -> None:
        frames = {key: value for key, value in found.items() if key[:4] == keys.u32(1)}
        change(frames)
        found.update(frames)

    tamper(tmp_path, "journal", of_queue)
    with opened(tmp_path) as ps:
        assert any("journal frame" in p.what and "does not open" in p.what for p in ps.check().problems)
        with pytest.raises(DecryptFailed, match=r"journal frame .* does not open"):
            list(ps.queue("q").events())


def test_a_record_of_one_space_does_not_open_in_another(tmp_path: Path, messages: list[str]) -> None:
    with raw_store(tmp_path) as store:
        frame = next(iter(rows(store, "journal").values()))
        key = next(iter(rows(store, "messages")))
        batch = store.batch()
        batch.put(key, frame, store.space("messages"))
        store.write(batch)
    with opened(tmp_path) as ps, pytest.raises(DecryptFailed):
        ps.queue("q").get(messages[0])


def test_an_altered_state_row_and_user_state_are_refused_by_name(tmp_path: Path) -> None:
    with opened(tmp_path) as ps:
        fill(ps)
        dead = ps.queue("dead").list("dead").items[0].id
    for space in ("state", "meta"):
        tamper(tmp_path, space, flip_each_sealed)
    with opened(tmp_path) as ps:
        with pytest.raises(DecryptFailed, match=r"state row .* does not open"):
            ps.queue("dead").get(dead)
        with pytest.raises(DecryptFailed, match=r"user state row .* does not open"):
            ps.state.get("state-key")
        problems = [problem.what for problem in ps.check().problems]
        assert any("state row" in what and "does not open" in what for what in problems)


def flip_each_sealed(found: dict[bytes, bytes]) -> None:
    """But for the secret of dedup ids: without it the store does not open at all."""
    for key, value in found.items():
        if value[0] == 0xE1 and key != keys.meta(Meta.SECRET):
            found[key] = value[:-1] + bytes((value[-1] ^ 1,))


def test_an_altered_secret_is_refused_at_opening(tmp_path: Path) -> None:
    opened(tmp_path).close()
    tamper(tmp_path, "meta", flip_last_bit_of_the_first)
    with pytest.raises(DecryptFailed, match=r"secret row .* does not open"):
        opened(tmp_path)


def test_an_altered_world_frame_is_refused_by_name(tmp_path: Path) -> None:
    with opened(tmp_path) as ps:
        ps.journal("world").append([penstock.Entry("kind")])
    tamper(tmp_path, "journal", flip_each_sealed)
    with opened(tmp_path) as ps:
        with pytest.raises(DecryptFailed, match=r"world frame .* does not open"):
            ps.journal("world").scan()
        assert any("does not open" in problem.what for problem in ps.check().problems)


def test_the_error_is_one_of_damage_so_that_every_handler_of_damage_takes_it() -> None:
    assert issubclass(DecryptFailed, StorageCorrupt)
    assert not issubclass(KeyMissing, StorageCorrupt)


# -- plain records ----------------------------------------------------------------------------------


def test_a_plain_record_does_not_count_where_all_is_sealed(tmp_path: Path) -> None:
    plain, sealed = tmp_path / "plain", tmp_path / "sealed"
    for folder, key_id in ((plain, None), (sealed, "main")):
        with opened(folder, key_id) as ps:
            ps.create_queue("q").enqueue_many([NewMessage(b"%d" % n) for n in range(3)])
            ps.state.put("s", b"value")
    # The same numbers make the same ids: what stands in the one can be put into the other.
    forged = {space: everything(plain)[space] for space in ("messages", "meta")}
    with raw_store(sealed) as store:
        batch = store.batch()
        key = next(iter(rows(store, "messages")))
        batch.put(key, forged["messages"][key], store.space("messages"))
        key = keys.meta(Meta.USER_STATE, b"s")
        batch.put(key, forged["meta"][key], store.space("meta"))
        store.write(batch)
        del batch
    with opened(sealed) as ps:
        with pytest.raises(DecryptFailed, match="is plain, in a store in which all is sealed"):
            ps.state.get("s")
        assert any("is plain" in problem.what for problem in ps.check().problems)
        assert [delivery.payload for delivery in ps.queue("q").lease(3)] == [b"1", b"2"]
    with opened(sealed, "new") as ps:
        assert ps.rekey().unreadable >= 1
        with pytest.raises(DecryptFailed, match="is plain"):
            ps.state.get("s")
        ps.check(repair=True)
        assert ps.check().problems == []


def test_plain_records_count_until_they_are_sealed_and_not_after(tmp_path: Path) -> None:
    with opened(tmp_path, None) as ps:
        ps.state.put("s", b"value")
    raw = everything(tmp_path)["meta"][keys.meta(Meta.USER_STATE, b"s")]
    with opened(tmp_path) as ps:
        assert ps.state.get("s") == b"value"
        assert ps.rekey().unreadable == 0
        kv = ps._default._kv  # type: ignore[attr-defined]  # the rows behind the facade
        kv._store.write(_put(kv._store, keys.meta(Meta.USER_STATE, b"s"), raw))
        with pytest.raises(DecryptFailed, match="is plain"):
            ps.state.get("s")


def _put(store: Any, key: bytes, raw: bytes) -> Any:
    batch = store.batch()
    batch.put(key, raw, store.space("meta"))
    return batch
