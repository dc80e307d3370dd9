"""Health of a store on a cluster: every shard is asked."""

from __future__ import annotations

from pathlib import Path

import pytest

import penstock
from tests.redis.one_cluster import PATIENT, Place
from tests.redis.servers import running_cluster, wait_until

pytestmark = pytest.mark.xdist_group("redis-lists-cluster")


def test_a_whole_cluster_is_healthy_and_says_what_it_promises() -> None:
    place = Place()
    try:
        ps = place.open()
        ps.create_queue("q")
        assert (ps.health().status, ps.health().reasons) == ("healthy", {})
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
            assert [one.payload for one in ps.queue("work").lease()] == [b"x"]
            with pytest.raises(penstock.BackendUnavailable):
                ps.queue("spare").lease()
