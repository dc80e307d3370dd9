"""Damaged rows of the catalogue, frames that were cut short, repairs that fail or meet each other."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock import NewMessage, Penstock
from penstock.backends.redis import engine
from penstock.backends.redis.keys import Keys
from penstock.backends.redis.repairing import Repairing
from penstock.errors import BackendUnavailable, StorageCorrupt, StorageError
from penstock.message import parse_id
from penstock.settings import QueueSettings
from penstock.testing.folding import prove_journal
from penstock.testing.harness import ids, take_one
from tests.encryption.stores import ALL_KEYS
from tests.redis.one_server import started
from tests.redis.stores import Place

DAMAGES = (b"", b"\x01\xc1", b"\x07from a later version", b"\x01\x93\x01\x02\x03")


@pytest.fixture
def place() -> Iterator[Place]:
    place = Place()
    yield place
    place.close()


@pytest.fixture
def ps(place: Place) -> Penstock:
    return place.open()


def damage_row(place: Place, name: str, row: bytes = b"\x01\xc1") -> None:
    place.client.hset(Keys(place.prefix).queues, name, row)


def settings_of(ps: Penstock, name: str) -> QueueSettings:
    return next(settings for settings in ps.queues() if settings.name == name)


# -- rows of the catalogue


@pytest.mark.parametrize("row", DAMAGES)
def test_a_damaged_row_stops_nothing_that_goes_through_all_queues(
    place: Place, ps: Penstock, row: bytes
) -> None:
    for name in ("a", "b", "c"):
        ps.create_queue(name).enqueue(b"x", ttl_s=1)
    ps.queue("c").enqueue(b"x", delay_s=50)
    damage_row(place, "b", row)
    place.clock.advance(2)
    other = place.open(seed=2)  # It opens, too.
    assert [settings.name for settings in other.queues()] == ["a", "c"]
    other.sweep()
    assert [place.client.hlen(place.key(name, "m")) for name in ("a", "b", "c")] == [0, 1, 1]
    assert [one.queue for one in other.due()] == ["c"]
    assert list(other.metrics()["default"].queues) == ["a", "c"]
    health = other.health()
    assert (health.status, health.numbers["default"].queues) == ("degraded", 2)
    assert "queue 'b' is damaged" in str(health.reasons)
    report = other.check()
    assert (report.counts, report.queues) == ({"row": 1}, 3)


def test_a_damaged_row_is_never_written_over_by_who_does_not_know_it(place: Place, ps: Penstock) -> None:
    for name in ("a", "b"):
        ps.create_queue(name)
    damage_row(place, "b")
    other = place.open(seed=2)
    with pytest.raises(StorageCorrupt, match="row of a queue"):
        other.create_queue("b")
    with pytest.raises(StorageCorrupt, match="row of a queue"):
        other.queue("b")
    with pytest.raises(StorageCorrupt, match="'b' is damaged"):
        other.delete_queue("a")
    with pytest.raises(StorageCorrupt, match="'b' is damaged"):
        other.replace_queues(["a", "b"])


@pytest.mark.parametrize("row", DAMAGES)
def test_a_repair_brings_a_row_back_as_the_queue_was_changed_last(
    place: Place, ps: Penstock, row: bytes
) -> None:
    ps.create_queue("dead")
    q = ps.create_queue("q", lease_s=77)
    ps.update_queue("q", dead_letter="dead", max_attempts=9, max_leased=3)
    settings = settings_of(ps, "q")
    known = ids(q.enqueue_many([NewMessage(b"%d" % n) for n in range(5)]))
    held = take_one(q)
    damage_row(place, "q", row)
    other = place.open(seed=2)
    report = other.check(repair=True)
    assert report.ok
    assert [problem.action.partition(";")[0] for problem in report.problems] == [
        "row brought back from the journal"
    ]
    assert settings_of(other, "q") == settings
    assert other.queue("q").ack([held.receipt])[0].ok  # Its number is what it was.
    assert ids(q.lease(10)) == known[1:4]
    prove_journal(other.queue("q"))
    assert other.check().ok


def test_where_the_journal_does_not_reach_so_far_the_counters_tell_what_scripts_need(
    place: Place, ps: Penstock
) -> None:
    q = ps.create_queue("q", fifo=True, retention_s=50, dedup_window_s=7, max_attempts=9)
    q.enqueue_many([NewMessage(b"1", fairness_key="a"), NewMessage(b"2", fairness_key="a")])
    damage_row(place, "q")
    keys = Keys(place.prefix)
    place.client.delete(keys.worlds, keys.entries, keys.world("_penstock"))
    other = place.open(seed=2)
    assert other.check(repair=True).ok
    settings = settings_of(other, "q")
    assert (settings.fifo, settings.retention_s, settings.dedup_window_s) == (True, 50, 7)
    assert settings.max_attempts == 5
    assert len(other.queue("q").lease(10)) == 1  # In strict order still.


def test_a_row_that_nothing_tells_of_is_left_alone_and_told(place: Place, ps: Penstock) -> None:
    ps.create_queue("a")
    ps.create_queue("q")
    place.client.zrem(place.key("a", "o"), b"none")
    damage_row(place, "q")
    keys = Keys(place.prefix)
    place.client.delete(keys.worlds, keys.entries, keys.world("_penstock"), place.key("q", "c"))
    report = ps.check(repair=True)
    assert not report.ok
    assert "nothing tells what the settings" in report.problems[0].action


def test_a_name_that_is_no_text_is_told_and_stops_nobody(place: Place, ps: Penstock) -> None:
    ps.create_queue("a").enqueue(b"x")
    place.client.hset(Keys(place.prefix).queues, b"\xff\xfe", b"\x01\xc1")
    assert ps.check().counts == {"row": 1}
    assert not ps.check(repair=True).ok
    ps.sweep()
    ps._default._sweeping.tidy(10)  # type: ignore[attr-defined]
    assert ps.health().status == "degraded"
    assert take_one(ps.queue("a")).payload == b"x"


# -- frames


def cut_frame(place: Place, at: int, content: bytes) -> None:
    """Write the journal of `q` anew with one frame of it damaged."""
    key = place.key("q", "j")
    frames = place.client.xrange(key)
    place.client.delete(key)
    for number, (entry, fields) in enumerate(frames):
        place.client.xadd(key, {"f": content if number == at else fields[b"f"]}, id=entry)


@pytest.mark.parametrize("at", [0, 2])
@pytest.mark.parametrize("content", [b"cut", b"", b"\x01" + b"\xff" * 80, b"\x07" + bytes(80)])
def test_a_damaged_frame_goes_with_the_ones_behind_it(
    place: Place, ps: Penstock, at: int, content: bytes
) -> None:
    q = ps.create_queue("q", journal_retention_s=10)
    for _ in range(5):
        q.enqueue(b"x")
    cut_frame(place, at, content)
    place.clock.advance(20)
    q.enqueue(b"y")
    ps.sweep()
    assert place.client.xlen(place.key("q", "j")) == 1
    assert (q.stats().first_seq, q.stats().last_seq) == (6, 6)
    assert [event.seq for event in q.events()] == [6]
    report = ps.check()
    assert report.ok, report.problems


def test_a_damaged_frame_that_a_required_cursor_has_to_read_stays(place: Place, ps: Penstock) -> None:
    q = ps.create_queue("q", journal_retention_s=10)
    q.cursor("archive", required=True)
    for _ in range(3):
        q.enqueue(b"x")
    cut_frame(place, 0, b"cut")
    place.clock.advance(20)
    ps.sweep()
    assert place.client.xlen(place.key("q", "j")) == 3


def test_a_damaged_frame_at_the_end_waits_for_a_sound_one(place: Place, ps: Penstock) -> None:
    q = ps.create_queue("q", journal_retention_s=10)
    for _ in range(3):
        q.enqueue(b"x")
    cut_frame(place, 2, b"cut")
    place.clock.advance(20)
    ps.sweep()
    assert place.client.xlen(place.key("q", "j")) == 1
    q.enqueue(b"y")
    place.clock.advance(20)
    ps.sweep()
    assert place.client.xlen(place.key("q", "j")) == 0
    assert q.stats().journal_bytes == 0


# -- repairs


def repair(ps: Penstock, name: str) -> None:
    ps._default._checking._repairing.repair(name)  # type: ignore[attr-defined]


def test_a_repair_that_fails_half_way_serves_nothing_until_one_succeeds(
    place: Place, ps: Penstock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    q = ps.create_queue("q")
    known = ids(q.enqueue_many([NewMessage(b"%d" % n) for n in range(500)]))
    ps.create_queue("z").enqueue(b"z")
    for name in ("q", "z"):
        place.client.delete(place.key(name, "z"))
    walk = Repairing._walk

    def fails_in_the_middle(self: Repairing, which: Any, *args: Any) -> int:
        if which.name == "q":
            place.client.delete(place.key("q", "p"))
            place.client.set(place.key("q", "p"), b"of another type")
        return walk(self, which, *args)

    monkeypatch.setattr(Repairing, "_walk", fails_in_the_middle)
    with caplog.at_level(logging.ERROR, "penstock"):
        report = ps.check(repair=True)
    assert not report.ok
    assert {problem.queue: problem.action.partition(":")[0] for problem in report.problems} == {
        "q": "not repaired",
        "z": "indexes rebuilt",
    }
    assert "it is locked until one succeeds" in caplog.text
    monkeypatch.undo()
    monkeypatch.setattr(engine, "MOST_CHANGES", 4)
    with pytest.raises(BackendUnavailable, match="repair"):
        q.lease()
    assert "locked" in ps.check().counts
    assert "queue 'q' is being repaired" in str(ps.health().reasons)
    place.client.delete(place.key("q", "p"))
    assert ps.check(repair=True).ok
    assert ids(q.lease(500)) == known
    assert take_one(ps.queue("z")).payload == b"z"


@pytest.mark.parametrize("step", ["_bodies", "_walk"])
def test_a_repair_that_another_one_took_over_from_ends_and_undoes_nothing(
    place: Place, ps: Penstock, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    q = ps.create_queue("q")
    known = ids(q.enqueue_many([NewMessage(b"%d" % n) for n in range(300)]))
    other = place.open(seed=2)
    original = getattr(Repairing, step)

    def in_between(*args: Any) -> Any:
        monkeypatch.undo()
        repair(other, "q")
        return original(*args)

    monkeypatch.setattr(Repairing, step, in_between)
    with pytest.raises(BackendUnavailable, match="another repair"):
        repair(ps, "q")
    assert ps.check().ok
    assert ids(q.lease(300)) == known


def test_a_repair_that_cannot_even_begin_leaves_the_queue_as_it_is(place: Place, ps: Penstock) -> None:
    q = ps.create_queue("q")
    q.enqueue(b"x")
    place.client.config_set("maxmemory", 1)
    try:
        with pytest.raises(StorageError):
            repair(ps, "q")
    finally:
        place.client.config_set("maxmemory", 0)
    ps.check(repair=True)
    assert take_one(q).payload == b"x"


@pytest.mark.parametrize("step", ["records", "dedup"])
def test_a_server_that_is_started_again_in_the_middle_of_a_repair_passes_over_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    server = started(tmp_path)
    place = Place(server)
    try:
        ps = place.open()
        q = ps.create_queue("q")
        news = [NewMessage(b"%d" % n, dedup_id=str(n)) for n in range(2000)]
        known = ids(q.enqueue_many(news))
        steps = 0
        original = Repairing._step

        def restarting(self: Repairing, which: Any, lock: int, name: str, *args: Any) -> Any:
            nonlocal steps
            steps += name == step
            if name == step and steps == 4:
                server.kill()
                server.start()
            return original(self, which, lock, name, *args)

        monkeypatch.setattr(Repairing, "_step", restarting)
        repair(ps, "q")
        assert ps.check().ok
        assert sorted([*ids(q.lease(1000)), *ids(q.lease(1000))]) == sorted(known)
        assert place.client.zcard(place.key("q", "u")) == 2000
    finally:
        place.close()
        server.kill()


def test_a_server_that_is_started_again_in_the_middle_of_a_check_passes_over_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = started(tmp_path)
    place = Place(server)
    try:
        ps = place.open()
        q = ps.create_queue("q")
        known = ids(q.enqueue_many([NewMessage(b"%d" % n) for n in range(3000)]))
        for bad in known[::100]:
            place.client.hdel(place.key("q", "m"), parse_id(bad))
        store: Any = ps._default._engine.server  # type: ignore[attr-defined]
        run, audits = store.run, 0

        def restarting(script: Any, *args: Any, **options: Any) -> Any:
            nonlocal audits
            audits += script.name == "audit"
            if audits == 5 and script.name == "audit":
                server.kill()
                server.start()
            return run(script, *args, **options)

        monkeypatch.setattr(store, "run", restarting)
        assert ps.check().counts["body missing"] == 30
    finally:
        place.close()
        server.kill()


# -- where things are sealed


def test_a_sealed_row_is_brought_back_sealed(place: Place) -> None:
    ps = place.sealed(ALL_KEYS)
    ps.create_queue("q", on_failure="function on_failure() return nil end -- top secret").enqueue(b"x")
    row = place.client.hget(Keys(place.prefix).queues, "q")
    damage_row(place, "q", row[:-1] + bytes((row[-1] ^ 1,)))
    other = place.sealed(ALL_KEYS)
    assert "'q' is damaged" in str(other.health().reasons)
    assert other.check(repair=True).ok
    assert "top secret" in str(settings_of(other, "q").on_failure)
    assert b"top secret" not in place.client.hget(Keys(place.prefix).queues, "q")
    assert take_one(other.queue("q")).payload == b"x"


def test_rekeying_leaves_out_no_queue_whose_row_is_damaged(place: Place) -> None:
    ps = place.sealed(ALL_KEYS)
    for name in ("a", "b"):
        ps.create_queue(name).enqueue(b"x")
    damage_row(place, "b")
    other = place.sealed(ALL_KEYS, "new")
    with pytest.raises(StorageCorrupt, match="'b' is damaged"):
        other.rekey()
    assert other.info().default.rekey_from == ["main"]  # Its key is still needed.
    assert other.check(repair=True).ok
    other.rekey()
    assert other.info().default.rekey_from == []
    assert take_one(other.queue("b")).payload == b"x"
