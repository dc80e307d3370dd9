"""Encryption on a cluster: nothing secret on any server; rekeying beside what is under way."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import penstock
from penstock import DecryptFailed, Entry, KeyMissing, NewMessage
from penstock.backends.redis import rekeying
from penstock.backends.redis.planning import PlannedCatalogue
from penstock.codec.sealed import key_id_of
from penstock.testing.folding import prove_journal
from penstock.testing.harness import sweep_all
from tests.encryption.stores import ALL_KEYS, SECRETS, Keys, fill, secrets_in
from tests.redis.one_cluster import PATIENT, Place, shared
from tests.redis.sealed import STAYING, all_contents, shown_by
from tests.redis.servers import (
    RunningCluster,
    RunningServer,
    packaged_redis,
    packaged_valkey,
    running_cluster,
)

pytestmark = pytest.mark.xdist_group("redis-lists-cluster")

ROOT = Path(__file__).resolve().parents[2]
PAYLOAD = SECRETS["payload"].encode()
#: Longer than a transfer is left to whoever began it.
FORSAKEN_S = 11


#: Valkey where there is time.
FLAVOURS = ["redis", pytest.param("valkey", marks=pytest.mark.soak)]
KINDS = [("redis", "lists"), ("redis", "streams"), pytest.param(("valkey", "lists"), marks=pytest.mark.soak)]


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    flavour, kind = request.param
    made = Place(kind, shared(flavour))
    yield made
    made.close()


@pytest.fixture(params=FLAVOURS)
def lists(request: pytest.FixtureRequest) -> Iterator[Place]:
    """Where bodies are rewritten, too."""
    made = Place("lists", shared(request.param))
    yield made
    made.close()


@pytest.fixture(params=FLAVOURS)
def own(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RunningCluster]:
    """For who reads files."""
    binary = {"redis": packaged_redis, "valkey": packaged_valkey}[request.param]()
    with running_cluster(tmp_path / "cluster", binary, options=PATIENT) as cluster:
        yield cluster


def bodies_of(place: Place, queue: str) -> list[bytes]:
    found = place.everything().get(place.keys.queue(queue)[1], {})
    return list(found.values()) if isinstance(found, dict) else [fields[b"b"] for _, fields in found]


def sealed_by(place: Place, queue: str) -> set[str | None]:
    return {key_id_of(raw) for raw in bodies_of(place, queue)}


def secrets_of(servers: list[RunningServer]) -> set[str]:
    return {name for server in servers for name in secrets_in(server.folder)}


def logs_are_written(servers: list[RunningServer]) -> bool:
    told = [server.client().info("persistence") for server in servers]
    return not any(one["aof_rewrite_in_progress"] or one["aof_rewrite_scheduled"] for one in told)


def test_nothing_secret_is_in_log_or_dump_of_any_server(own: RunningCluster) -> None:
    """And of a plain store, before it is encrypted, everything."""
    for kind in ("lists", "streams"):
        place = Place(kind, own)
        ps = place.sealed(ALL_KEYS)
        fill(ps)
        q = ps.queue("q")
        if kind == "streams":
            q.create_group("second")
            q.enqueue(PAYLOAD, headers={SECRETS["header-name"]: SECRETS["header-value"]})
            (held,) = q.lease(group="second")
            q.reject([held.receipt], reason=SECRETS["reject-reason"])
        (moved,) = q.enqueue_many([NewMessage(PAYLOAD)])
        assert moved.id is not None
        ps.create_queue("other")
        assert q.move([moved.id], "other")[0].ok
        ps.queue("dead").redrive()
        assert ps.check().ok
        for server in own.servers:
            server.do("SAVE")
        assert secrets_of(own.servers) == set()
        files = [" ".join(map(str, server.folder.rglob("*"))) for server in own.servers]
        assert all("dump.rdb" in names and "appendonly.aof" in names for names in files)
    plain = Place("lists", own)
    fill(plain.open())
    assert secrets_of(own.masters) == set(SECRETS)
    plain.sealed(ALL_KEYS).rekey()
    # Not waited for: it has been, by then.
    assert logs_are_written(own.masters)
    for server in own.masters:
        server.do("SAVE")
    assert secrets_of(own.masters) == set()


def test_keys_are_asked_for_and_urls_follow_the_store(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    ps = place.sealed(ALL_KEYS)
    info = ps.info().default
    assert (info.sealed_with, info.rekey_from) == ("main", [])
    ps.create_queue("q").enqueue(b"x")
    with pytest.raises(KeyMissing, match="'main'"):
        place.open()
    with pytest.raises(DecryptFailed, match="'main' is not the one"):
        place.sealed(Keys(main=bytes(32)))
    monkeypatch.setenv("PENSTOCK_KEY_MAIN", ALL_KEYS.known["main"].hex())
    q = place.open().queue("q")
    q.enqueue(b"y")
    assert [one.payload for one in q.lease(2)] == [b"x", b"y"]
    assert sealed_by(place, "q") == {"main"}


@pytest.mark.parametrize(("before", "after"), [(None, "main"), ("main", "new"), ("main", None)])
def test_rekeying_leaves_nothing_behind(lists: Place, before: str | None, after: str | None) -> None:
    ps = lists.open() if before is None else lists.sealed(ALL_KEYS, before)
    fill(ps)
    was = all_contents(ps)
    assert shown_by(lists.everything()) == (STAYING if before is None else set())
    again = lists.sealed(ALL_KEYS, after)
    assert again.info().default.rekey_from == [before or ""]
    assert all_contents(again) == was
    report = again.rekey()
    assert (report.unreadable, report.rewritten > 50) == (0, True)
    assert (again.info().default.rekey_from, again.info().default.sealed_with) == ([], after)
    assert all_contents(again) == was
    assert again.check().ok
    assert shown_by(lists.everything()) == (STAYING if after is None else set())
    assert again.rekey().rewritten == 0
    assert not [key for key in lists.stored() if b"copy:" in key or key.endswith(b":plan")]
    if after is not None:
        assert all_contents(lists.sealed(Keys(after), after)) == was


@pytest.mark.parametrize("place", [("redis", "streams")], indirect=True)
def test_bodies_in_streams_keep_their_key_until_they_are_gone(place: Place) -> None:
    ps = place.sealed(ALL_KEYS)
    q = ps.create_queue("q")
    q.create_group("second")
    q.enqueue(PAYLOAD)
    q.reject([one.receipt for one in q.lease(group="second")], reason=SECRETS["reject-reason"])
    new = place.sealed(ALL_KEYS, "new")
    new.rekey()
    assert new.info().default.rekey_from == ["main"]
    assert shown_by(place.everything()) == set()
    (dead,) = new.queue("q").group("second").list(state="dead").items
    assert (dead.payload, dead.reason) == (PAYLOAD, SECRETS["reject-reason"])
    q = new.queue("q")
    q.group("second").purge(state="dead")
    q.ack([one.receipt for one in q.lease()])
    new.rekey()
    assert new.info().default.rekey_from == []
    assert new.check().ok


def test_who_has_the_store_open_goes_on_with_the_new_key(lists: Place) -> None:
    first = lists.open()
    plain = first.create_queue("q")
    plain.enqueue(b"plain")
    keys = Keys("main")
    old = lists.sealed(keys)
    q = old.queue("q")
    new = lists.sealed(Keys("main", "new"), "new")
    for act in (lambda: q.enqueue(b"x"), lambda: old.state.put("a", b"x"), lambda: plain.enqueue(b"x")):
        with pytest.raises(KeyMissing):
            act()
    with pytest.raises(KeyMissing):
        first.journal("w").append([Entry("k")])
    keys.known["new"] = ALL_KEYS.known["new"]
    q.enqueue(b"x")
    old.state.put("a", b"x")
    new.rekey()
    del keys.known["main"]
    q.enqueue(b"y")
    assert sealed_by(lists, "q") == {"new"}
    assert [d.payload for d in new.queue("q").lease(10)] == [b"plain", b"x", b"y"]
    # Queues count as changed; what they are is as it was, and no journal tells of a change.
    kinds = [entry.kind for entry in new.journal("_penstock").scan()]
    assert kinds == ["queue_created"]


def test_a_rekeying_tells_those_whom_nobody_told(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who brought the key was killed before it could."""
    old = place.open()
    q = old.create_queue("work")
    q.enqueue(b"plain")
    if place.kind == "streams":
        q.create_group("second")
        q.lease(group="second")
    monkeypatch.setattr(rekeying.Rekeying, "tell_others", lambda _: None)
    sealing = place.sealed(ALL_KEYS)
    q.enqueue(b"plain")
    sealing.rekey()
    with pytest.raises(KeyMissing):
        q.enqueue(PAYLOAD)
    if place.kind == "streams":
        with pytest.raises(KeyMissing):
            q.group("second").stats()
    assert sealing.queue("work").length() == 2


@pytest.mark.soak
def test_rekeying_beside_traffic_loses_nothing(lists: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rekeying, "VALUES_PER_SLICE", 30)
    ps = lists.open()
    ps.create_queue("dead")
    q = ps.create_queue("work", max_attempts=1000, dead_letter="dead")
    q.enqueue_many([NewMessage(b"%d" % n) for n in range(100)])
    keys = Keys("main", "new")
    ended = threading.Event()
    failures: list[Exception] = []
    added: list[int] = []

    def work() -> None:
        mine = lists.sealed(keys, follow=True)
        busy = mine.queue("work")
        try:
            while not ended.is_set():
                busy.enqueue(b"%d" % (100 + len(added)))
                added.append(1)
                for number, one in enumerate(busy.lease(4)):
                    act = busy.reject if number == 0 else busy.nack
                    act([one.receipt], reason=SECRETS["nack-reason"])
                mine.queue("dead").redrive(limit=1)
                mine.state.put("k", SECRETS["user-state"].encode())
        except penstock.PenstockError as error:
            failures.append(error)

    thread = threading.Thread(target=work)
    sealing = lists.sealed(keys)
    thread.start()
    try:
        sealing.rekey()
        new = lists.sealed(keys, "new")
        new.rekey()
    finally:
        ended.set()
        thread.join()
    assert failures == []
    assert new.info().default.rekey_from == []
    assert sealed_by(lists, "work") | sealed_by(lists, "dead") == {"new"}
    assert shown_by(lists.everything()) == set()
    assert new.check().ok
    there = [message for name in ("work", "dead") for message in new.queue(name).iter()]
    assert sorted(int(one.payload) for one in there) == list(range(100 + len(added)))
    for name in ("work", "dead"):
        prove_journal(new.queue(name))


# -- what is under way


def die(place: Place, what: str, step: str) -> None:
    """Another process does it on the plain store, and is killed when servers have done the step."""
    command = [sys.executable, str(ROOT / "tests/redis/dying.py"), place.url, what, step, "1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr


@pytest.mark.parametrize("step", ["depart", "arrive"])
def test_a_transfer_that_was_forsaken_is_sealed_and_finished(lists: Place, step: str) -> None:
    ps = lists.open()
    ps.create_queue("dead")
    work = ps.create_queue("work", dead_letter="dead", max_attempts=1)
    work.enqueue_many([NewMessage(PAYLOAD) for _ in range(7)])
    die(lists, "bury", step)
    assert b"no good" in str(lists.everything()).encode()
    ps.close()
    sealing = lists.sealed(ALL_KEYS)
    assert sealing.rekey().unreadable == 0
    assert "no good" not in str(lists.everything())
    assert shown_by(lists.everything()) == set()
    # By one who knows that key alone.
    new = lists.sealed(Keys("main"))
    lists.clock.advance(FORSAKEN_S)
    sweep_all(new)
    dead = list(new.queue("dead").iter())
    assert [(one.payload, one.headers["penstock-reason"]) for one in dead] == [(PAYLOAD, "no good")] * 7
    events = [event for event in new.queue("work").events(limit=1000) if event.kind == "dead"]
    assert [event.reason for event in events] == ["no good"] * 7
    assert "no good" not in str(lists.everything())
    assert new.check().ok


def test_a_transfer_ends_with_the_key_that_came_and_stays(
    lists: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its client was held up for the whole of a rekeying."""
    old = lists.sealed(ALL_KEYS)
    old.create_queue("dead")
    work = old.create_queue("work", dead_letter="dead", max_attempts=1)
    work.enqueue(PAYLOAD)

    def rekey() -> None:
        lists.sealed(ALL_KEYS, "new").rekey()

    backend: Any = old._default
    run, seen = backend._server.run, [0]

    def counted(script: Any, *args: Any, **more: Any) -> Any:
        reply = run(script, *args, **more)
        if script.name == "depart" and not seen[0]:
            seen[0] = 1
            rekey()
        return reply

    monkeypatch.setattr(backend._server, "run", counted)
    assert work.reject([work.lease()[0].receipt], reason=SECRETS["reject-reason"])[0].ok
    assert seen == [1]
    new = lists.sealed(Keys("new"), "new")
    (event,) = [one for one in new.queue("work").events(limit=100) if one.kind == "dead"]
    assert event.reason == SECRETS["reject-reason"]
    (dead,) = new.queue("dead").iter()
    assert (dead.payload, dead.headers["penstock-reason"]) == (PAYLOAD, SECRETS["reject-reason"])
    assert new.check().ok


def test_a_queue_that_was_decided_before_is_made_and_sealed_too(
    lists: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody has carried it out when the rekeying begins: what would be a queue of the old list."""
    script = f"function on_failure() return 'drop', '{SECRETS['script']}' end"
    ps = lists.open()
    real = PlannedCatalogue._carry_out
    monkeypatch.setattr(PlannedCatalogue, "_carry_out", lambda *_: None)
    ps.create_queue("scripted", on_failure=script)
    sealing = lists.sealed(ALL_KEYS)
    assert sealing.queues() == []
    monkeypatch.setattr(PlannedCatalogue, "_carry_out", real)
    assert sealing.rekey().unreadable == 0
    assert shown_by(lists.everything()) == set()
    assert [one.on_failure for one in sealing.queues()] == [script]
    assert lists.sealed(Keys("main")).queue("scripted").length() == 0


@pytest.mark.soak
def test_a_queue_that_a_repair_has_locked_is_waited_for_and_holds_nobody_up(lists: Place) -> None:
    ps = lists.open()
    for name in ("work", "spare"):
        ps.create_queue(name).enqueue(PAYLOAD)
    key = lists.keys.queue("work")[0]
    (master,) = [one for one in lists.cluster.masters if one.client().keys(key.decode())]
    counters = msgspec.msgpack.decode(master.do("GET", key))
    counters[1] = -1
    master.do("SET", key, msgspec.msgpack.encode(counters))
    sealing = lists.sealed(ALL_KEYS)
    with pytest.raises(penstock.BackendUnavailable, match="'work' is being repaired"):
        sealing.rekey()
    sealing.create_queue("another")  # Nothing was decided that would have to be waited for.
    sealing.check(repair=True)
    sealing.rekey()
    assert sealing.info().default.rekey_from == []
    assert shown_by(lists.everything()) == set()
