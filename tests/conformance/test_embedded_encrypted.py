"""The embedded backend on an encrypted RocksDB store passes the suite: nobody above sees the difference."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import penstock
from penstock.clock import Clock
from penstock.config import Config, EncryptionSettings, StorageSettings
from penstock.testing.suite import BackendSuite


class OneKey:
    def key(self, key_id: str, /) -> bytes | None:
        return bytes(range(32)) if key_id == "main" else None


@pytest.mark.soak
class TestEmbeddedOnEncryptedRocksDB(BackendSuite):
    def keys(self) -> OneKey:
        return OneKey()

    def open_penstock(self, folder: Path, clock: Clock, rng: random.Random) -> penstock.Penstock:
        settings = StorageSettings(path=str(folder), encryption=EncryptionSettings(enabled=True))
        return penstock.open(Config(source="test", default=settings), clock=clock, rng=rng, keys=OneKey())
