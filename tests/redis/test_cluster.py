"""A cluster of real servers: each script runs where its key is, also while slots move and masters die."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis.crc import key_slot

from penstock.backends.redis.connecting import Script, Server, connect
from penstock.errors import BackendUnavailable, InvalidConfig, StorageError
from penstock.redis_settings import RedisSettings, RetrySettings
from tests.redis.clocks import SkippingClock
from tests.redis.servers import HOST, RunningCluster, RunningServer, running_cluster, wait_until

pytestmark = pytest.mark.xdist_group("redis-cluster")

COUNT = Script("count", b"return {redis.call('INCR', KEYS[1]), ARGV[2]}")
BOTH = Script("both", b"redis.call('SET', KEYS[1], 1) return redis.call('INCR', KEYS[2])")
FIRST = b"0123456789abcdef0"
KEYS = [b"{queue-%d}:n" % number for number in range(60)]


def settings_of(cluster: RunningCluster, **changes: object) -> RedisSettings:
    nodes = tuple((HOST, server.port) for server in cluster.masters)
    return RedisSettings(**{"nodes": nodes, "cluster": True, **changes})  # type: ignore[arg-type]


@pytest.fixture
def server(shared_cluster: RunningCluster) -> Iterator[Server]:
    for master in shared_cluster.masters:
        master.do("FLUSHALL")
    server = connect(settings_of(shared_cluster))
    yield server
    server.close()


def test_scripts_run_where_their_keys_are(server: Server, shared_cluster: RunningCluster) -> None:
    for key in KEYS:
        assert server.run(COUNT, [key], [0, FIRST]) == [1, FIRST]
    counts = server.everywhere("DBSIZE")
    assert len(counts) == 3
    assert sum(counts) == len(KEYS)
    assert all(counts)
    assert server.health().nodes == 3


def test_many_calls_are_one_round_trip_to_each_server_with_answers_in_order(server: Server) -> None:
    calls = [(COUNT, [key], [0, FIRST]) for key in KEYS]
    assert server.run_many(calls) == [[1, FIRST]] * len(KEYS)
    before = server.health().calls
    assert server.run_many(calls) == [[2, FIRST]] * len(KEYS)
    assert server.health().calls - before == 3 + 1


def test_keys_of_one_tag_are_used_together_and_keys_of_two_are_refused(server: Server) -> None:
    assert server.run(BOTH, [b"{a}1", b"{a}2"], []) == 1
    with pytest.raises(StorageError, match="CROSSSLOT"):
        server.run(BOTH, [b"{a}1", b"{b}2"], [])


def test_commands_go_where_their_key_is(server: Server) -> None:
    for key in KEYS[:10]:
        assert server.command("SET", key, b"v") == b"OK"
        assert server.command(b"OBJECT", b"ENCODING", key) == b"embstr"


def test_a_flush_of_scripts_on_every_server_is_survived(server: Server) -> None:
    calls = [(COUNT, [key], [0, FIRST]) for key in KEYS]
    server.run_many(calls)
    server.everywhere("SCRIPT", "FLUSH")
    assert server.run_many(calls) == [[2, FIRST]] * len(KEYS)


def test_what_one_server_publishes_is_heard_at_another(
    server: Server, shared_cluster: RunningCluster
) -> None:
    told: list[None] = []
    server.listen(b"c", lambda: told.append(None))
    assert wait_until(lambda: len(told) == 1)
    for number, master in enumerate(shared_cluster.masters):
        master.do("PUBLISH", "c", "x")
        assert wait_until(lambda: len(told) == number + 2)  # noqa: B023  (called at once)


def test_who_listens_moves_to_another_server_when_its_own_is_gone(tmp_path: Path) -> None:
    with running_cluster(tmp_path, masters=3, replicas=0) as cluster:
        server = connect(settings_of(cluster, retry=RetrySettings(first_delay_s=0.01, max_delay_s=0.1)))
        try:
            told: list[None] = []
            server.listen(b"c", lambda: told.append(None))
            assert wait_until(lambda: len(told) == 1)
            (here,) = [m for m in cluster.masters if m.do("PUBSUB", "NUMSUB", "c") == [b"c", 1]]
            here.kill()
            assert wait_until(lambda: len(told) >= 2)
        finally:
            server.close()


def test_one_server_of_a_cluster_alone_is_refused_and_so_is_a_cluster_that_is_none(
    shared_cluster: RunningCluster, shared_server: RunningServer
) -> None:
    with pytest.raises(InvalidConfig, match=r"is a cluster; add \?cluster=true"):
        connect(RedisSettings(nodes=((HOST, shared_cluster.masters[0].port),)))
    with pytest.raises(InvalidConfig, match=r"is no member of a cluster; leave out \?cluster=true"):
        connect(RedisSettings(nodes=((HOST, shared_server.port),), cluster=True))


def test_one_server_that_answers_is_enough_to_find_the_others(shared_cluster: RunningCluster) -> None:
    nodes = ((HOST, 1), (HOST, shared_cluster.masters[2].port))
    server = connect(settings_of(shared_cluster, nodes=nodes))
    try:
        assert len(server.everywhere("PING")) == 3
    finally:
        server.close()


def moved(cluster: RunningCluster, slot: int, source: RunningServer, target: RunningServer) -> Iterator[str]:
    """The steps of moving a slot, as an operator's tool does them."""
    source_id, target_id = source.do("CLUSTER", "MYID"), target.do("CLUSTER", "MYID")
    target.do("CLUSTER", "SETSLOT", slot, "IMPORTING", source_id)
    source.do("CLUSTER", "SETSLOT", slot, "MIGRATING", target_id)
    yield "moving"
    keys = source.do("CLUSTER", "GETKEYSINSLOT", slot, 100)
    for key in keys:
        source.do("MIGRATE", HOST, target.port, key, 0, 5000)
    yield "keys moved"
    for server in (target, source, *cluster.masters):
        server.do("CLUSTER", "SETSLOT", slot, "NODE", target_id)
    yield "moved"


def test_a_slot_that_moves_is_followed_without_a_call_that_fails_or_counts_twice(
    server: Server, shared_cluster: RunningCluster
) -> None:
    key = b"{queue-1}:n"
    slot = key_slot(key)
    at = min(slot * 3 // 16384, 2)
    source, target = shared_cluster.masters[at], shared_cluster.masters[(at + 1) % 3]
    count = 0
    for way in ((source, target), (target, source)):
        for step in moved(shared_cluster, slot, *way):
            count += 1
            assert server.run(COUNT, [key], [0, FIRST]) == [count, FIRST], step
            count += 1
            assert server.run_many([(COUNT, [key], [0, FIRST])]) == [[count, FIRST]], step


def test_a_call_of_several_keys_waits_until_their_slot_has_moved(shared_cluster: RunningCluster) -> None:
    """Of a slot on its way, a server does not take keys together if one of them is not there."""
    slot = key_slot(b"{queue-2}")
    at = min(slot * 3 // 16384, 2)
    ways = [shared_cluster.masters[at], shared_cluster.masters[(at + 1) % 3]]
    for source, target in (ways, ways[::-1]):
        steps = moved(shared_cluster, slot, source, target)
        clock = SkippingClock(lambda number: list(steps))  # noqa: B023  (called at once)
        server = connect(settings_of(shared_cluster), clock=clock)
        try:
            server.everywhere("FLUSHALL")
            next(steps)
            server.run(BOTH, [b"{queue-2}1", b"{queue-2}2"], [])
            assert clock.waits_s
        finally:
            server.close()


def test_a_master_that_dies_is_replaced_and_calls_go_on_by_themselves(tmp_path: Path) -> None:
    with running_cluster(tmp_path) as cluster:
        server = connect(
            settings_of(cluster, read_timeout_s=1.0, retry=RetrySettings(attempts=3, breaker_open_s=0.2))
        )
        told: list[None] = []
        try:
            server.listen(b"c", lambda: told.append(None))
            for key in KEYS:
                server.run(COUNT, [key], [0, FIRST])
            for master in cluster.masters:
                assert master.do("WAIT", 1, 2000) == 1
            cluster.masters[0].kill()

            def goes_on() -> bool:
                try:
                    for key in KEYS:
                        server.run(COUNT, [key], [0, FIRST])
                except BackendUnavailable:
                    return False
                return True

            assert wait_until(goes_on, 30)
            assert all(server.run(COUNT, [key], [0, FIRST])[0] >= 3 for key in KEYS)
            heard = len(told)
            assert wait_until(lambda: server.command("PUBLISH", "c", "x") is not None and len(told) > heard)
        finally:
            server.close()
        assert threading.active_count() < 20
