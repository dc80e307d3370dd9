"""Rekeying beside bulk writes and snapshots: what was begun comes, what is read stays, nothing is left."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

import penstock
from penstock import NewMessage, Penstock, StorageError, Txn, WriteTicket
from penstock.backends.bulk import BulkRequest, Snapshot, Staged
from penstock.backends.redis import rekeying
from penstock.backends.registry import open_reader, open_writer, release_snapshot
from penstock.testing.harness import drain
from tests.encryption.stores import ALL_KEYS, SECRETS, Keys
from tests.redis.interrupting import after
from tests.redis.sealed import everything, readable
from tests.redis.servers import wait_until
from tests.redis.stores import Place

PAYLOAD = SECRETS["payload"].encode()
ROWS = 1200
TXN = Txn("app", 1)


@pytest.fixture
def place() -> Iterator[Place]:
    made = Place()
    yield made
    made.close()


@pytest.fixture(params=["lists", "streams"])
def any_place(request: pytest.FixtureRequest) -> Iterator[Place]:
    made = Place(request.param)
    yield made
    made.close()


def begun(place: Place, key_id: str | None) -> Penstock:
    return place.open() if key_id is None else place.sealed(ALL_KEYS, key_id)


def staged(ps: Penstock, txn: Txn = TXN) -> tuple[WriteTicket, list[Staged]]:
    ticket = ps.begin_write("q")
    with open_writer(ticket, ALL_KEYS) as writer:
        return ticket, [writer.stage(txn, 0, [pa.record_batch({"payload": [PAYLOAD] * ROWS})])]


def killed() -> None:
    raise StorageError("killed")


def nobody_is_at_it(place: Place) -> None:
    for key in place.client.keys(f"{place.prefix}*busy:*"):
        place.client.delete(key)


# -- bulk writes


@pytest.mark.parametrize("before", [None, "main"])
def test_a_commit_that_was_cut_short_comes_in_before_its_rows_are_sealed_anew(
    any_place: Place, monkeypatch: pytest.MonkeyPatch, before: str | None
) -> None:
    place = any_place
    ps = begun(place, before)
    ps.create_queue("q")
    ticket, parts = staged(ps)
    after(monkeypatch, ps, "ingest", 1, killed)
    with pytest.raises(StorageError, match="killed"):
        ps.commit_write(ticket, TXN, parts)
    ps.close()
    new = place.sealed(ALL_KEYS, "new")
    assert new.queue("q").length() == 500
    new.rekey()
    assert new.queue("q").length() == ROWS
    nobody_is_at_it(place)
    new.sweep()
    done = new.commit_write(ticket, TXN, parts)
    assert (done.again, done.enqueued) == (True, ROWS)
    if place.kind == "lists":  # Entries of streams keep the key that they have.
        new.close()
        new = place.sealed(Keys("new"), "new")
        assert readable(place) == set()
    assert drain(new.queue("q")) == [PAYLOAD] * ROWS
    assert new.check().ok


def test_nothing_begins_under_a_key_that_is_another_by_then(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    ps = place.sealed(ALL_KEYS)
    ps.create_queue("q")
    ticket, parts = staged(ps)
    backend: Any = ps._default
    fence = backend._writing._fence

    def meanwhile(of: WriteTicket) -> bytes:
        found: bytes = fence(of)
        monkeypatch.setattr(backend._writing, "_fence", fence)
        place.sealed(ALL_KEYS, "new").rekey()
        return found

    monkeypatch.setattr(backend._writing, "_fence", meanwhile)
    with pytest.raises(StorageError, match="'main', but the store is now written with 'new'"):
        ps.commit_write(ticket, TXN, parts)
    assert ps.queue("q").length() == 0
    again, parts = staged(ps)
    assert ps.commit_write(again, TXN, parts).enqueued == ROWS
    assert drain(ps.queue("q")) == [PAYLOAD] * ROWS


def test_rows_that_no_commit_would_take_any_more_go_and_the_others_stay(place: Place) -> None:
    ps = place.open()
    ps.create_queue("q")
    staged(ps)
    assert readable(place) == {"payload"}
    new = place.sealed(ALL_KEYS, "new")
    ticket, parts = staged(new, Txn("other", 1))
    new.rekey()
    assert readable(place) == set()
    assert new.commit_write(ticket, Txn("other", 1), parts).enqueued == ROWS
    assert drain(new.queue("q")) == [PAYLOAD] * ROWS


def test_a_task_stages_nothing_more_under_a_key_that_is_another_by_now(place: Place) -> None:
    ps = place.open()
    ps.create_queue("q")
    ticket = ps.begin_write("q")

    def batches() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"payload": [PAYLOAD] * ROWS})
        place.sealed(ALL_KEYS).rekey()
        yield pa.record_batch({"payload": [PAYLOAD] * ROWS})

    with open_writer(ticket, ALL_KEYS) as writer, pytest.raises(StorageError, match="run the job again"):
        writer.stage(TXN, 0, batches())
    assert readable(place) == set()


# -- snapshots


def payloads(snapshot: Snapshot, place: Place) -> list[bytes]:
    with open_reader(snapshot, ALL_KEYS, clock=place.clock) as reader:
        plan = reader.plan(BulkRequest(table="messages", columns=("payload",)))
        return sorted(
            row["payload"]
            for part in plan.partitions
            for batch in reader.read(part)
            for row in batch.to_pylist()
        )


@pytest.mark.parametrize("before", [None, "main"])
def test_what_a_snapshot_has_kept_can_be_read_until_it_ends_and_is_gone_with_the_old_key(
    place: Place, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, before: str | None
) -> None:
    monkeypatch.setattr(rekeying, "TELL_EVERY", 2)
    ps = begun(place, before)
    q, gone = ps.create_queue("q"), ps.create_queue("gone")
    replaced = q.enqueue(PAYLOAD)
    gone.enqueue(PAYLOAD + b" of a queue that is deleted")
    snapshot = ps.take_snapshot()
    q.upsert([NewMessage(b"another", id=replaced)])
    ps.delete_queue("gone")
    new = place.sealed(ALL_KEYS, "new")
    ending = threading.Thread(target=new.rekey, daemon=True)
    with caplog.at_level(logging.WARNING, "penstock"):
        ending.start()
        assert wait_until(lambda: "snapshot that was taken before" in caplog.text, 30)
    shown = [PAYLOAD, PAYLOAD + b" of a queue that is deleted"]
    assert payloads(snapshot, place) == shown
    later = new.take_snapshot()  # Nobody waits for those that are taken now.
    assert new.info().default.rekey_from == [before or ""]
    release_snapshot(snapshot)
    ending.join(30)
    assert not ending.is_alive()
    assert new.info().default.rekey_from == []
    assert readable(place) == set()
    assert payloads(later, place) == [b"another"]
    release_snapshot(later)
    assert not [key for key in everything(place) if b"{gone}" in key]
    assert new.check().ok


def test_a_snapshot_that_nobody_reads_any_more_holds_nothing_up(place: Place) -> None:
    ps = place.open()
    q = ps.create_queue("q")
    message = q.enqueue(PAYLOAD)
    ps.take_snapshot(lifetime_s=60)
    q.upsert([NewMessage(b"another", id=message)])
    place.clock.advance(61)
    new = place.sealed(ALL_KEYS)
    new.rekey()
    assert readable(place) == set()
    assert drain(new.queue("q")) == [b"another"]


def test_a_deleted_queue_is_gone_with_the_last_snapshot_that_shows_it(place: Place) -> None:
    ps = place.open()
    ps.create_queue("gone").enqueue(PAYLOAD)
    first, second = ps.take_snapshot(), ps.take_snapshot()
    ps.delete_queue("gone")
    ps.create_queue("gone").enqueue(b"of another")
    release_snapshot(first)
    assert payloads(second, place) == [PAYLOAD]
    release_snapshot(second)
    assert readable(place) == set()
    assert drain(ps.queue("gone")) == [b"of another"]
    with pytest.raises(penstock.PenstockError):
        payloads(second, place)
