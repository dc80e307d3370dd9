"""Rekeying: from plain to encrypted, from key to key, back to plain, and interrupted anywhere."""

from __future__ import annotations

import threading
from pathlib import Path
from random import Random

import pytest

from penstock import (
    DecryptFailed,
    KeyMissing,
    ManualClock,
    NewMessage,
    Penstock,
    Queue,
    StorageCorrupt,
    StorageFull,
)
from penstock.backends.base import RekeyReport
from penstock.backends.embedded import rekey
from penstock.backends.embedded.backend import EmbeddedBackend
from penstock.backends.embedded.encryption import RULES
from penstock.backends.embedded.keys import SPACES
from penstock.codec.sealed import key_id_of
from penstock.config import EncryptionSettings
from penstock.kv.memory import Faults, MemoryStore, SimulatedCrash
from penstock.kv.sealed import SealedStore
from penstock.settings import queue_settings
from tests.encryption.stores import (
    ALL_KEYS,
    SECRETS,
    Keys,
    contents,
    fill,
    opened,
    raw_store,
    rows,
    secrets_in,
)

ROUTES = [(None, "main"), ("main", "new"), ("main", None)]


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rekey, "ROWS_PER_SLICE", 7)


def key_ids(folder: Path) -> dict[str | None, int]:
    """Secret values by the key that they are sealed with, None for plain ones."""
    found: dict[str | None, int] = {}
    with raw_store(folder) as store:
        for space, rule in RULES.items():
            for key, value in rows(store, space).items():
                key_id = key_id_of(value)
                if key_id is not None or rule(key, value):
                    found[key_id] = found.get(key_id, 0) + 1
    return found


@pytest.mark.parametrize(("old", "new"), ROUTES)
def test_afterwards_everything_is_sealed_with_the_new_key_and_nothing_else_has_changed(
    tmp_path: Path, old: str | None, new: str | None
) -> None:
    clock = ManualClock()
    with opened(tmp_path, old, clock=clock) as ps:
        fill(ps)
        before = contents(ps)
    secret = key_ids(tmp_path)
    assert set(secret) == {old}
    with opened(tmp_path, new, clock=clock) as ps:
        assert ps.info().default.rekey_from == [old or ""]
        report = ps.rekey()
        assert (report.rewritten, report.unreadable) == (secret[old], 0)
        assert report.records >= report.rewritten
        assert ps.info().default.rekey_from == []
        assert contents(ps) == before
        assert ps.check().problems == []
    assert key_ids(tmp_path) == {new: secret[old]}


def test_the_files_forget_plain_text_even_while_the_store_is_open(tmp_path: Path) -> None:
    with opened(tmp_path, None) as ps:
        fill(ps)
    assert set(SECRETS) - secrets_in(tmp_path) <= {"removed-payload"}
    with opened(tmp_path, "main") as ps:
        ps.rekey()
        assert secrets_in(tmp_path) == set()
    assert secrets_in(tmp_path) == set()


def test_the_files_forget_what_an_old_key_could_open(tmp_path: Path) -> None:
    with opened(tmp_path, "main") as ps:
        fill(ps)
    with raw_store(tmp_path) as store:
        old = {value for space in RULES for value in rows(store, space).values() if value[0] == 0xE1}
    with opened(tmp_path, "new") as ps:
        ps.rekey()
        raw = b"".join(file.read_bytes() for file in tmp_path.iterdir() if file.is_file())
        assert not any(value in raw for value in old)
        # Not even its name, but for the verifier that the last opening listed.
        assert raw.count(b"\xe1\x04main") == 0


def test_old_keys_are_needed_until_it_is_over_and_not_any_more(tmp_path: Path) -> None:
    with opened(tmp_path, "main") as ps:
        fill(ps)
    opened(tmp_path, "new").close()
    with pytest.raises(KeyMissing, match="'main'"):
        opened(tmp_path, "new", Keys("new"))
    with opened(tmp_path, "new") as ps:
        ps.rekey()
        before = contents(ps)
    with opened(tmp_path, "new", Keys("new")) as ps:
        assert contents(ps) == before


def test_a_store_that_was_made_plain_needs_no_key(tmp_path: Path) -> None:
    with opened(tmp_path, "main") as ps:
        fill(ps)
    with opened(tmp_path, None) as ps:
        ps.rekey()
    provider = Keys()
    with opened(tmp_path, None, provider, follow=True) as ps:
        assert ps.info().default.sealed_with is None
        assert ps.state.get("state-key") == SECRETS["user-state"].encode()
    assert provider.asked == []


@pytest.mark.parametrize("key_id", ["main", None])
def test_with_nothing_to_do_it_does_nothing(tmp_path: Path, key_id: str | None) -> None:
    with opened(tmp_path, key_id) as ps:
        fill(ps)
        assert ps.rekey() == RekeyReport()
        told: list[tuple[str, int, int]] = []
        assert ps.rekey(lambda *what: told.append(what)) == RekeyReport()
        assert told == []


def test_progress_goes_up_to_the_end(tmp_path: Path) -> None:
    with opened(tmp_path, None) as ps:
        fill(ps)
    with opened(tmp_path, "main") as ps:
        told: list[tuple[str, int, int]] = []
        ps.rekey(lambda what, done, total: told.append((what, done, total)))
    steps = [(done, total) for what, done, total in told if what == "rekey"]
    assert steps == sorted(steps)
    assert all(0 < done <= total for done, total in steps)
    assert told[-2:] == [("compact", 0, 1), ("compact", 1, 1)]


def start(ps: Penstock, slices: int) -> None:
    """Begin, and be interrupted by the progress callback after some slices."""

    class Stop(Exception):
        pass

    seen = []

    def stop(*what: object) -> None:
        seen.append(what)
        if len(seen) == slices:
            raise Stop

    with pytest.raises(Stop):
        ps.rekey(stop)


def test_what_was_started_goes_on_by_sweeping_after_reopening(tmp_path: Path) -> None:
    clock = ManualClock()
    with opened(tmp_path, None, clock=clock) as ps:
        fill(ps)
        before = contents(ps)
    with opened(tmp_path, "main", clock=clock) as ps:
        start(ps, 3)
    with opened(tmp_path, follow=True, clock=clock) as ps:
        while ps.sweep():
            pass
        assert ps.info().default.rekey_from == []
        assert contents(ps) == before
        assert ps.rekey() == RekeyReport()
    assert set(key_ids(tmp_path)) == {"main"}


def test_another_target_starts_it_anew_and_nothing_is_left_behind(tmp_path: Path) -> None:
    with opened(tmp_path, None) as ps:
        fill(ps)
    with opened(tmp_path, "main") as ps:
        start(ps, 4)
    with opened(tmp_path, "new") as ps:
        assert ps.info().default.rekey_from == ["", "main"]
        ps.rekey()
        assert ps.check().problems == []
    assert set(key_ids(tmp_path)) == {"new"}


def test_a_wrong_setting_for_one_opening_decrypts_nothing(tmp_path: Path) -> None:
    with opened(tmp_path, "main") as ps:
        fill(ps)
    with opened(tmp_path, "new") as ps:
        start(ps, 2)
    before = key_ids(tmp_path)
    with opened(tmp_path, None) as ps:
        while ps.sweep():
            pass
    assert key_ids(tmp_path) == before


def test_a_write_behind_or_before_the_position_is_sealed_with_the_new_key(tmp_path: Path) -> None:
    with opened(tmp_path, "main") as ps:
        q = ps.create_queue("q")
        q.enqueue_many([NewMessage(b"%d" % n) for n in range(100)])
    with opened(tmp_path, "new") as ps:
        q = ps.queue("q")

        def work(*what: object) -> None:
            q.enqueue(b"more")
            for delivery in q.lease(3):
                q.nack([delivery.receipt], reason="later")
            ps.state.put(f"state {len(what)}", b"")

        ps.rekey(work)
        assert ps.check().problems == []
    assert set(key_ids(tmp_path)) == {"new"}


def test_a_record_that_does_not_open_is_left_alone_and_its_key_is_kept(tmp_path: Path) -> None:
    with opened(tmp_path, "main") as ps:
        ids = [
            str(r.id) for r in ps.create_queue("q").enqueue_many([NewMessage(b"%d" % n) for n in range(9)])
        ]
    with raw_store(tmp_path) as store:
        key, value = next(iter(rows(store, "messages").items()))
        batch = store.batch()
        batch.put(key, value[:-1] + bytes((value[-1] ^ 1,)), store.space("messages"))
        store.write(batch)
    with opened(tmp_path, "new") as ps:
        assert ps.rekey().unreadable == 1
        assert ps.info().default.rekey_from == ["main"]
        with pytest.raises(DecryptFailed, match="'main'"):
            ps.queue("q").get(ids[0])
    assert key_ids(tmp_path)["main"] == 1
    with pytest.raises(KeyMissing, match="'main'"):
        opened(tmp_path, "new", Keys("new"))
    with opened(tmp_path, "new") as ps:
        ps.queue("q").lease(9)
        ps.queue("q").purge("dead")
        assert ps.rekey().unreadable == 0
    opened(tmp_path, "new", Keys("new")).close()


def test_damage_stops_it_with_a_reason_in_health_and_calling_again_takes_it_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path, None) as ps:
        fill(ps)
    with opened(tmp_path, "main") as ps:
        start(ps, 2)

        def damaged(*args: object) -> None:
            raise StorageCorrupt("a damaged block")

        with monkeypatch.context() as patched:
            patched.setattr(SealedStore, "renew", damaged)
            while ps.sweep():
                pass
            assert ps.health().status == "degraded"
            assert ["a damaged block" in why for why in ps.health().reasons["default"]].count(True) == 1
            ps.queue("q").enqueue(b"still working")
            with pytest.raises(StorageCorrupt, match="a damaged block"):
                ps.rekey()
        ps.rekey()
        assert not any("rekey" in why for why in ps.health().reasons.get("default", []))
    assert set(key_ids(tmp_path)) == {"main"}


def test_traffic_goes_on_while_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rekey, "ROWS_PER_SLICE", 50)
    with opened(tmp_path, "main") as ps:
        ps.create_queue("q").enqueue_many([NewMessage(bytes(100)) for _ in range(20_000)])
    with opened(tmp_path, "new") as ps:
        q, during = ps.queue("q"), 0
        running = threading.Thread(target=ps.rekey)
        running.start()
        while running.is_alive():
            deliveries = q.lease(5)
            assert len(deliveries) == 5
            assert all(outcome.ok for outcome in q.ack([d.receipt for d in deliveries]))
            q.enqueue(b"meanwhile")
            during += 1
        running.join()
        assert during > 5
        assert ps.check().problems == []
        assert ps.info().default.rekey_from == []
    assert set(key_ids(tmp_path)) == {"new"}


# -- with faults --------------------------------------------------------------------------------------


def memory_backend(store: MemoryStore, key_id: str | None) -> EmbeddedBackend:
    return EmbeddedBackend(
        store,
        engine_name="memory",
        clock=ManualClock(),
        rng=Random(1),
        durability="os",
        encryption=EncryptionSettings(enabled=key_id is not None, key_id=key_id or "main"),
        provider=ALL_KEYS,
    )


@pytest.mark.parametrize(("old", "new"), ROUTES)
@pytest.mark.parametrize("power_cut", [False, True])
def test_a_crash_at_any_write_loses_nothing_and_it_goes_on(
    old: str | None, new: str | None, power_cut: bool
) -> None:
    prepared = MemoryStore(SPACES, Faults())
    backend = memory_backend(prepared, old)
    backend.create_queue(queue_settings("q", {}))
    backend.enqueue("q", [NewMessage(b"%d" % n, dedup_id=f"{n}") for n in range(40)])
    prepared.sync()
    before = [message.payload for message in Queue(backend, "q").iter()]
    steps = crashes = 0
    while True:
        steps += 1
        faults = Faults(crash_at_step=steps, crash_moment="after")
        store = prepared.reopen(faults)
        try:
            memory_backend(store, new).rekey()
        except SimulatedCrash:
            crashes += 1
        else:
            break
        left = store.crash(Random(steps)) if power_cut else store.reopen()
        backend = memory_backend(left, new)
        assert backend.check().problems == []
        assert [message.payload for message in Queue(backend, "q").iter()] == before
        while backend.sweep(10):
            pass
        backend.rekey()
        assert backend.info().rekey_from == []
        assert backend.check().problems == []
        assert [message.payload for message in Queue(backend, "q").iter()] == before
        raw = left.scan(left.space("messages"), b"", None)
        assert {key_id_of(value) for _, value in raw} == {new}
    assert crashes > 5


def test_a_failed_write_stops_it_and_calling_again_takes_it_up() -> None:
    store = MemoryStore(SPACES, Faults())
    backend = memory_backend(store, None)
    backend.create_queue(queue_settings("q", {}))
    backend.enqueue("q", [NewMessage(b"%d" % n) for n in range(40)])
    faults = Faults(recovers=True)
    second = memory_backend(store.reopen(faults), "main")
    faults.fail_write_at = faults.writes + 4
    with pytest.raises(StorageFull, match="no room"):
        second.rekey()
    assert second.rekey().unreadable == 0
    assert second.check().problems == []
