"""`min_replicas`: a call is done when replicas have confirmed it, or says that they have not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import BackendUnavailable, NewMessage
from penstock.backends.redis.calling import Sender
from penstock.config import from_url
from penstock.message import format_id
from penstock.testing.background import Background
from penstock.testing.folding import prove_journal, read_events
from penstock.testing.harness import drain, take_one
from tests.redis.interrupting import server_of
from tests.redis.servers import (
    HOST,
    RunningServer,
    packaged_redis,
    packaged_valkey,
    running,
    running_cluster,
    wait_until,
)

pytestmark = pytest.mark.xdist_group("redis-replicas")

Pair = tuple[RunningServer, RunningServer]


@pytest.fixture(scope="module", params=[packaged_redis(), packaged_valkey()], ids=repr)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """A server and its replica."""
    folder, options = tmp_path_factory.mktemp("pair"), {"repl-diskless-sync-delay": "0"}
    with (
        running(folder / "master", request.param, options=options) as master,
        running(folder / "replica", request.param, options=options) as replica,
    ):
        replica.do("REPLICAOF", HOST, master.port)
        assert wait_until(lambda: master.do("WAIT", 1, 100) == 1)
        yield master, replica


@pytest.fixture
def paused(pair: Pair) -> Iterator[RunningServer]:
    """A replica that follows, but does not get on."""
    pair[0].do("FLUSHALL")
    assert pair[0].do("WAIT", 1, 10_000) == 1
    pair[1].pause()
    yield pair[1]
    pair[1].resume()


def url_of(server: RunningServer, wanted: int, timeout: str = "50ms") -> str:
    return f"{server.url()}?min_replicas={wanted}&replica_timeout={timeout}"


def be_careful(ps: penstock.Penstock, url: str) -> None:
    """From now on: without replicas, a store could not even be opened."""
    backend: Any = ps._default
    backend._server.settings = backend._server._sender._settings = from_url(url).default


def test_what_a_replica_has_confirmed_is_there(pair: Pair) -> None:
    master, replica = pair
    master.do("FLUSHALL")
    with penstock.open(url_of(master, 1, "10s")) as ps:
        q = ps.create_queue("q")
        for n in range(20):
            q.enqueue(b"%d" % n)
            delivery = take_one(q)
            q.ack([delivery.receipt])
            have = [server.do("GET", "penstock:ps1:{q}:c") for server in pair]
            assert have[0] == have[1] is not None
        ps.state.put("k", b"v")
        assert replica.do("HGET", "penstock:ps1:{~}:state", "k") is not None


def test_a_call_that_nobody_confirms_fails_and_was_done_once(
    pair: Pair, paused: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when it is sent again over another connection, which has written nothing by then."""
    with penstock.open(url_of(pair[0], 0)) as ps:
        ps.create_queue("q")
    tries: list[None] = []

    def renew(self: Sender, attempts: int) -> None:
        tries.append(None)
        self._renew()

    monkeypatch.setattr(Sender, "_wait", renew)
    with penstock.open(url_of(pair[0], 0)) as ps:
        be_careful(ps, url_of(pair[0], 1))
        with pytest.raises(BackendUnavailable) as failed:
            ps.queue("q").enqueue(b"x")
    assert "0 of 1 replicas (min_replicas) have confirmed within 0.05 s" in str(failed.value)
    assert failed.value.retryable
    assert len(tries) == 4
    paused.resume()
    with penstock.open(url_of(pair[0], 1, "10s")) as ps:
        q = ps.queue("q")
        assert [str(event.kind) for event in read_events(q)] == ["enqueued"]
        assert drain(q) == [b"x"]
        prove_journal(q)


def test_what_is_there_already_is_not_confirmed_for_that(
    pair: Pair, paused: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who was told that it may be lost, and enqueues it again, over a connection that has written nothing."""
    one = format_id(bytes(15) + b"\1")
    with penstock.open(url_of(pair[0], 0)) as ps:
        ps.create_queue("q").enqueue_many([NewMessage(b"x", id=one), NewMessage(b"x", dedup_id="order-1")])
    monkeypatch.setattr(Sender, "_wait", lambda self, attempts: self._renew())
    for again in (NewMessage(b"x", id=one), NewMessage(b"x", dedup_id="order-1")):
        with penstock.open(url_of(pair[0], 0)) as ps:
            q = ps.queue("q")
            be_careful(ps, url_of(pair[0], 1))
            server_of(ps)._sender._renew()
            with pytest.raises(BackendUnavailable, match="0 of 1 replicas"):
                q.enqueue_many([again])
    paused.resume()
    with penstock.open(url_of(pair[0], 1, "10s")) as ps:
        (result,) = ps.queue("q").enqueue_many([NewMessage(b"x", id=one)])
        assert (result.ok, result.duplicate) == (True, True)


def test_a_call_is_confirmed_as_soon_as_a_replica_gets_on(pair: Pair, paused: RunningServer) -> None:
    with penstock.open(url_of(pair[0], 0)) as ps:
        ps.create_queue("q")
    with penstock.open(url_of(pair[0], 0)) as ps:
        be_careful(ps, url_of(pair[0], 1, "20s"))
        sending = Background(lambda: ps.queue("q").enqueue(b"x"))
        assert wait_until(lambda: pair[0].do("HLEN", "penstock:ps1:{q}:m") == 1)
        assert sending.running
        paused.resume()
        assert sending.result()
        assert drain(ps.queue("q")) == [b"x"]


def test_health_tells_of_replicas_that_are_missing(pair: Pair) -> None:
    with penstock.open(url_of(pair[0], 0)) as ps:
        assert "min_replicas" not in str(ps.health().reasons)
        be_careful(ps, url_of(pair[0], 2))
        health = ps.health()
        assert health.status == "degraded"
        assert (
            f"{pair[0].address} has 1 replicas, min_replicas is 2: writes there fail"
            in health.reasons["default"]
        )


def test_a_failover_loses_what_no_replica_had_unless_it_was_asked_for(tmp_path: Path) -> None:
    with running_cluster(tmp_path) as cluster:
        with penstock.open(f"{cluster.url()}&min_replicas=1") as ps:
            ps.create_queue("q").enqueue(b"confirmed")
        slot = cluster.masters[0].do("CLUSTER", "KEYSLOT", "{q}")
        at = min(slot * 3 // 16384, 2)
        master, replica = cluster.masters[at], cluster.replicas[at]
        with (
            penstock.open(cluster.url()) as plain,
            penstock.open(f"{cluster.url()}&min_replicas=1&replica_timeout=50ms") as careful,
        ):
            replica.pause()
            master.do("CLIENT", "KILL", "TYPE", "replica")  # Nothing is on its way any more.
            plain.queue("q").enqueue(b"told to be stored")
            with pytest.raises(BackendUnavailable, match="0 of 1 replicas"):
                careful.queue("q").enqueue(b"told not to be")
            master.kill()
            replica.resume()
            assert wait_until(lambda: replica.do("ROLE")[0] == b"master", 90)
            assert wait_until(lambda: _payloads(plain) == [b"confirmed"], 90)
            assert plain.check().ok


def _payloads(ps: penstock.Penstock) -> list[bytes]:
    try:
        return [message.payload for message in ps.queue("q").iter()]
    except BackendUnavailable:
        return []
