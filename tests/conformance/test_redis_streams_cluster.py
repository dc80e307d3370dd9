"""The suite passes on Redis streams over a cluster: three masters, whose logs are synced at every write."""

from __future__ import annotations

import pytest

from penstock.testing.bulk_suite import MoveSuite
from penstock.testing.deadletter_suite import DeadLetterSuite
from penstock.testing.group_suite import GroupSuite
from penstock.testing.held_suite import HeldBodySuite
from penstock.testing.suite import BackendSuite
from tests.conformance.test_redis_lists_cluster import OnCluster

#: The same six servers as those of lists.
pytestmark = pytest.mark.xdist_group("redis-lists-cluster")


class _Streams(OnCluster):
    kind = "streams"


class TestWhatDiffersOnRedisStreamsCluster(_Streams, GroupSuite, DeadLetterSuite, HeldBodySuite, MoveSuite):
    """What is done otherwise than with lists on a cluster, or than with streams on one server."""


@pytest.mark.soak
class TestRedisStreamsCluster(_Streams, BackendSuite):
    """All of it."""


@pytest.mark.soak
class TestWhatDiffersOnValkeyStreamsCluster(TestWhatDiffersOnRedisStreamsCluster):
    flavour = "valkey"
