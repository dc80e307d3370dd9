"""A damaged row costs its own message, and no other: leasing, time, bulk operations and sweeps go on."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from penstock import Entry, Event, HookError, Kind, NewMessage, Queue, StorageCorrupt
from penstock.backends.embedded import deadletter, engine, failures, keys, sweep
from penstock.backends.embedded.keys import Meta
from penstock.journal import Journal
from penstock.message import format_id, parse_id
from penstock.testing.background import Background
from tests.unit.memory_system import GARBAGE, MemorySystem


def payloads(q: Queue, count: int = 9) -> list[bytes]:
    return [delivery.payload for delivery in q.lease(count)]


def enqueue(q: Queue, *batch: bytes, **settings: Any) -> list[str]:
    return [q.enqueue(payload, **settings) for payload in batch]


def events_of(q: Queue, message_id: str) -> list[Event]:
    return [event for event in q.events() if event.message_id == message_id]


# Leasing


def test_a_damaged_state_value_is_the_trouble_of_the_message_whose_script_reads_it() -> None:
    system = MemorySystem()
    q = system.create(
        "q",
        lease_s=10,
        on_enqueue="function on_enqueue(m) if m.payload == 'bad' then penstock.get('key') end end",
        on_failure="function on_failure(m) penstock.get(m.payload) return 'retry', 60 end",
    )
    system.put("meta", keys.meta(Meta.USER_STATE, b"key"), GARBAGE)
    results = q.enqueue_many([NewMessage(b"key"), NewMessage(b"bad"), NewMessage(b"good")])
    assert [type(result.error) for result in results] == [type(None), HookError, type(None)]
    assert payloads(q) == [b"key", b"good"]
    system.clock.advance(10)
    assert payloads(q) == [b"key"]  # By the queue's settings; the other as its script says.
    assert q.stats().delayed == 1


@pytest.mark.parametrize("wanted", [1, 9])
@pytest.mark.parametrize("fifo", [False, True])
def test_damaged_messages_at_the_head_go_to_quarantine_and_the_next_ones_are_delivered(
    fifo: bool, wanted: int
) -> None:
    system = MemorySystem()
    q = system.create("q", fifo=fifo, dead_letter=None)
    first, second, _ = enqueue(q, b"1", b"2", b"3")
    for message_id in (first, second):
        system.damage_body("q", message_id)
    assert payloads(q, wanted) == [b"3"]
    assert (q.stats().ready, q.stats().leased, q.stats().dead) == (0, 1, 0)
    kept = {format_id(item.key[-16:]): item for item in system.backend.quarantine(9, None)}
    for message_id in (first, second):
        last = events_of(q, message_id)[-1]
        assert (last.kind, last.extra, last.reason) == (Kind.REPAIRED, "", "its body does not decode")
        assert (kept[message_id].queue, kept[message_id].space) == ("q", "messages")
        assert system.backend.quarantine_get(kept[message_id].id) == GARBAGE
    assert system.problems() == []


def test_a_damaged_message_that_came_back_and_expires_is_set_aside_too() -> None:
    system = MemorySystem()
    q = system.create("q")
    (message_id,) = enqueue(q, b"1", ttl_s=60)
    q.nack([delivery.receipt for delivery in q.lease()], delay_s=0)
    system.damage_body("q", message_id)
    assert payloads(q) == []
    assert (len(system.backend.quarantine(9, None)), system.problems()) == (1, [])


# Time: a damaged row that falls due stops neither its own queue nor another


def delayed(q: Queue) -> list[str]:
    return enqueue(q, b"1", b"2", delay_s=5)


def expiring(q: Queue) -> list[str]:
    return enqueue(q, b"1", b"2", ttl_s=5)


def leased(q: Queue) -> list[str]:
    enqueue(q, b"1", b"2")
    return [delivery.id for delivery in q.lease(2, lease_s=5)]


def done(q: Queue) -> list[str]:
    enqueue(q, b"1", b"2")
    deliveries = q.lease(2)
    q.ack([delivery.receipt for delivery in deliveries])
    return [delivery.id for delivery in deliveries]


#: how its messages fall due -> the damaged space, the state that its time has taken the other one to
DUE: dict[Callable[[Queue], list[str]], tuple[str, str | None]] = {
    delayed: ("messages", "ready"),
    expiring: ("messages", None),
    leased: ("state", "ready"),
    done: ("state", None),
}


@pytest.mark.parametrize("arrange", DUE)
def test_damaged_rows_that_fall_due_stop_no_other_message_and_no_other_queue(
    arrange: Callable[[Queue], list[str]], caplog: pytest.LogCaptureFixture
) -> None:
    system = MemorySystem()
    queues = [system.create(name, retention_s=5) for name in ("a", "b")]
    (damaged, neighbour), others = (arrange(q) for q in queues)
    space, state = DUE[arrange]
    system.damage(space, "a", parse_id(damaged))
    system.clock.advance(6)
    system.sweep()
    for q, message_id in ((queues[0], neighbour), *((queues[1], other) for other in others)):
        found = system.backend.get_many(q.name, [message_id])[0]
        assert (None if found is None else str(found.state)) == state
    assert damaged in caplog.text
    assert system.problems() != []
    queues[1].enqueue(b"goes on")
    assert payloads(queues[1])[-1] == b"goes on"


def test_a_damaged_message_whose_last_lease_ends_is_dead_at_home_and_stops_no_other() -> None:
    system = MemorySystem()
    system.create("dead")
    q = system.create("q", dead_letter="dead", max_attempts=1)
    damaged, neighbour = leased(q)
    system.damage_body("q", damaged)
    system.clock.advance(6)
    system.sweep()
    assert (q.stats().dead, q.stats().leased) == (1, 0)
    assert Queue(system.backend, "dead").get(neighbour).payload == b"2"


# Batches: each item has its own answer


DEAD_LETTERS = "function on_failure(m, f) if m.payload == 'die' then return 'dead_letter' end end"


@pytest.mark.parametrize("by", ["lease", "sweep"])
@pytest.mark.parametrize("script", [None, DEAD_LETTERS])
def test_a_damaged_dead_letter_queue_holds_up_what_dies_and_nothing_else(
    script: str | None, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "SLICE", 5)
    monkeypatch.setattr(failures, "SCRIPTED_SLICE", 5)
    monkeypatch.setattr(engine, "DUE_HINT_EVERY", 1)
    system = MemorySystem()
    system.create("graves")
    settings: dict[str, Any] = {"on_failure": script, "max_attempts": 1 if script is None else 9}
    q = system.create("q", lease_s=5, dead_letter="graves", **settings)
    other = system.create("other", lease_s=6, **settings)
    enqueue(q, *[b"die"] * 12)
    enqueue(other, b"other")
    assert (len(q.lease(12)), len(other.lease(1))) == (12, 1)
    enqueue(q, b"fine")
    key = keys.meta(Meta.COUNTERS, keys.u32(system.engine.queue("graves").qid))
    system.put("meta", key, GARBAGE)
    for each in system.engine.by_qid.values():
        each.unload()
    system.clock.advance(7)
    if by == "sweep":
        system.sweep()
        assert other.stats().leased == 0
    assert payloads(q) == [b"fine"]
    assert payloads(other) == ([b"other"] if script else [])
    assert q.stats().leased == 13
    assert any("'graves' is damaged" in reason for reason in system.backend.health().reasons)
    if script is None:
        assert system.backend.check(repair=True).ok
        system.sweep()
        assert system.backend.stats("graves").ready == 12
        assert system.problems() == []


def test_what_does_not_die_comes_back_though_what_ended_with_it_cannot_be_buried() -> None:
    system = MemorySystem()
    system.create("graves")
    q = system.create("q", lease_s=5, max_attempts=2, dead_letter="graves")
    enqueue(q, b"dies")
    assert payloads(q) == [b"dies"]
    system.clock.advance(6)
    assert payloads(q) == [b"dies"]
    enqueue(q, b"fine")
    assert payloads(q) == [b"fine"]
    key = keys.meta(Meta.COUNTERS, keys.u32(system.engine.queue("graves").qid))
    system.put("meta", key, GARBAGE)
    for each in system.engine.by_qid.values():
        each.unload()
    system.clock.advance(6)
    assert payloads(q) == [b"fine"]
    assert q.stats().leased == 2


@pytest.mark.parametrize("script", [None, DEAD_LETTERS])
def test_what_cannot_be_applied_is_passed_over_by_those_behind_it(
    script: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreadable(*_: object) -> None:
        raise StorageCorrupt("a table has a damaged part")

    monkeypatch.setattr(sweep, "SLICE", 5)
    monkeypatch.setattr(failures, "SCRIPTED_SLICE", 5)
    system = MemorySystem()
    system.create("graves")
    q = system.create("q", lease_s=5, dead_letter="graves", on_failure=script, max_attempts=1)
    other = system.create("other", lease_s=6, on_failure=script)
    enqueue(q, *[b"die"] * 12)
    enqueue(other, b"other")
    assert (len(q.lease(12)), len(other.lease(1))) == (12, 1)
    monkeypatch.setattr(deadletter, "find_sound", unreadable)
    system.clock.advance(7)
    system.sweep()
    assert (q.stats().leased, other.stats().ready) == (12, 1)
    assert payloads(q) == []


def test_a_damaged_id_or_dedup_id_fails_the_item_that_names_it_alone() -> None:
    system = MemorySystem()
    q = system.create("q")
    (damaged,) = enqueue(q, b"1", dedup_id="damaged")
    system.damage_body("q", damaged)
    system.damage("dedup", "q")
    (other,) = enqueue(q, b"2", dedup_id="other")
    batch = [
        NewMessage(b"", id=damaged),
        NewMessage(b"", dedup_id="damaged"),
        NewMessage(b"", id=other),
        NewMessage(b"", dedup_id="other"),
        NewMessage(b"", dedup_id="new"),
        NewMessage(b""),
    ]
    results = q.enqueue_many(batch)
    assert [type(result.error) for result in results[:2]] == [StorageCorrupt] * 2
    assert [(result.ok, result.duplicate) for result in results[2:]] == [
        (True, True),
        (True, True),
        (True, False),
        (True, False),
    ]


def test_a_damaged_message_is_not_moved_and_its_neighbours_are() -> None:
    system = MemorySystem()
    q, target = system.create("q"), system.create("target")
    damaged, taken, free = enqueue(q, b"1", b"2", b"3")
    target.enqueue(b"theirs", id=taken)
    system.damage_body("q", damaged)
    system.damage_body("target", taken)
    outcomes = q.move([damaged, taken, free], "target")
    assert isinstance(outcomes[0].error, StorageCorrupt)
    assert [outcome.ok for outcome in outcomes] == [False, False, True]
    assert target.get(free).payload == b"3"
    assert q.get(taken).payload == b"2"


def test_a_damaged_dead_message_stays_and_its_neighbours_are_redriven() -> None:
    system = MemorySystem()
    q = system.create("q")
    damaged, _ = enqueue(q, b"1", b"2")
    q.reject([delivery.receipt for delivery in q.lease(2)])
    system.damage_body("q", damaged)
    assert q.redrive() == 1
    assert (payloads(q), q.stats().dead) == ([b"2"], 1)


def test_a_damaged_message_that_fails_for_the_last_time_fails_none_of_its_batch() -> None:
    system = MemorySystem()
    dead = system.create("dead")
    q = system.create("q", dead_letter="dead", max_attempts=1)
    damaged, neighbour = enqueue(q, b"1", b"2")
    deliveries = q.lease(2)
    system.damage_body("q", damaged)
    assert [outcome.ok for outcome in q.nack([delivery.receipt for delivery in deliveries])] == [True] * 2
    assert (q.stats().dead, dead.get(neighbour).payload) == (1, b"2")


# Listings


@pytest.mark.parametrize("state", ["ready", "delayed", "dead"])
def test_a_damaged_message_is_left_out_of_listings_and_the_others_are_there(
    state: str, caplog: pytest.LogCaptureFixture
) -> None:
    system = MemorySystem()
    q = system.create("q")
    damaged, *sound = enqueue(q, *(b"%d" % n for n in range(5)), delay_s=5 if state == "delayed" else 0)
    if state == "dead":
        q.reject([delivery.receipt for delivery in q.lease(5)])
    system.damage_body("q", damaged)
    assert [message.id for message in q.iter(state)] == sound
    assert [message.id for message in q.list(state, limit=3).items] == sound[:2]
    if state == "ready":
        assert [message.id for message in q.peek(9)] == sound
    assert damaged in caplog.text
    with pytest.raises(StorageCorrupt):
        q.get(damaged)


# Sweeps


@pytest.mark.parametrize("space", ["messages", "state", "ready", "dedup", "journal"])
def test_a_deleted_queue_with_damaged_rows_goes_and_stops_no_sweep(space: str) -> None:
    system = MemorySystem()
    q, other = system.create("q"), system.create("other", journal_retention_s=1)
    enqueue(q, b"ready", dedup_id="d")
    enqueue(q, b"delayed", delay_s=5)
    enqueue(other, b"")
    system.damage(space, "q")
    system.backend.delete_queue("q")
    system.clock.advance(400)
    system.sweep()
    assert other.stats().first_seq == 2
    assert system.problems() == []


def test_a_damaged_journal_is_kept_and_the_others_are_trimmed(caplog: pytest.LogCaptureFixture) -> None:
    system = MemorySystem()
    queues = [system.create(name, journal_retention_s=1) for name in ("a", "b")]
    for q in queues:
        enqueue(q, b"")
    worlds = [Journal(system.backend, name) for name in ("v", "w")]
    for world in worlds:
        world.append([Entry("k")])
        world.configure(retention_s=1)
    for name in ("a", "v"):
        system.damage("journal", name)
    system.clock.advance(5)
    system.sweep()
    system.sweep()
    assert queues[1].stats().first_seq == 2
    assert [world.stats()["entries"] for world in worlds] == [1, 0]
    assert len([record for record in caplog.records if "is kept as it is" in record.message]) == 2


def test_a_purge_that_meets_a_damaged_row_says_so_and_stops_no_sweep() -> None:
    system = MemorySystem()
    q, other = system.create("q"), system.create("other", journal_retention_s=1)
    enqueue(other, b"")
    q.enqueue_many([NewMessage(b"", delay_s=1000)] * 600)
    system.damage("state", "q", system.rows("state")[-1][0][-16:])
    with pytest.raises(StorageCorrupt):
        q.purge()
    system.clock.advance(5)
    system.sweep()
    assert other.stats().first_seq == 2


def test_nobody_comes_between_a_damaged_message_and_its_being_set_aside() -> None:
    system = MemorySystem()
    q = system.create("q")
    system.damage_body("q", q.enqueue(b"damaged"))
    free: list[bool] = []

    class Watching(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            free.append(Background(lambda: system.engine.lock.acquire(blocking=False)).result())

    log, watching = logging.getLogger("penstock"), Watching()
    log.addHandler(watching)
    try:
        assert q.lease() == []
    finally:
        log.removeHandler(watching)
    assert free == [False]
