"""Factories of the embedded backend: the store is opened and verified before it serves anything."""

from __future__ import annotations

import random

from penstock.backends.embedded.backend import EmbeddedBackend
from penstock.backends.embedded.keys import SPACES
from penstock.clock import Clock
from penstock.config import StorageSettings
from penstock.kv.base import Store
from penstock.kv.memory import MemoryStore
from penstock.kv.rocksdb import RocksStore


def open_rocksdb(
    settings: StorageSettings, clock: Clock | None, rng: random.Random | None
) -> EmbeddedBackend:
    kv = RocksStore.open(
        settings.path,
        SPACES,
        cache_capacity_bytes=settings.rocksdb.cache_capacity,
        mode=settings.rocksdb.mode,
    )
    return _backend(kv, settings, clock, rng)


def open_memory(settings: StorageSettings, clock: Clock | None, rng: random.Random | None) -> EmbeddedBackend:
    return _backend(MemoryStore(SPACES), settings, clock, rng)


def _backend(
    kv: Store, settings: StorageSettings, clock: Clock | None, rng: random.Random | None
) -> EmbeddedBackend:
    try:
        return EmbeddedBackend(
            kv,
            engine_name=settings.engine,
            path=settings.path or None,
            durability=settings.durability,
            interval_ms=settings.interval_ms,
            clock=clock,
            rng=rng,
        )
    except BaseException:
        kv.close()
        raise
