"""Health of a store on a cluster: every shard is asked."""

from __future__ import annotations

from pathlib import Path

import pytest

import penstock
from penstock import NewMessage
from penstock.testing.harness import errors, ids, receipts, take
from tests.docs.pages import DOCS
from tests.redis.one_cluster import PATIENT, Place
from tests.redis.servers import running_cluster, wait_until

pytestmark = pytest.mark.xdist_group("redis-lists-cluster")


def test_a_whole_cluster_is_healthy_and_says_what_it_promises() -> None:
    place = Place()
    try:
        ps = place.open()
        ps.create_queue("q")
        assert (ps.health().status, ps.health().reasons) == ("healthy", {})
        numbers = ps.health().numbers["default"]
        assert (numbers.shards, numbers.stream_length, numbers.pool_size) == (3, None, 60)
        info = ps.info().default
        assert (info.durability, info.capabilities.clustering, info.capabilities.transactions) == (
            "sync",
            True,
            False,
        )
        place.cluster.masters[2].do("CONFIG", "SET", "appendfsync", "everysec")
        try:
            assert "is 'interval' now" in str(ps.health().reasons)
            with penstock.open(place.url) as weaker:
                assert weaker.info().default.durability == "interval"
        finally:
            place.cluster.masters[2].do("CONFIG", "SET", "appendfsync", "always")
    finally:
        place.close()


def test_streams_on_a_cluster_tell_their_length_and_lag() -> None:
    place = Place("streams")
    try:
        ps = place.open()
        for name in ("work", "spare", "dead"):
            ps.create_queue(name).enqueue_many([NewMessage(b"x")] * 3)
        take(ps.queue("work"), 2)
        ps.queue("spare").create_group("first")
        ps.queue("spare").create_group("second")
        ack = ps.queue("spare").lease(1, group="first")
        ps.queue("spare").ack(receipts(ack))
        numbers = ps.health().numbers["default"]
        assert (numbers.shards, numbers.stream_length) == (3, 9)
        assert (numbers.depth, numbers.leased, numbers.consumer_lag) == (6, 2, 3)
        assert (numbers.memory_bytes or 0) > 3 * 500_000, "of all masters"
    finally:
        place.close()


def test_a_shard_that_is_down_and_slots_without_owner_are_told(tmp_path: Path) -> None:
    """Where a cluster serves what it can."""
    options = {**PATIENT, "cluster-require-full-coverage": "no", "cluster-node-timeout": "1000"}
    with running_cluster(tmp_path, replicas=0, options=options) as cluster:
        url = f"{cluster.masters[1].url()}?cluster=true".replace("/0?", "?")
        with penstock.open(url) as ps:
            # {~} is with the second, {work} too, {spare} with the first, {dead} with the third.
            for name in ("work", "spare", "dead"):
                ps.create_queue(name).enqueue(b"x")
            assert ps.health().status == "healthy"
            cluster.masters[2].do("CLUSTER", "DELSLOTS", 16383)
            assert wait_until(lambda: "1 slots have no owner" in str(ps.health().reasons))
            cluster.masters[0].kill()
            health = ps.health()
            assert health.status == "unhealthy"
            assert f"1 of 3 shards do not answer: {cluster.masters[0].address}" in health.reasons["default"]
            assert wait_until(lambda: "slots have a master that failed" in str(ps.health().reasons))
            # The others go on.
            ps.sweep()
            assert [one.payload for one in ps.queue("work").lease()] == [b"x"]
            with pytest.raises(penstock.BackendUnavailable):
                ps.queue("spare").lease()


#: Of docs/backends.md; the last five for a cluster.
ACL = [
    *("+@read", "+@write", "+@connection", "+eval", "+evalsha", "+publish", "+subscribe", "+unsubscribe"),
    *("+time", "+info", "+config|get"),
    *("+cluster|slots", "+cluster|info", "+cluster|nodes", "+wait", "+asking"),
]


def test_the_user_of_the_page_may_do_everything() -> None:
    assert " ".join(ACL[-5:]) in (DOCS / "backends.md").read_text()
    place = Place()
    rules = ["on", ">secret", f"~{place.prefix}ps1:*", "resetchannels", f"&{place.prefix}ps1:*", *ACL]
    try:
        for master in place.cluster.masters:
            master.do("ACL", "SETUSER", "worker", *rules)
        url = place.url.replace("://", "://worker:secret@") + "&min_replicas=1&replica_timeout=10s"
        with penstock.open(url, clock=place.clock) as ps:
            ps.create_queue("spare")
            q = ps.create_queue("work", dead_letter="spare")
            q.enqueue_many([NewMessage(b"x")] * 4)
            assert errors(q.reject(receipts(take(q, 2)))) == [None, None]
            assert errors(q.move(ids(q.iter()), target="spare")) == [None, None]
            assert (ps.queue("spare").length(), ps.check().ok) == (4, True)
            assert (ps.health().status, ps.health().reasons) == ("healthy", {})
            ps.delete_queue("work")
    finally:
        for master in place.cluster.masters:
            master.do("ACL", "DELUSER", "worker")
        place.close()
