"""What `interval` mode promises does not wait for what a sweep has to do."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import penstock
from penstock.backends.embedded.upkeep import Upkeep
from penstock.kv.rocksdb import RocksStore

PATIENCE_S = 30.0


def test_syncs_go_on_while_a_sweep_takes_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweeping, go_on, synced = threading.Event(), threading.Event(), threading.Event()

    def long_sweep(self: Upkeep, budget: int) -> int:
        sweeping.set()
        go_on.wait(PATIENCE_S)
        return 0

    sync = RocksStore.sync

    def noted(self: RocksStore) -> None:
        sync(self)
        if sweeping.is_set():
            synced.set()

    monkeypatch.setattr(Upkeep, "tidy", long_sweep)
    monkeypatch.setattr(RocksStore, "sync", noted)
    with penstock.open(f"rocksdb:{tmp_path}?durability=interval&interval_ms=5") as ps:
        q = ps.create_queue("q")
        assert sweeping.wait(PATIENCE_S)
        q.enqueue(b"")
        assert synced.wait(PATIENCE_S)
        go_on.set()
