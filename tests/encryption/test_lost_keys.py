"""An encrypted store with damaged files: nothing is written plain, and a lost list of keys is made anew."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from penstock import (
    DecryptFailed,
    InvalidConfig,
    KeyMissing,
    ManualClock,
    NewMessage,
    StorageCorrupt,
    StorageError,
)
from penstock.backends.embedded import keys
from penstock.backends.embedded.keys import Meta
from penstock.codec.vault import Vault
from penstock.kv.memory import MemoryStore
from penstock.kv.sealed import SealedStore
from tests.check.damaged import damage, tables
from tests.encryption.stores import KEYS, Keys, opened, raw_store

COUNT = 100


def build(folder: Path, *key_ids: str) -> None:
    for number, key_id in enumerate(key_ids):
        with opened(folder, key_id) as ps:
            q = ps.create_queue(f"q{number}")
            q.enqueue_many([NewMessage(b"a secret %d" % n) for n in range(COUNT)])


def lose_meta(folder: Path, how: str = "flip") -> None:
    for name, space in tables(folder).items():
        if space == "meta":
            damage(folder / name, how)


@pytest.mark.parametrize("how", ["flip", "half", "index"])
@pytest.mark.parametrize("follow", [False, True])
def test_a_store_that_lost_the_list_of_its_keys_is_opened_with_them_and_repaired(
    tmp_path: Path, how: str, follow: bool
) -> None:
    build(tmp_path, "main")
    lose_meta(tmp_path, how)
    # Later: with the row that counts openings, the same numbers would make the same ids again.
    clock = ManualClock(1_800_000_000 * 10**9)
    with opened(tmp_path, follow=follow, clock=clock) as ps:
        assert ps.health().status == "degraded"
        assert ps.info().default.sealed_with == "main"
        assert ps.check(repair=True).ok
        assert sorted(m.payload for m in ps.queue("q0").iter()) == sorted(
            b"a secret %d" % n for n in range(COUNT)
        )
        ps.queue("q0").enqueue(b"a secret too")
    with opened(tmp_path, follow=True, clock=clock) as ps:
        assert ps.check().problems == []
        assert ps.health().status == "healthy"
    assert not any(b"a secret" in file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())


def test_every_key_that_a_record_names_is_asked_for_when_the_list_is_lost(tmp_path: Path) -> None:
    build(tmp_path, "main", "new")
    lose_meta(tmp_path)
    with pytest.raises(KeyMissing, match="main"):
        opened(tmp_path, "new", Keys("new"))
    with pytest.raises(InvalidConfig, match="main, new"):
        opened(tmp_path, follow=True)
    with opened(tmp_path, "new") as ps:
        assert ps.check(repair=True).ok
        assert {s.name: ps.queue(s.name).length() for s in ps.queues()} == {"q0": COUNT, "q1": COUNT}
        assert sorted(ps.info().default.rekey_from) == ["", "main"]


@pytest.mark.parametrize("also_meta", [False, True])
def test_a_wrong_key_is_not_taken_for_the_right_one_when_the_list_is_lost(
    tmp_path: Path, also_meta: bool
) -> None:
    build(tmp_path, "main")
    if also_meta:
        lose_meta(tmp_path)
    else:
        with raw_store(tmp_path) as store:
            batch = store.batch()
            batch.delete(keys.meta(Meta.KEYS), store.space("meta"))
            store.write(batch)
            del batch
    with pytest.raises(DecryptFailed, match="main"):
        opened(tmp_path, keys=Keys(main=KEYS["new"]))
    with opened(tmp_path) as ps:
        ps.check(repair=True)
        assert ps.queue("q0").lease(1)[0].payload == b"a secret 0"


def test_a_repair_of_damaged_tables_leaves_nothing_plain(tmp_path: Path) -> None:
    build(tmp_path, "main", "main")
    victim = min(name for name, space in tables(tmp_path).items() if space == "messages")
    damage(tmp_path / victim, "index")
    with opened(tmp_path) as ps:
        with pytest.raises(StorageCorrupt):
            ps.queue("q0").lease(1)
        ps.check(repair=True)
        ps.queue("q1").enqueue(b"a secret too", headers={"h": "a secret header"})
        assert ps.queue("q1").lease(1)[0].payload == b"a secret 0"
        assert ps.quarantine() == []
    assert not any(b"a secret" in file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())


class Refusing(MemoryStore):
    """A store that cannot write a space anew, nor empty it."""

    def clear(self, name: str) -> None:
        raise StorageError("no room")

    def salvage(self, name: str, wanted: Callable[[bytes, bytes | None], Iterable[bytes]]) -> None:
        raise StorageCorrupt("cannot be opened")


def test_a_space_stays_sealed_whatever_fails() -> None:
    below = Refusing(["secret", "clear"])
    rules = {"secret": lambda key, value: True, "clear": None}
    store = SealedStore(below, Vault({"main": KEYS["main"]}, "main"), rules)
    with pytest.raises(StorageCorrupt):
        store.salvage("secret", lambda start, end: [])
    with pytest.raises(StorageError):
        store.clear("secret")
    batch = store.batch()
    batch.put(b"k", b"a secret", store.space("secret"))
    store.write(batch)
    assert b"a secret" not in (below.get(b"k", below.space("secret")) or b"a secret")
    assert store.get(b"k", store.space("secret")) == b"a secret"


def test_nothing_is_written_to_a_space_without_a_rule() -> None:
    below = MemoryStore(["secret", "new"])
    store = SealedStore(below, Vault({"main": KEYS["main"]}, "main"), {"secret": lambda key, value: True})
    with pytest.raises(StorageError, match="not a space"):
        store.batch().put(b"k", b"a secret", below.space("new"))
    stale = store.space("secret")
    store.clear("secret")
    with pytest.raises(StorageError, match="not any more"):
        store.batch().put(b"k", b"a secret", stale)
