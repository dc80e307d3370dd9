"""Encryption on Redis lists: nothing secret on the server, wrong keys, swapped records, rekeying."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import penstock
from penstock import DecryptFailed, Entry, KeyMissing, NewMessage, Unauthorized
from penstock.backends.redis import copying, rekeying
from penstock.backends.redis.keys import Keys as Layout
from penstock.codec.sealed import key_id_of
from penstock.message import format_id
from tests.encryption.stores import ALL_KEYS, SECRETS, Keys, fill, secrets_in
from tests.redis.one_server import started
from tests.redis.sealed import STAYING, all_contents, everything, readable
from tests.redis.servers import RunningServer
from tests.redis.stores import Place


@pytest.fixture
def place() -> Iterator[Place]:
    made = Place()
    yield made
    made.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    made = started(tmp_path)
    yield made
    made.kill()


def test_nothing_secret_is_in_log_or_dump(server: RunningServer) -> None:
    place = Place(server=server)
    ps = place.sealed(ALL_KEYS)
    fill(ps)
    q, other = ps.queue("q"), ps.create_queue("other")
    (moved,) = q.enqueue_many([NewMessage(SECRETS["payload"].encode())])
    assert moved.id is not None
    q.move([moved.id], "other")
    other.enqueue(SECRETS["payload"].encode(), headers={"h": SECRETS["header-value"]})
    ps.queue("dead").redrive()
    assert ps.check().ok
    with server.client() as client:
        client.save()
    assert secrets_in(server.folder) == set()
    assert any(file.name == "dump.rdb" for file in server.folder.iterdir())
    place.close()


def test_a_plain_store_does_show_them(server: RunningServer) -> None:
    place = Place(server=server)
    fill(place.open())
    # A dedup id is in the message; a kind or label is in its frame.
    assert secrets_in(server.folder) == set(SECRETS)
    place.close()


def test_info_tells_the_key(place: Place) -> None:
    info = place.sealed(ALL_KEYS).info().default
    assert (info.sealed_with, info.rekey_from) == ("main", [])
    plain = Place().open().info().default
    assert (plain.sealed_with, plain.rekey_from) == (None, [])


@pytest.mark.parametrize("key_id", ["main", "new"])
@pytest.mark.parametrize("follow", [False, True])
def test_without_the_key_it_is_refused_and_nothing_is_written(
    place: Place, key_id: str, follow: bool
) -> None:
    place.sealed(ALL_KEYS).create_queue("q").enqueue(b"x")
    before = everything(place)
    with pytest.raises(KeyMissing, match="'main'"):
        place.sealed(Keys("new"), key_id, follow=follow)
    with pytest.raises(DecryptFailed, match="'main' is not the one"):
        place.sealed(Keys(main=bytes(32), new=bytes(32)), key_id, follow=follow)
    with pytest.raises(KeyMissing):
        penstock.open(place.url, clock=place.clock)
    assert everything(place) == before


def test_a_url_follows_the_store(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.sealed(ALL_KEYS).create_queue("q")
    monkeypatch.setenv("PENSTOCK_KEY_MAIN", ALL_KEYS.known["main"].hex())
    q = place.open().queue("q")
    q.enqueue(b"secret-payload")
    assert q.peek()[0].payload == b"secret-payload"
    (raw,) = place.client.hvals(place.key("q", "m"))
    assert key_id_of(raw) == "main"


def test_settings_of_a_file_count(place: Place, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(f"main = {'ab' * 32}\n")
    keys.chmod(0o600)
    file = tmp_path / "penstock.yaml"
    encryption = f"{{enabled: true, key_id: main, key_file: {keys}}}"
    url, _, prefix = place.url.partition("?key_prefix=")
    file.write_text(
        f"backends: {{fast: {{url: '{url}', key_prefix: '{prefix}', encryption: {encryption}}}}}\n"
        "queues: {q: {backend: fast}}\n"
    )
    with penstock.open(str(file)) as ps:
        ps.queue("q").enqueue(b"x")
        assert ps.info().backends["fast"].sealed_with == "main"
    (raw,) = place.client.hvals(place.key("q", "m"))
    assert key_id_of(raw) == "main"


# -- records in the place of others


def test_a_body_in_the_place_of_another_does_not_open(place: Place) -> None:
    ps = place.sealed(ALL_KEYS)
    q = ps.create_queue("q")
    first, second = (one.id for one in q.enqueue_many([NewMessage(b"1"), NewMessage(b"2")]))
    assert first is not None
    assert second is not None
    bodies = place.client.hgetall(place.key("q", "m"))
    (a, raw_a), (b, raw_b) = sorted(bodies.items())
    place.client.hset(place.key("q", "m"), mapping={a: raw_b, b: raw_a})
    with pytest.raises(DecryptFailed):
        q.get(first)
    q.enqueue(b"3")
    assert [d.payload for d in q.lease(10)] == [b"3"]
    assert {problem.kind for problem in ps.check().problems} == {"body damaged"}
    ps.check(repair=True)
    assert ps.check().ok
    assert len(ps.quarantine()) == 2


def test_nor_one_of_another_queue(place: Place) -> None:
    ps = place.sealed(ALL_KEYS)
    given = format_id(bytes(15) + b"\1")
    for name in ("a", "b"):
        ps.create_queue(name).enqueue(name.encode(), id=given)
    (field, raw) = next(iter(place.client.hgetall(place.key("a", "m")).items()))
    place.client.hset(place.key("b", "m"), field, raw)
    with pytest.raises(DecryptFailed):
        ps.queue("b").get(given)


def test_one_that_does_not_open_keeps_nobody_from_going_on(place: Place) -> None:
    ps = place.sealed(ALL_KEYS)
    ps.create_queue("dead")
    q = ps.create_queue("q", max_attempts=1, dead_letter="dead", lease_s=10)
    q.enqueue(b"1")
    (field,) = place.client.hkeys(place.key("q", "m"))
    raw = bytearray(place.client.hget(place.key("q", "m"), field))
    raw[-1] ^= 1
    place.client.hset(place.key("q", "m"), field, bytes(raw))
    assert q.lease() == []
    q.enqueue(b"2")
    place.clock.advance(11)
    assert [d.payload for d in q.lease()] == [b"2"]
    assert q.stats().dead == 1


def test_values_frames_and_reasons_are_bound_too(place: Place) -> None:
    ps = place.sealed(ALL_KEYS)
    layout = Layout(place.prefix)
    ps.state.put("a", b"1")
    ps.state.put("b", b"2")
    place.client.hset(layout.state, "a", place.client.hget(layout.state, "b"))
    with pytest.raises(DecryptFailed):
        ps.state.get("a")
    place.client.hset(layout.state, "b", b"plain")
    with pytest.raises(DecryptFailed, match="is plain"):
        ps.state.get("b")
    for world in ("a", "b"):
        ps.journal(world).append([Entry("k", b"x")])
    (_, fields) = place.client.xrange(layout.world("a"))[0]
    place.client.delete(layout.world("b"))
    place.client.xadd(layout.world("b"), fields, "1-0")
    with pytest.raises(DecryptFailed):
        ps.journal("b").scan()
    q = ps.create_queue("q")
    ids = [one.id for one in q.enqueue_many([NewMessage(b"1"), NewMessage(b"2")])]
    q.reject([d.receipt for d in q.lease(2)], reason="why not")
    records = place.client.hgetall(place.key("q", "s"))
    one, two = sorted(records)
    place.client.hset(place.key("q", "s"), one, records[one][:79] + records[two][79:])
    assert ids[0] is not None
    with pytest.raises(DecryptFailed, match="reason"):
        q.get(ids[0])


def test_values_that_look_sealed_are_values_in_a_plain_store(place: Place) -> None:
    ps = place.open()
    odd = [b"\xe1", b"\xe1\x04main" + bytes(60), b"", b"\xe1\x80\x80"]
    for number, value in enumerate(odd):
        ps.state.put(str(number), value)
    assert [ps.state.get(str(number)) for number in range(len(odd))] == odd


def test_a_reason_may_begin_with_any_letter(place: Place) -> None:
    q = place.sealed(ALL_KEYS).create_queue("q")
    q.enqueue(b"x")
    q.reject([q.lease()[0].receipt], reason="\u10e5\u1000")
    (message,) = q.list("dead").items
    assert message.reason == "\u10e5\u1000"


# -- rekeying


@pytest.mark.parametrize(("before", "after"), [(None, "main"), ("main", "new"), ("main", None)])
def test_rekeying_leaves_nothing_behind(place: Place, before: str | None, after: str | None) -> None:
    ps = place.open() if before is None else place.sealed(ALL_KEYS, before)
    fill(ps)
    was = all_contents(ps)
    assert readable(place) == (STAYING if before is None else set())
    again = place.sealed(ALL_KEYS, after)
    assert again.info().default.rekey_from == [before or ""]
    assert all_contents(again) == was
    report = again.rekey()
    assert report.unreadable == 0
    assert report.rewritten > 50
    assert again.info().default.rekey_from == []
    assert again.info().default.sealed_with == after
    assert all_contents(again) == was
    assert again.check().ok
    assert readable(place) == (STAYING if after is None else set())
    assert again.rekey().rewritten == 0
    if after is not None:
        assert all_contents(place.sealed(Keys(after), after)) == was
    else:
        assert all_contents(place.open()) == was
    dedup = NewMessage(b"", dedup_id=f"{SECRETS['dedup-id']}-0")
    assert again.queue("q").enqueue_many([dedup])[0].duplicate


def test_the_log_forgets_what_was_plain(server: RunningServer) -> None:
    place = Place(server=server)
    fill(place.open())
    assert secrets_in(server.folder) == set(SECRETS)
    place.sealed(ALL_KEYS).rekey()
    pause = threading.Event()
    with server.client() as client:
        for _ in range(200):
            found = client.info("persistence")
            if not found["aof_rewrite_in_progress"] and not found["aof_rewrite_scheduled"]:
                break
            pause.wait(0.05)
    assert secrets_in(server.folder) == set()
    server.kill()
    server.start()
    assert place.sealed(Keys("main")).state.get("state-key") == SECRETS["user-state"].encode()
    place.close()


def test_a_queue_that_a_repair_has_locked_does_not_hold_up_opening(place: Place) -> None:
    ps = place.open()
    ps.create_queue("q").enqueue(b"x")
    counters = msgspec.msgpack.decode(place.client.get(place.key("q", "c")))
    counters[1] = -1
    place.client.set(place.key("q", "c"), msgspec.msgpack.encode(counters))
    again = place.sealed(ALL_KEYS)
    again.check(repair=True)
    again.rekey()
    assert again.info().default.rekey_from == []
    assert again.queue("q").peek()[0].payload == b"x"


def test_health_tells_of_a_key_that_is_not_there(place: Place) -> None:
    ps = place.open()
    ps.create_queue("q")
    place.sealed(ALL_KEYS)
    health = ps.health()
    assert health.status == "unhealthy"
    assert "'main'" in str(health)


def test_who_has_the_store_open_goes_on_with_the_new_key(place: Place) -> None:
    first = place.open()
    plain = first.create_queue("q")
    plain.enqueue(b"plain")
    # The other has no key: what it would store would be plain.
    with pytest.raises(KeyMissing):
        place.sealed(Keys())
    keys = Keys("main")
    old = place.sealed(keys)
    q = old.queue("q")
    new = place.sealed(Keys("main", "new"), "new")
    with pytest.raises(KeyMissing, match="'new'"):
        q.enqueue(b"x")
    with pytest.raises(KeyMissing, match="'new'"):
        old.state.put("a", b"x")
    with pytest.raises(KeyMissing):
        plain.enqueue(b"x")
    with pytest.raises(KeyMissing):
        first.journal("w").append([Entry("k")])
    keys.known["new"] = ALL_KEYS.known["new"]
    q.enqueue(b"x")
    old.state.put("a", b"x")
    new.rekey()
    del keys.known["main"]
    q.enqueue(b"y")
    assert {key_id_of(raw) for raw in place.client.hvals(place.key("q", "m"))} == {"new"}
    assert [d.payload for d in new.queue("q").lease(10)] == [b"plain", b"x", b"y"]


def test_a_rekeying_goes_on_where_it_was(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rekeying, "VALUES_PER_SLICE", 10)
    monkeypatch.setattr(copying, "FRAMES_PER_SLICE", 3)
    ps = place.open()
    fill(ps)
    q = ps.queue("q")
    for number in range(20):
        q.enqueue_many([NewMessage(b"%d" % n) for n in range(30)])
        ps.journal("world").append([Entry("k", b"%d" % number)])
    q.reject([d.receipt for d in q.lease(50)], reason="secret-03-nack-reason")
    was = all_contents(ps)
    steps = 0

    class Killed(Exception):
        pass

    real = rekeying.Rekeying._step

    def step(self: rekeying.Rekeying, row: rekeying.RekeyRow) -> None:
        nonlocal steps
        steps += 1
        real(self, row)
        if steps % 3 == 0:
            raise Killed

    monkeypatch.setattr(rekeying.Rekeying, "_step", step)
    again = place.sealed(ALL_KEYS)
    while again.info().default.rekey_from:
        try:
            again.rekey()
        except Killed:
            place.client.delete(Layout(place.prefix).rekeyer)
            again = place.sealed(ALL_KEYS)
    assert steps > 15
    assert readable(place) == set()
    assert all_contents(again) == was
    assert again.check().ok
    assert not [
        key for key in place.client.keys(f"{place.prefix}*") if b"copy:" in key or key.endswith(b":r")
    ]


def test_housekeeping_goes_on_with_it(place: Place) -> None:
    fill(place.open())
    ps = place.sealed(ALL_KEYS)
    begun = rekeying.ROW_VERSION + msgspec.msgpack.encode(rekeying.RekeyRow("main"))
    place.client.hset(Layout(place.prefix).store, "rekey", begun)
    for _ in range(1000):
        if not ps.sweep(50):
            break
    assert ps.info().default.rekey_from == []
    assert readable(place) == set()


def test_housekeeping_waits_for_a_new_password_and_goes_on_with_it(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(place.open())
    ps = place.sealed(ALL_KEYS)
    begun = rekeying.ROW_VERSION + msgspec.msgpack.encode(rekeying.RekeyRow("main"))
    place.client.hset(Layout(place.prefix).store, "rekey", begun)
    refused = Unauthorized("WRONGPASS")
    refused.retryable = True  # As where the password stands in a file.

    def denied(*args: object) -> None:
        raise refused

    with monkeypatch.context() as patch:
        patch.setattr(rekeying.Rekeying, "_step", denied)
        with pytest.raises(Unauthorized):
            ps.sweep(50)
    assert "rekeying has stopped" not in str(ps.health().reasons)
    for _ in range(1000):
        if not ps.sweep(50):
            break
    assert ps.info().default.rekey_from == []


def test_rekeying_beside_traffic_loses_nothing(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rekeying, "VALUES_PER_SLICE", 10)
    ps = place.open()
    q = ps.create_queue("q", max_attempts=1000)
    q.enqueue_many([NewMessage(b"%d" % n) for n in range(300)])
    keys = Keys("main", "new")
    ended = threading.Event()
    failures: list[Exception] = []
    added: list[int] = []

    def work() -> None:
        mine = place.sealed(keys, follow=True)
        busy, rng = mine.queue("q"), random.Random(1)
        try:
            while not ended.is_set():
                busy.enqueue(b"%d" % (300 + len(added)))
                added.append(1)
                for delivery in busy.lease(10):
                    busy.nack([delivery.receipt], delay_s=0, reason=f"secret-03-nack-reason {rng.random()}")
                mine.journal("w").append([Entry("k", b"secret-13-entry-body")])
                mine.state.put(f"k{rng.randrange(5)}", b"secret-16-user-state")
        except penstock.PenstockError as error:
            failures.append(error)

    thread = threading.Thread(target=work)
    sealing = place.sealed(keys)
    thread.start()
    try:
        sealing.rekey()
        new = place.sealed(keys, "new")
        new.rekey()
    finally:
        ended.set()
        thread.join()
    assert failures == []
    assert new.info().default.rekey_from == []
    assert {key_id_of(raw) for raw in place.client.hvals(place.key("q", "m"))} == {"new"}
    assert readable(place) == set()
    assert new.check().ok
    frames = [fields[b"f"] for _, fields in place.client.xrange(place.key("q", "j"))]
    assert new.queue("q").stats().journal_bytes == sum(map(len, frames))
    payloads = sorted(int(message.payload) for message in new.queue("q").iter())
    assert payloads == list(range(300 + len(added)))
    assert len(new.journal("w").scan()) >= len(added) - 1
    assert len(list(new.queue("q").events(limit=1_000_000))) > 300


def test_what_does_not_open_is_counted_and_its_key_stays(place: Place) -> None:
    ps = place.sealed(ALL_KEYS)
    q = ps.create_queue("q")
    q.enqueue_many([NewMessage(b"1"), NewMessage(b"2")])
    field, raw = next(iter(place.client.hgetall(place.key("q", "m")).items()))
    place.client.hset(place.key("q", "m"), field, raw[:-1] + bytes((raw[-1] ^ 1,)))
    new = place.sealed(ALL_KEYS, "new")
    assert new.rekey().unreadable == 1
    assert new.info().default.rekey_from == ["main"]


def test_a_lost_list_of_keys_is_told(place: Place) -> None:
    place.sealed(ALL_KEYS).create_queue("q").enqueue(b"x")
    place.client.hdel(Layout(place.prefix).store, "keys")
    before = everything(place)
    with pytest.raises(KeyMissing, match="lost the list"):
        place.open()
    with pytest.raises(KeyMissing, match="lost the list"):
        place.sealed(ALL_KEYS, "new")
    with pytest.raises(DecryptFailed, match="is not the one"):
        place.sealed(Keys(main=bytes(32)))
    assert everything(place) == before
    assert place.sealed(ALL_KEYS).queue("q").peek()[0].payload == b"x"


def test_the_quarantine_is_sealed(place: Place) -> None:
    ps = place.sealed(ALL_KEYS)
    q = ps.create_queue("q")
    q.enqueue(b"x")
    (field,) = place.client.hkeys(place.key("q", "m"))
    place.client.hset(place.key("q", "m"), field, b"\x01" + SECRETS["payload"].encode())
    ps.check(repair=True)
    (item,) = ps.quarantine()
    assert SECRETS["payload"].encode() in ps.quarantine_get(item.id)
    assert readable(place) == set()


def test_a_child_is_refused_for_it_would_count_as_its_parent_does(place: Place) -> None:
    ps = place.sealed(ALL_KEYS)
    ps.state.put("parent", b"x")
    q = ps.create_queue("q")
    pid = os.fork()
    if pid == 0:
        refused = 0
        try:
            for act in (
                lambda: ps.state.put("child", b"x"),
                lambda: q.enqueue(b"x"),
                lambda: ps.journal("w").append([Entry("k")]),
            ):
                try:
                    act()
                except penstock.StorageError:
                    refused += 1
        finally:
            os._exit(refused)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3
    assert place.client.hkeys(Layout(place.prefix).state) == [b"parent"]
