"""What leasing finds damaged it heals as a repair would: the rest of the queue goes on."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import Kind, NewMessage, StorageCorrupt
from penstock.backends.embedded import healing, keys
from penstock.backends.embedded.checking import evidence
from penstock.backends.embedded.keys import Meta
from penstock.codec import frame
from penstock.kv.base import Loss
from penstock.message import parse_id
from tests.unit.memory_system import MemorySystem


def rows_of(system: MemorySystem, space: str, message_id: str) -> list[bytes]:
    return [key for key, _ in system.rows(space) if key.endswith(parse_id(message_id))]


def drop(system: MemorySystem, space: str, key: bytes) -> None:
    batch = system.store.batch()
    batch.delete(key, system.store.space(space))
    system.store.write(batch)


@pytest.mark.parametrize("wanted", [1, 9])
def test_a_ready_row_whose_body_is_lost_is_removed_and_counted_out(wanted: int) -> None:
    system = MemorySystem()
    q = system.create("q")
    first = q.enqueue(b"1", ttl_s=60)
    q.enqueue(b"2")
    drop(system, "messages", rows_of(system, "messages", first)[0])
    assert [delivery.payload for delivery in q.lease(wanted)] == [b"2"]
    assert (q.stats().ready, q.stats().leased) == (0, 1)
    last = [event for event in q.events() if event.message_id == first][-1]
    assert (last.kind, last.extra) == (Kind.REPAIRED, "")
    assert system.problems() == []


@pytest.mark.parametrize("wanted", [1, 9])
def test_a_ready_row_of_a_message_that_left_is_removed_and_counts_nobody_out(wanted: int) -> None:
    system = MemorySystem()
    q = system.create("q")
    first = q.enqueue(b"1")
    ready, value = next(row for row in system.rows("ready") if row[0].endswith(parse_id(first)))
    q.ack([delivery.receipt for delivery in q.lease(1)])
    q.enqueue(b"2")
    system.put("ready", ready, value)
    for state in system.engine.by_qid.values():
        state.unload()
    assert [delivery.payload for delivery in q.lease(wanted)] == [b"2"]
    assert (q.stats().ready, q.stats().leased) == (0, 1)
    assert system.problems() == []


@pytest.mark.parametrize("wanted", [1, 9])
def test_a_ready_row_that_came_back_hands_out_no_message_that_is_leased(
    wanted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    system = MemorySystem()
    q = system.create("q")
    q.enqueue_many([NewMessage(b"1"), NewMessage(b"2")])
    ready, value = system.rows("ready")[0]
    held = q.lease(1)
    system.put("ready", ready, value)
    for state in system.engine.by_qid.values():
        state.unload()
    monkeypatch.setattr(system.store, "losses", lambda: [Loss("ready", "a table was lost")])
    assert [delivery.payload for delivery in [*q.lease(wanted), *q.lease(wanted)]] == [b"2"]
    assert [outcome.error for outcome in q.ack([held[0].receipt])] == [None]
    monkeypatch.undo()
    assert system.problems() == []


@pytest.mark.parametrize("wanted", [1, 2, 9])
def test_of_two_rows_of_one_message_the_one_that_its_state_speaks_of_counts(
    wanted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    system = MemorySystem()
    q = system.create("q")
    q.enqueue_many([NewMessage(b"1"), NewMessage(b"2")])
    ready, value = system.rows("ready")[0]
    system.clock.advance(1)
    q.nack([q.lease(1)[0].receipt], delay_s=0)
    system.put("ready", ready, value)
    for state in system.engine.by_qid.values():
        state.unload()
    monkeypatch.setattr(system.store, "losses", lambda: [Loss("ready", "a table was lost")])
    deliveries = [delivery for _ in range(4) for delivery in q.lease(wanted)]
    assert [(delivery.payload, delivery.attempts) for delivery in deliveries] == [(b"2", 1), (b"1", 2)]
    assert [outcome.error for outcome in q.ack([one.receipt for one in deliveries])] == [None, None]
    monkeypatch.undo()
    assert system.problems() == []


def test_a_queue_whose_counters_are_damaged_stops_and_the_others_do_not() -> None:
    system = MemorySystem()
    q, other = system.create("q"), system.create("other", journal_retention_s=1)
    q.enqueue(b"1", delay_s=1)
    other.enqueue_many([NewMessage(b"2"), NewMessage(b"3", delay_s=1)])
    number = system.engine.queues["q"].qid
    system.put("meta", keys.meta(Meta.COUNTERS, keys.u32(number)), b"\x01\xc1")
    system.engine.queues["q"].unload()
    system.clock.advance(5)
    with pytest.raises(StorageCorrupt, match="counters"):
        q.enqueue(b"4")
    assert [delivery.payload for delivery in other.lease(9)] == [b"2", b"3"]
    system.sweep()
    assert "queue 'q' is damaged" in system.backend.health().reasons[0]
    assert system.backend.check(repair=True).ok
    assert system.backend.health().status == "healthy"
    assert [delivery.payload for delivery in q.lease(9)] == [b"1"]


def test_a_queue_whose_settings_are_damaged_is_refused_by_name_and_the_others_are_not() -> None:
    system = MemorySystem()
    q, other = system.create("q", lease_s=7), system.create("other")
    q.enqueue(b"1")
    other.enqueue(b"2")
    system.put("meta", keys.meta(Meta.QUEUE, b"q"), b"\x01\xc1")
    again = MemorySystem(store=system.store.reopen())
    with pytest.raises(StorageCorrupt, match="run check with repair"):
        again.backend.enqueue("q", [NewMessage(b"")])
    with pytest.raises(StorageCorrupt, match="run check with repair"):
        again.create("q")
    again.backend.replace_queues(again.backend.queues())
    assert [d.payload for d in again.backend.lease("other", 9, None, 0, "")] == [b"2"]
    assert again.backend.check(repair=True).ok
    assert next(one for one in again.backend.queues() if one.name == "q").lease_s == 7
    assert [d.payload for d in again.backend.lease("q", 9, None, 0, "")] == [b"1"]


def test_a_repaired_lease_keeps_its_receipt() -> None:
    system = MemorySystem()
    q = system.create("q")
    q.enqueue(b"1")
    (delivery,) = q.lease(1, lease_s=60)
    q.extend([delivery.receipt], 90)
    drop(system, "state", rows_of(system, "state", delivery.id)[0])
    assert system.backend.check(repair=True).ok
    assert q.get(delivery.id).lease_expires_at_ns == system.clock.now_ns() + 90 * 10**9
    assert q.ack([delivery.receipt])[0].ok


def test_readers_are_told_of_events_that_were_lost_and_cursors_go_on() -> None:
    system = MemorySystem()
    q = system.create("q")
    cursor = q.cursor("archive")
    for n in range(3):
        q.enqueue(b"%d" % n)
    number = system.engine.queues["q"].qid
    system.put("journal", keys.journal(number, 2), b"\x01damaged")
    assert system.backend.check(repair=True).ok
    assert [event.seq for event in cursor.read(3)] == [1, 2, 3]
    hole = cursor.read(3)[1]
    assert (hole.kind, hole.extra, hole.raw_id) == (Kind.REPAIRED, "hole", bytes(16))
    assert "lost" in hole.reason
    (item,) = system.backend.quarantine(9, None)
    assert (item.space, system.backend.quarantine_get(item.id)) == ("journal", b"\x01damaged")


def test_the_system_journal_sums_up_a_repair_and_what_was_dropped_for_good() -> None:
    system = MemorySystem()
    q = system.create("q")
    message_id = q.enqueue(b"1")
    system.damage_body("q", message_id)
    system.backend.check(repair=True)
    (item,) = system.backend.quarantine(9, None)
    assert system.backend.quarantine_drop([item.id, item.id]) == 1
    assert system.backend.quarantine(9, None) == []
    kinds = [entry.kind for entry in system.backend.scan_entries("_penstock")]
    assert kinds == ["queue_created", "repaired", "quarantine_dropped"]


def test_quarantine_is_listed_in_pages() -> None:
    system = MemorySystem()
    q = system.create("q")
    for n in range(5):
        system.damage_body("q", q.enqueue(b"%d" % n))
    system.backend.check(repair=True)
    first = system.backend.quarantine(3, None)
    rest = system.backend.quarantine(3, first[-1].id)
    assert (len(first), len(rest)) == (3, 2)
    assert len({item.id for item in (*first, *rest)}) == 5


def test_a_lease_reads_a_bounded_part_of_the_journal_for_an_orphan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(healing, "HEAL_EVENTS", 50)
    system = MemorySystem()
    q = system.create("q")
    first = q.enqueue(b"lost")
    for n in range(200):
        q.enqueue(b"%d" % n)
    drop(system, "messages", rows_of(system, "messages", first)[0])
    read: list[bytes] = []
    decode = frame.decode_head

    def counted(raw: bytes) -> Any:
        read.append(raw)
        return decode(raw)

    monkeypatch.setattr(evidence, "decode_head", counted)
    assert [delivery.payload for delivery in q.lease(2)] == [b"0", b"1"]
    assert 0 < len(read) <= 52
    # It may still be counted: nothing is kept back for that, and a check tells.
    assert len(q.lease(300)) == 198
    assert set(system.backend.check().counts) == {"counters_differ"}
    assert system.backend.check(repair=True).ok
    assert q.stats().ready == 0
