"""Rekeying and other keys beside calls under way, crashes, damage and repairs of a store on Redis."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import penstock
from penstock import BackendUnavailable, Entry, KeyMissing, NewMessage, Penstock, StorageError, Unauthorized
from penstock.backends.redis import copying
from penstock.backends.redis.keys import Keys as Layout
from penstock.codec.sealed import key_id_of
from tests.encryption.stores import ALL_KEYS, SECRETS, Keys, fill
from tests.redis.interrupting import after
from tests.redis.one_server import started
from tests.redis.rekeyer import killed_at_work
from tests.redis.sealed import all_contents, everything, readable
from tests.redis.servers import RunningServer
from tests.redis.stores import Place

PAYLOAD = SECRETS["payload"].encode()


@pytest.fixture
def place() -> Iterator[Place]:
    made = Place()
    yield made
    made.close()


@pytest.fixture(params=["redis", "valkey"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RunningServer]:
    made = started(tmp_path, request.param)
    yield made
    made.kill()


def keys_of(place: Place, queue: str) -> list[str | None]:
    """What each body of a queue is sealed with, None for a plain one."""
    return [key_id_of(raw) for raw in place.client.hvals(place.key(queue, "m"))]


def copies(place: Place) -> list[bytes]:
    return [key for key in everything(place) if b"copy:" in key or key.endswith(b":r")]


# -- another key while a call is under way


def test_a_batch_under_way_goes_on_with_the_key_that_came_meanwhile(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    ps = place.sealed(ALL_KEYS, follow=True)
    q = ps.create_queue("q")
    after(monkeypatch, ps, "enqueue", 1, lambda: place.sealed(ALL_KEYS))
    results = q.enqueue_many([NewMessage(PAYLOAD) for _ in range(1500)])
    assert all(one.ok and not one.duplicate for one in results)
    found = keys_of(place, "q")
    assert len(found) == q.stats().ready == 1500
    # What came first is plain until it is rekeyed, nothing behind it.
    assert 0 < found.count("main") < 1500
    assert set(found) == {None, "main"}
    ps.rekey()
    assert readable(place) == set()
    assert [d.payload for d in q.lease(1500)] == [PAYLOAD] * 1500
    assert ps.check().ok


def test_without_that_key_the_rest_of_it_is_refused(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    ps = place.open()
    q = ps.create_queue("q")
    after(monkeypatch, ps, "enqueue", 1, lambda: place.sealed(ALL_KEYS))
    results = q.enqueue_many([NewMessage(PAYLOAD) for _ in range(1500)])
    stored = [one for one in results if one.ok]
    assert 0 < len(stored) < 1500
    assert {type(one.error) for one in results if not one.ok} == {KeyMissing}
    assert len(keys_of(place, "q")) == len(stored)


@pytest.mark.parametrize("dead_letter", [None, "dead"])
def test_failures_under_way_are_sealed_with_it(
    place: Place, monkeypatch: pytest.MonkeyPatch, dead_letter: str | None
) -> None:
    ps = place.sealed(ALL_KEYS, follow=True)
    ps.create_queue("dead")
    q = ps.create_queue("q", dead_letter=dead_letter)
    q.enqueue_many([NewMessage(b"x") for _ in range(1200)])
    deliveries = q.lease(1200)
    script = "settle" if dead_letter is None else "transfer"
    after(monkeypatch, ps, script, 1, lambda: place.sealed(ALL_KEYS))
    reason = SECRETS["reject-reason"]
    assert all(one.ok for one in q.reject([one.receipt for one in deliveries], reason=reason))
    records = place.client.hvals(place.key(dead_letter or "q", "s"))
    assert len(records) == 1200
    shown = sum(reason.encode() in raw for raw in records)
    if dead_letter is None:
        assert 0 < shown < 1200
    else:
        assert 0 < keys_of(place, "dead").count("main") < 1200
    last = place.client.xrevrange(place.key("q", "j"), count=1)[0][1][b"f"]
    assert reason.encode() not in last
    ps.rekey()
    assert readable(place) == set()
    assert ps.check().ok


# -- crashes


def test_a_rekeying_that_is_killed_is_gone_on_with(server: RunningServer) -> None:
    place = Place(server=server)
    ps = place.open()
    fill(ps)
    q = ps.queue("q")
    for number in range(20):
        q.enqueue_many([NewMessage(PAYLOAD) for _ in range(20)])
        ps.journal("world").append([Entry(SECRETS["entry-kind"], b"%d" % number)])
    q.reject([d.receipt for d in q.lease(50)], reason=SECRETS["reject-reason"])
    was = all_contents(ps)
    rng = random.Random(4)
    arguments = [server.binary.flavour, str(server.port), place.prefix, "main"]
    kills = 0
    while not (said := killed_at_work(arguments, rng.randrange(5, 50), rng)).startswith("ended"):
        kills += 1
        if kills in (2, 5):
            server.kill()
            server.start()
        place.client.delete(Layout(place.prefix).rekeyer)  # It would be waited for, for ten seconds.
        # Half done, everything can be read.
        with Keep(place) as half:
            assert all_contents(half) == was
    assert said == "ended 0\n"
    assert kills > 5
    with Keep(place) as ended:
        assert ended.info().default.rekey_from == []
        assert all_contents(ended) == was
        assert ended.check().ok
    assert readable(place) == set()
    assert copies(place) == []
    place.close()


class Keep:
    """The store, opened as it says of itself, for a moment."""

    def __init__(self, place: Place) -> None:
        self._ps = place.sealed(ALL_KEYS, follow=True)

    def __enter__(self) -> Penstock:
        return self._ps

    def __exit__(self, *_: object) -> None:
        self._ps.close()


# -- damage and repairs


def test_a_locked_queue_is_waited_for_and_the_rekeying_goes_on_once_it_is_repaired(place: Place) -> None:
    ps = place.open()
    for name in ("a", "b"):
        ps.create_queue(name).enqueue(PAYLOAD)
    sealing = place.sealed(ALL_KEYS)
    counters = msgspec.msgpack.decode(place.client.get(place.key("b", "c")))
    counters[1] = -1
    place.client.set(place.key("b", "c"), msgspec.msgpack.encode(counters))
    with pytest.raises(BackendUnavailable, match="'b' is being repaired"):
        sealing.rekey()
    assert sealing.info().default.rekey_from == [""]
    sealing.check(repair=True)
    sealing.rekey()
    assert sealing.info().default.rekey_from == []
    assert readable(place) == set()
    assert [sealing.queue(name).peek()[0].payload for name in ("a", "b")] == [PAYLOAD, PAYLOAD]


def test_a_repair_does_not_undo_a_key_that_came_just_before_it(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    ps = place.sealed(ALL_KEYS, follow=True)
    q = ps.create_queue("q")
    message = q.enqueue(PAYLOAD)
    place.client.zrem(place.key("q", "z"), *place.client.zrange(place.key("q", "z"), 0, -1))

    def load_and_meet(name: str) -> object:
        found = load(name)
        monkeypatch.setattr(engine, "load", load)
        place.sealed(ALL_KEYS)
        return found

    backend = ps._default
    engine = backend._engine  # type: ignore[attr-defined]
    load = engine.load
    repairing = backend._checking._repairing  # type: ignore[attr-defined]
    monkeypatch.setattr(engine, "load", load_and_meet)
    repairing.repair("q")
    q.enqueue(PAYLOAD)
    assert keys_of(place, "q").count("main") == 1
    assert q.get(message).payload == PAYLOAD
    assert ps.check().ok


def test_damaged_counters_do_not_keep_a_store_from_being_opened_with_a_key(place: Place) -> None:
    ps = place.open()
    for name in ("a", "b"):
        ps.create_queue(name).enqueue(PAYLOAD)
    place.client.set(place.key("a", "c"), b"\xc1broken")
    sealing = place.sealed(ALL_KEYS)
    sealing.queue("b").enqueue(PAYLOAD)
    with pytest.raises(StorageError):
        sealing.rekey()
    sealing.sweep()  # Told once, and left to who looks at health.
    assert "rekeying has stopped" in str(sealing.health().reasons)
    sealing.check(repair=True)
    sealing.rekey()
    assert readable(place) == set()
    assert sealing.queue("a").peek()[0].payload == PAYLOAD
    assert sealing.check().ok


def test_a_damaged_frame_or_record_stops_no_rekeying_and_stays_known_as_damaged(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "FRAMES_PER_SLICE", 2)
    ps = place.open()
    q = ps.create_queue("q")
    q.enqueue_many([NewMessage(b"1"), NewMessage(b"2"), NewMessage(PAYLOAD)])
    q.reject([one.receipt for one in q.lease(2)], reason=SECRETS["reject-reason"])
    q.enqueue(b"3")
    journal = place.key("q", "j")
    frames = place.client.xrange(journal)
    damaged = bytearray(frames[0][1][b"f"])
    damaged[30] ^= 1
    place.client.delete(journal)
    for number, (entry, fields) in enumerate(frames):
        place.client.xadd(journal, {b"f": bytes(damaged) if number == 0 else fields[b"f"]}, entry)
    record = sorted(place.client.hkeys(place.key("q", "s")))[0]
    cut = place.client.hget(place.key("q", "s"), record)[:-3]
    place.client.hset(place.key("q", "s"), record, cut)
    sealing = place.sealed(ALL_KEYS)
    assert sealing.rekey().unreadable == 2
    assert sealing.info().default.rekey_from == [""]
    assert place.client.xrange(journal)[0][1][b"f"] == bytes(damaged)
    assert place.client.hget(place.key("q", "s"), record) == cut
    kinds = {problem.kind for problem in sealing.check().problems}
    assert {"journal frame", "record"} <= kinds
    # All the rest is sealed.
    last = [fields[b"f"] for _, fields in place.client.xrange(journal)][1:]
    assert not any(SECRETS["reject-reason"].encode() in frame for frame in last)
    assert keys_of(place, "q") == ["main"] * 4


# -- what its user may do


def test_who_may_not_ask_the_server_about_itself_cannot_rekey(
    server: RunningServer, caplog: pytest.LogCaptureFixture
) -> None:
    place = Place(server=server)
    place.open().create_queue("q").enqueue(PAYLOAD)
    place.sealed(ALL_KEYS)
    server.do("ACL", "SETUSER", "worker", "on", ">pw", "~*", "&*", "+@all", "-info", "-bgrewriteaof")
    url = place.url.replace("://", "://worker:pw@")
    with penstock.open(url, keys=ALL_KEYS, clock=place.clock) as ps:
        with pytest.raises(Unauthorized, match="info"):
            ps.rekey()
        ps.sweep()
        assert "rekeying has stopped" in str(ps.health().reasons)
        assert ps.queue("q").peek()[0].payload == PAYLOAD
        server.do("ACL", "SETUSER", "worker", "+info")
        with caplog.at_level(logging.WARNING, "penstock"):
            ps.rekey()
    assert "log may still hold" in caplog.text
    assert readable(place) == set()
    place.close()


# -- what stays readable, and compression


def test_the_files_show_what_the_page_says_and_nothing_more(server: RunningServer) -> None:
    place = Place(server=server)
    q = place.sealed(ALL_KEYS).create_queue("name-of-a-queue")
    message = NewMessage(
        b"word-of-a-payload" * 100,
        fairness_key="word-of-a-key",
        headers={"word-of-a-header": "word-of-a-value"},
        dedup_id="word-of-a-dedup-id",
    )
    q.enqueue_many([message])
    q.nack([one.receipt for one in q.lease(consumer="word-of-a-consumer")], reason="word-of-a-reason")
    server.do("SAVE")
    files = b"".join(file.read_bytes() for file in server.folder.rglob("*") if file.is_file())
    words = ("payload", "header", "value", "dedup-id", "reason", "key", "consumer")
    assert [word for word in words if f"word-of-a-{word}".encode() in files] == ["key", "consumer"]
    assert b"name-of-a-queue" in files
    place.close()


def test_payloads_are_compressed_before_they_are_sealed(place: Place) -> None:
    ps = place.sealed(ALL_KEYS)
    payload = PAYLOAD * 1000
    for name, over in (("small", 100), ("large", None)):
        ps.create_queue(name, compress_over_bytes=over).enqueue(payload)
    (small,), (large,) = (place.client.hvals(place.key(name, "m")) for name in ("small", "large"))
    assert len(small) < len(payload) / 20 < len(payload) < len(large)
    assert keys_of(place, "small") == keys_of(place, "large") == ["main"]
    new = place.sealed(Keys("main", "new"), "new")
    new.rekey()
    (again,) = place.client.hvals(place.key("small", "m"))
    assert len(again) <= len(small)
    assert [new.queue(name).lease()[0].payload for name in ("small", "large")] == [payload, payload]
