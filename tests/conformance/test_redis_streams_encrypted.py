"""The suite passes on encrypted Redis streams, with the groups that share what is sealed."""

from __future__ import annotations

import pytest

from penstock.testing.compression_suite import CompressionSuite
from penstock.testing.deadletter_suite import DeadLetterSuite
from penstock.testing.failure_suite import FailureSuite
from penstock.testing.group_suite import GroupSuite
from penstock.testing.held_suite import HeldBodySuite
from penstock.testing.suite import BackendSuite
from penstock.testing.upsert_suite import UpsertSuite
from tests.conformance.test_redis_lists_encrypted import OnEncryptedLists


class OnEncryptedStreams(OnEncryptedLists):
    kind = "streams"


class TestWhatIsSealedOnRedisStreams(
    OnEncryptedStreams,
    UpsertSuite,
    GroupSuite,
    FailureSuite,
    DeadLetterSuite,
    HeldBodySuite,
    CompressionSuite,
):
    """Those that have to do with what is sealed in a stream; lists have the others."""


@pytest.mark.soak
class TestEncryptedRedisStreams(OnEncryptedStreams, BackendSuite):
    """All of them."""
