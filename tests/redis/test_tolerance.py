"""What is damaged, or not allowed, in one place: everything else goes on, and health tells."""

from __future__ import annotations

import logging
from typing import Any

import pytest

import penstock
from penstock import NewMessage
from penstock.backends.redis.checking import PARTS, STREAM_PARTS
from penstock.message import parse_id
from penstock.testing.harness import take_one
from tests.redis.interrupting import after
from tests.redis.stores import Place


def test_the_row_of_a_lease_that_is_none_stops_neither_lease_nor_sweep(place: Place) -> None:
    ps = place.open()
    q = ps.create_queue("q")
    message = q.enqueue(b"x")
    place.client.zadd(place.key("q", "l"), {parse_id(message): 1})
    assert take_one(q).id == message
    other = q.enqueue(b"y")
    place.client.zadd(place.key("q", "l"), {parse_id(other): 1})
    ps.sweep()
    assert place.client.zcard(place.key("q", "l")) == 1
    assert ps.check().ok


def test_the_row_of_a_lease_that_ends_later_is_put_right(place: Place) -> None:
    ps = place.open()
    q = ps.create_queue("q", lease_s=60)
    message = q.enqueue(b"x")
    held = take_one(q)
    place.client.zadd(place.key("q", "l"), {parse_id(message): 1})
    assert q.lease() == []
    assert q.ack([held.receipt])[0].ok


def test_a_lease_without_a_body_that_ended_stops_nobody(place: Place) -> None:
    q = place.open().create_queue("q", lease_s=1, max_attempts=1)
    message = q.enqueue(b"x")
    take_one(q)
    place.lose_body("q", parse_id(message))
    q.enqueue(b"y")
    place.clock.advance(2)
    assert take_one(q).payload == b"y"


def test_a_damaged_queue_does_not_stop_what_is_done_for_the_others(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    ps = place.open()
    for name in ("a", "b", "c"):
        ps.create_queue(name).enqueue(b"x", ttl_s=1)
    place.client.set(place.key("a", "c"), b"\xc1broken")
    place.clock.advance(2)
    with caplog.at_level(logging.ERROR, "penstock"):
        ps.sweep()
        ps.sweep()
    assert [place.bodies(name) for name in ("b", "c")] == [0, 0]
    assert len([one for one in caplog.records if "cannot be swept" in one.message]) == 1
    ps.queue("b").enqueue(b"x", delay_s=5)
    assert [one.queue for one in ps.due()] == ["b"]
    health = ps.health()
    assert health.status == "degraded"
    assert "'a' is damaged" in str([*health.reasons.values()])


def test_a_frame_that_was_cut_short_leaves_no_half_done_sweep(place: Place) -> None:
    ps = place.open()
    q = ps.create_queue("q", journal_retention_s=1)
    q.enqueue_many([NewMessage(b"x")] * 5)
    journal = place.key("q", "j")
    place.client.delete(journal)
    place.client.xadd(journal, {"f": b"cut"}, id="5-0")
    q.enqueue_many([NewMessage(b"x", ttl_s=1)] * 7)
    place.clock.advance(2)
    ps.sweep()
    assert q.stats().ready == 5
    assert place.client.zcard(place.key("q", "z")) == 5


def test_a_user_without_channels_works_and_health_says_so(place: Place) -> None:
    admin = place.open()
    q = admin.create_queue("q")
    place.client.execute_command("ACL", "SETUSER", "deaf", "on", ">word", "~*", "+@all", "resetchannels")
    ps = penstock.open(place.url.replace("://", "://deaf:word@"), clock=place.clock)
    try:
        message = ps.queue("q").enqueue(b"x")
        assert q.stats().ready == 1
        held = take_one(ps.queue("q"))
        assert held.id == message
        assert ps.queue("q").ack([held.receipt])[0].ok
        assert "may not publish" in str([*ps.health().reasons.values()])
        assert admin.health().status == "healthy"
    finally:
        ps.close()
        place.client.execute_command("ACL", "DELUSER", "deaf")


def test_health_tells_of_a_server_that_may_throw_away_what_it_holds(place: Place) -> None:
    ps = place.open()
    place.client.config_set("maxmemory-policy", "allkeys-lru")
    try:
        health = ps.health()
    finally:
        place.client.config_set("maxmemory-policy", "noeviction")
    assert health.status == "degraded"
    assert "allkeys-lru" in str([*health.reasons.values()])
    assert ps.health().status == "healthy"


def test_health_tells_of_a_log_that_is_written_later_than_at_open(place: Place) -> None:
    ps = place.open()
    place.client.config_set("appendfsync", "everysec")
    try:
        health = ps.health()
    finally:
        place.client.config_set("appendfsync", "always")
    assert health.status == "degraded"
    assert "'interval' now" in str([*health.reasons.values()])
    assert ps.health().status == "healthy"


@pytest.mark.parametrize("damage", [b"\xc1broken", b"", b"\x93\x01\x02\x03", None])
def test_counters_that_are_damaged_are_mended_as_lost_ones_are(place: Place, damage: bytes | None) -> None:
    ps = place.open()
    q = ps.create_queue("q")
    q.enqueue(b"x")
    place.client.delete(place.key("q", "c"))
    if damage is not None:
        place.client.set(place.key("q", "c"), damage)
    assert not ps.check().ok
    assert ps.check(repair=True).ok
    assert take_one(q).payload == b"x"


def test_counters_are_mended_where_the_journal_was_trimmed_to_nothing(place: Place) -> None:
    ps = place.open()
    q = ps.create_queue("q", journal_retention_s=1)
    q.enqueue_many([NewMessage(b"x")] * 20)
    q.ack([one.receipt for one in q.lease(20)])
    place.clock.advance(2)
    ps.sweep()
    assert place.client.xlen(place.key("q", "j")) == 0
    place.client.delete(place.key("q", "c"))
    assert ps.check(repair=True).ok
    q.enqueue(b"y")
    assert take_one(q).payload == b"y"
    assert ps.check().ok


def test_a_check_takes_a_queue_that_is_made_anew_meanwhile_for_no_damage(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    ps, other = place.open(), place.open(seed=2)
    ps.create_queue("q").enqueue(b"x")

    engine: Any = ps._default._engine  # type: ignore[attr-defined]
    load = engine.load

    def looked_for(name: str) -> object:
        found = load(name)
        if found is None:
            other.create_queue(name)
        return found

    monkeypatch.setattr(engine, "load", looked_for)
    after(monkeypatch, ps, "audit", 2, lambda: other.delete_queue("q"))
    assert ps.check().problems == []
    assert [one.name for one in ps.queues()] == ["q"]


def test_a_check_takes_a_journal_that_is_trimmed_meanwhile_for_no_damage(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    ps, other = place.open(), place.open(seed=2)
    q = ps.create_queue("q", journal_retention_s=10)
    for _ in range(5):
        q.enqueue(b"old")
        place.clock.advance(5)
    parts = STREAM_PARTS if place.kind == "streams" else PARTS
    after(monkeypatch, ps, "audit", len(parts) + 1, other.sweep)  # Counters were read; the journal is next.
    assert ps.check().problems == []
    assert q.events(after=4)[0].seq == 5
    assert [one.seq for one in q.events(after=q.stats().first_seq - 1)] == [4, 5]
