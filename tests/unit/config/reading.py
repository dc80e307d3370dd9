"""What the tests of configuration share: reading, refusals, and the variables that override a file."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock import config
from penstock.config import Config, EncryptionSettings, HookSettings, RocksDBSettings, StorageSettings
from penstock.errors import InvalidConfig

SAMPLE = """\
storage:                     # the backend named "default"
  engine: rocksdb            # rocksdb | memory
  path: ~/penstock-data
  durability: sync           # sync | interval | os
  interval_ms: 50
  rocksdb: {cache_capacity: 256MiB, mode: high_throughput}     # or low_space: smaller files, slower writes; both measured
  encryption: {enabled: false, key_id: main}                   # PENSTOCK_KEY_MAIN: upper case, other characters become _
backends:                    # further ones, by name
  fast: {url: "redis+lists://localhost:6379/0", password: "${REDIS_PASSWORD}"}
queues:
  emails: {backend: default, lease_s: 30, dead_letter: emails-dead}
  clicks: {backend: fast, max_attempts: 3}
"""  # noqa: E501  # as it stands in the specification
STORAGE_KEYS = ("engine", "path", "durability", "interval_ms", "rocksdb", "encryption", "hooks", "health")
HOME = {"HOME": "/home/ann"}

#: variable -> (a value, what it makes of the settings, a wrong value, what its error says is accepted)
OVERRIDES: dict[str, tuple[str, dict[str, object], str, str]] = {
    "PENSTOCK_STORAGE_ENGINE": ("memory", {"engine": "memory", "path": ""}, "disk", "rocksdb, memory"),
    "PENSTOCK_STORAGE_PATH": (
        "/srv/p",
        {"path": "/srv/p"},
        "a\0b",
        "a path that is not empty and has no NUL",
    ),
    "PENSTOCK_STORAGE_DURABILITY": ("os", {"durability": "os"}, "x", "sync, interval, os"),
    "PENSTOCK_STORAGE_INTERVAL_MS": ("7", {"interval_ms": 7}, "0", "1 to 60000"),
    "PENSTOCK_STORAGE_ROCKSDB_CACHE_CAPACITY": (
        "1MiB",
        {"rocksdb": RocksDBSettings(cache_capacity=2**20)},
        "lots",
        "KiB, MiB, GiB, KB, MB, GB",
    ),
    "PENSTOCK_STORAGE_ROCKSDB_MODE": (
        "low_space",
        {"rocksdb": RocksDBSettings(mode="low_space")},
        "x",
        "low_space, high_throughput",
    ),
    "PENSTOCK_STORAGE_ENCRYPTION_ENABLED": (
        "true",
        {"encryption": EncryptionSettings(enabled=True)},
        "maybe",
        "true, false",
    ),
    "PENSTOCK_STORAGE_ENCRYPTION_KEY_ID": (
        "new",
        {"encryption": EncryptionSettings(key_id="new")},
        "a b",
        "1 to 64 letters, digits, dots, underscores and hyphens",
    ),
    "PENSTOCK_STORAGE_ENCRYPTION_KEY_FILE": (
        "/k",
        {"encryption": EncryptionSettings(key_file="/k")},
        "a\0b",
        "a path that is not empty and has no NUL",
    ),
    "PENSTOCK_STORAGE_ENCRYPTION_KEY_COMMAND": (
        "pass show",
        {"encryption": EncryptionSettings(key_command=("pass", "show"))},
        "'a",
        "unbalanced quotes",
    ),
    "PENSTOCK_STORAGE_HOOKS_TIME_LIMIT_MS": (
        "50",
        {"hooks": HookSettings(time_limit_ms=50)},
        "0",
        "1 to 1000",
    ),
    "PENSTOCK_STORAGE_HOOKS_MEMORY_LIMIT": (
        "4MiB",
        {"hooks": HookSettings(memory_limit=2**22)},
        "1KiB",
        "KiB, MiB, GiB, KB, MB, GB",
    ),
}

Read = Callable[..., Config]
Refuse = Callable[..., str]


def storage_of(loaded: Config) -> StorageSettings:
    assert isinstance(loaded.default, StorageSettings)
    return loaded.default


def url_storage(url: str, **environ: str) -> StorageSettings:
    return storage_of(config.from_url(url, HOME | environ))


def url_refusal(url: str, **environ: str) -> str:
    with pytest.raises(InvalidConfig) as caught:
        config.from_url(url, HOME | environ)
    return str(caught.value)
