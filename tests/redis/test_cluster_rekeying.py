"""Rekeying a store on a cluster while processes and masters are killed, replaced, and slots move."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock import Entry, NewMessage, Penstock
from penstock.backends.redis import copying, rekeying
from penstock.backends.redis.finishing import Finishing
from penstock.redis_settings import RedisSettings
from tests.encryption.stores import ALL_KEYS, SECRETS, Keys, fill
from tests.redis.one_cluster import PATIENT, Place
from tests.redis.rekeyer import killed_at_work
from tests.redis.sealed import all_contents, shown_by
from tests.redis.servers import (
    RunningCluster,
    packaged_redis,
    packaged_valkey,
    running_cluster,
    wait_until,
)
from tests.redis.test_cluster_encryption import FLAVOURS, PAYLOAD, sealed_by
from tests.redis.test_cluster_load import reshard, slot_of

pytestmark = pytest.mark.xdist_group("redis-lists-cluster")


@pytest.fixture(params=FLAVOURS)
def own(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RunningCluster]:
    binary = {"redis": packaged_redis, "valkey": packaged_valkey}[request.param]()
    with running_cluster(tmp_path / "cluster", binary, options=PATIENT) as cluster:
        yield cluster


@pytest.mark.soak
def test_a_rekeying_that_is_killed_is_gone_on_with_though_masters_are_killed_too(own: RunningCluster) -> None:
    place = Place("lists", own)
    ps = place.open()
    fill(ps)
    q = ps.queue("q")
    for number in range(20):
        q.enqueue_many([NewMessage(PAYLOAD) for _ in range(20)])
        ps.journal("world").append([Entry(SECRETS["entry-kind"], b"%d" % number)])
    q.reject([d.receipt for d in q.lease(50)], reason=SECRETS["reject-reason"])
    was = all_contents(ps)
    ps.close()
    rng, kills = random.Random(4), 0
    first = own.masters[0]
    arguments = [first.binary.flavour, str(first.port), place.prefix, "main", "cluster"]
    while not (said := killed_at_work(arguments, rng.randrange(5, 60), rng)).startswith("ended"):
        kills += 1
        if kills in (2, 4, 6):
            one = own.masters[kills // 2 - 1]
            one.kill()
            one.start()
            assert wait_until(own.is_whole, 20)
        place.forget_rekeyer()  # It would be waited for, for ten seconds.
        with place.sealed(ALL_KEYS, follow=True) as half:
            assert all_contents(half) == was, "half done, everything can be read"
    assert (said, kills > 6) == ("ended 0\n", True)
    with place.sealed(Keys("main")) as ended:
        assert ended.info().default.rekey_from == []
        assert all_contents(ended) == was
        assert ended.check().ok
    assert shown_by(place.everything()) == set()
    assert not [key for key in place.stored() if b"copy:" in key]


# -- servers that are others


def killed(cluster: RunningCluster, _: Penstock) -> None:
    """A master that has nothing of the store's own comes back with another order of what it has."""
    cluster.masters[0].kill()
    cluster.masters[0].start()
    assert wait_until(cluster.is_whole, 20)


def moved(cluster: RunningCluster, _: Penstock) -> None:
    slot = slot_of("spare")
    reshard(cluster, slot, cluster.masters[0], cluster.masters[2], pause_s=0)


def replaced(cluster: RunningCluster, _: Penstock) -> None:
    """By its replica, which has everything."""
    replica = cluster.replicas[0]
    assert wait_until(lambda: replica.do("CLUSTER", "FAILOVER") == b"OK")
    assert wait_until(lambda: replica.do("ROLE")[0] == b"master", 20)


@pytest.mark.parametrize(
    "become_others",
    [moved, pytest.param(killed, marks=pytest.mark.soak), pytest.param(replaced, marks=pytest.mark.soak)],
)
def test_a_rekeying_begins_anew_when_servers_are_others(
    own: RunningCluster,
    monkeypatch: pytest.MonkeyPatch,
    become_others: Callable[[RunningCluster, Penstock], None],
) -> None:
    monkeypatch.setattr(rekeying, "VALUES_PER_SLICE", 10)
    monkeypatch.setattr(copying, "FRAMES_PER_SLICE", 3)
    place = Place("lists", own)
    ps = place.open()
    for name in ("work", "spare", "dead"):
        # More than a hash keeps in one piece: else it is read at once, and has no places.
        ps.create_queue(name).enqueue_many([NewMessage(PAYLOAD * 8) for _ in range(600)])
    ps.close()
    sealing = place.sealed(ALL_KEYS)
    steps: list[tuple[int, str]] = []
    real = rekeying.Rekeying._step

    def step(self: rekeying.Rekeying, row: rekeying.RekeyRow) -> None:
        steps.append((row.part, row.name))
        if steps.count((rekeying._BODIES, "spare")) == 9 and (-1, "") not in steps:
            steps.append((-1, ""))
            become_others(own, sealing)
        real(self, row)

    monkeypatch.setattr(rekeying.Rekeying, "_step", step)
    report = sealing.rekey()
    assert report.unreadable == 0
    began_anew = steps.index((-1, ""))
    assert (rekeying._SECRET, "") in steps[began_anew:]
    assert sealing.info().default.rekey_from == []
    for name in ("work", "spare", "dead"):
        assert sealed_by(place, name) == {"main"}
    assert shown_by(place.everything()) == set()
    with place.sealed(Keys("main")) as again:
        assert [len(again.queue(name).lease(1000)) for name in ("work", "spare", "dead")] == [600] * 3
        assert again.check().ok
    sealing.close()


def test_the_old_key_is_kept_until_slots_are_at_home_and_replicas_have_everything(
    own: RunningCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """And what is waited for is told."""
    monkeypatch.setattr(rekeying, "TELL_EVERY", 15)
    place = Place("lists", own)
    ps = place.open()
    ps.create_queue("spare").enqueue(PAYLOAD)
    sealing = place.sealed(ALL_KEYS)
    source, target, replica = own.masters[0], own.masters[2], own.replicas[1]
    slot = 1  # Of nothing: calls of a queue whose slot is on its way wait anyway.
    target.do("CLUSTER", "SETSLOT", slot, "IMPORTING", source.do("CLUSTER", "MYID"))
    source.do("CLUSTER", "SETSLOT", slot, "MIGRATING", target.do("CLUSTER", "MYID"))
    waits: list[list[str]] = []

    def pause(self: rekeying.Rekeying) -> None:
        """Each thing that is waited for ends when it was waited for a while."""
        waits.append(sealing.info().default.rekey_from)
        threading.Event().wait(0.05)
        if len(waits) == 50:  # By then replicas have told what they have.
            replica.pause()
            for server in (source, target):
                server.do("CLUSTER", "SETSLOT", slot, "STABLE")
            sealing.state.put("x", b"y" * 1000)  # It is with the second master.
        if len(waits) == 80:
            replica.resume()

    monkeypatch.setattr(rekeying.Rekeying, "_pause", pause)
    sealing.rekey()
    assert len(waits) >= 80
    assert waits == [[""]] * len(waits)
    assert "the old keys are kept as long as slots are on their way" in caplog.text
    assert f"as long as a replica of {own.masters[1].address} does not have everything yet" in caplog.text
    assert sealing.info().default.rekey_from == []
    sealing.close()


class OneMaster:
    """What servers say of themselves, as far as it is asked for."""

    def __init__(self) -> None:
        self.settings = RedisSettings(cluster=True)
        self.written = self.followed = 0

    def everywhere(self, *_: str) -> list[bytes]:
        return [b"aof_enabled:1\r\naof_rewrite_in_progress:0\r\n"]

    def told(self, *_: str) -> dict[tuple[str, int], bytes]:
        replica = f"slave0:ip=h,port=2,state=online,offset={self.followed},lag=0"
        return {("h", 1): f"role:master\r\nmaster_repl_offset:{self.written}\r\n{replica}\r\n".encode()}


def test_replicas_need_what_one_rekeying_has_written_and_the_next_one_more() -> None:
    server: Any = OneMaster()
    finishing = Finishing(server)
    server.written, server.followed = 100, 90
    assert finishing.waits_for(b"first") == "a replica of h:1 does not have everything yet"
    # What is written meanwhile is not part of it; else nobody could ever come to an end beside traffic.
    server.written, server.followed = 300, 100
    assert finishing.waits_for(b"first") == ""
    assert finishing.waits_for(b"second") != ""
    server.followed = 300
    assert finishing.waits_for(b"second") == ""
