"""The suite passes on encrypted Redis lists: nobody above sees the difference."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from penstock.clock import Clock
from penstock.config import Config, EncryptionSettings
from penstock.redis_settings import RedisSettings
from penstock.testing.admin_suite import AdminSuite
from penstock.testing.bulk_plan_suite import BulkPlanSuite
from penstock.testing.bulk_read_suite import BulkReadSuite
from penstock.testing.bulk_reject_suite import BulkRejectSuite
from penstock.testing.bulk_suite import MoveSuite
from penstock.testing.bulk_write_suite import BulkWriteSuite
from penstock.testing.compression_suite import CompressionSuite
from penstock.testing.deadletter_suite import DeadLetterSuite
from penstock.testing.dedup_suite import DedupSuite
from penstock.testing.failure_suite import FailureSuite
from penstock.testing.harness import BackendCase
from penstock.testing.held_suite import HeldBodySuite
from penstock.testing.hook_suite import HookSuite
from penstock.testing.journal_suite import JournalSuite
from penstock.testing.persistence_suite import PersistenceSuite
from penstock.testing.restore_suite import RestoreSuite
from penstock.testing.state_suite import StateSuite
from penstock.testing.suite import BackendSuite
from penstock.testing.upsert_suite import UpsertSuite
from penstock.testing.world_suite import WorldSuite
from tests.redis.one_server import shared


class OneKey:
    def key(self, key_id: str, /) -> bytes | None:
        return bytes(range(32)) if key_id == "main" else None


class OnEncryptedLists(BackendCase):
    kind = "lists"

    @pytest.fixture(autouse=True)
    def emptied(self) -> Iterator[None]:
        yield
        with shared().client() as client:
            client.flushall(asynchronous=True)

    def keys(self) -> OneKey:
        return OneKey()

    def open_penstock(self, folder: Path, clock: Clock, rng: random.Random) -> penstock.Penstock:
        settings = RedisSettings(
            kind=self.kind,
            nodes=(("127.0.0.1", shared().port),),
            key_prefix=hashlib.sha256(str(folder).encode()).hexdigest()[:12] + "-",
            encryption=EncryptionSettings(enabled=True),
        )
        return penstock.open(Config(source="test", default=settings), clock=clock, rng=rng, keys=OneKey())


class TestWhatIsSealedOnRedisLists(
    OnEncryptedLists,
    UpsertSuite,
    DedupSuite,
    FailureSuite,
    HookSuite,
    DeadLetterSuite,
    MoveSuite,
    HeldBodySuite,
    JournalSuite,
    WorldSuite,
    StateSuite,
    CompressionSuite,
    PersistenceSuite,
    AdminSuite,
    BulkReadSuite,
    BulkPlanSuite,
    BulkWriteSuite,
    BulkRejectSuite,
    RestoreSuite,
):
    """Those that have to do with what is sealed; the others pass bodies through."""


@pytest.mark.soak
class TestEncryptedRedisLists(OnEncryptedLists, BackendSuite):
    """All of them."""
