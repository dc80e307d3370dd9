"""The storage section: engine, path, sizes, and what every refusal says."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from penstock import config
from penstock.config import RocksDBSettings, StorageSettings
from tests.unit.config.reading import STORAGE_KEYS, Read, Refuse, storage_of


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("engine: rocksdb", {"engine": "rocksdb"}),
        ("path: /var/lib/p", {"path": "/var/lib/p"}),
        ("durability: sync", {"durability": "sync"}),
        ("durability: interval", {"durability": "interval"}),
        ("durability: os", {"durability": "os"}),
        ("interval_ms: 1", {"interval_ms": 1}),
        ("interval_ms: 60000", {"interval_ms": 60_000}),
        ("rocksdb: {mode: low_space}", {"rocksdb": RocksDBSettings(mode="low_space")}),
        ("rocksdb: {cache_capacity: 64MiB}", {"rocksdb": RocksDBSettings(cache_capacity=64 * 2**20)}),
        (
            "encryption: {enabled: false, key_id: other}",
            {"encryption": config.EncryptionSettings(enabled=False, key_id="other")},
        ),
        ("encryption: {enabled: true}", {"encryption": config.EncryptionSettings(enabled=True)}),
        ("encryption: {key_file: /k}", {"encryption": config.EncryptionSettings(key_file="/k")}),
        (
            "encryption: {key_command: 'pass show \"a b\"'}",
            {"encryption": config.EncryptionSettings(key_command=("pass", "show", "a b"))},
        ),
        (
            "encryption: {key_command: [a, b c]}",
            {"encryption": config.EncryptionSettings(key_command=("a", "b c"))},
        ),
        ("encryption:", {}),
    ],
)
def test_each_storage_key_is_read(read: Read, tmp_path: Path, line: str, expected: dict[str, object]) -> None:
    usual = StorageSettings(path=str(tmp_path / "penstock-data"))
    assert read(f"storage:\n  {line}").default == msgspec.structs.replace(usual, **expected)


def test_the_memory_engine_has_no_path(read: Read) -> None:
    assert read("storage: {engine: memory, path: x}").default == StorageSettings(engine="memory", path="")


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("~", "/home/ann"),
        ("~/data", "/home/ann/data"),
        ("$HOME/data", "/home/ann/data"),
        ("${HOME}/data", "/home/ann/data"),
        ("/srv/${HOST}", "/srv/alpha"),
        ("/srv/$$HOME", "/srv/$HOME"),
        ("/srv/$HOMER", "/srv/$HOMER"),
        ("/srv/~", "/srv/~"),
        ("data", "{folder}/data"),
        ("./a/../data", "{folder}/a/../data"),
        ("~ann", "{folder}/~ann"),
        ("a?b#c%20d", "{folder}/a?b#c%20d"),
        ("día ☃", "{folder}/día ☃"),
    ],
)
def test_paths_are_expanded_and_relative_to_the_file(
    read: Read, tmp_path: Path, path: str, expected: str
) -> None:
    loaded = read(f"storage: {{path: '{path}'}}", HOST="alpha")
    assert storage_of(loaded).path == expected.replace("{folder}", str(tmp_path))


def test_a_file_named_relatively_still_gives_an_absolute_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "penstock.yml").write_text("storage: {path: data}")
    monkeypatch.chdir(tmp_path)
    loaded = config.resolve("conf/penstock.yml", {})
    assert (storage_of(loaded).path, loaded.source) == (str(tmp_path / "conf" / "data"), "conf/penstock.yml")


def test_home_is_found_without_its_variable(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text("storage: {path: ~/data}")
    assert storage_of(config.load(tmp_path / "p.yaml", {})).path == os.path.expanduser("~/data")


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ("1024", 1024),
        ("'1024'", 1024),
        ("64KiB", 64 * 1024),
        ("64 KiB", 64 * 1024),
        ("256MiB", 256 * 1024**2),
        ("2GiB", 2 * 1024**3),
        ("1024GiB", 1024**4),
        ("64KB", 64_000),
        ("256MB", 256_000_000),
        ("2GB", 2_000_000_000),
    ],
)
def test_sizes_are_bytes_or_have_a_unit(read: Read, size: str, expected: int) -> None:
    loaded = read(f"storage: {{rocksdb: {{cache_capacity: {size}}}}}")
    assert storage_of(loaded).rocksdb.cache_capacity == expected


@pytest.mark.parametrize(
    "size",
    [
        "0",
        "1023",
        "-5",
        "1.5GiB",
        "MiB",
        "''",
        "256mib",
        "256 TiB",
        "true",
        "null",
        "[1]",
        "1025GiB",
        "'٣MiB'",
        "1e9",
    ],
)
def test_other_sizes_are_refused_with_the_units(refusal: Refuse, size: str) -> None:
    assert refusal(f"storage: {{rocksdb: {{cache_capacity: {size}}}}}") == (
        "storage.rocksdb.cache_capacity must be 1KiB to 1024GiB, as bytes or with a unit; "
        "accepted: KiB, MiB, GiB, KB, MB, GB"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{engine: lmdb}", "storage.engine is 'lmdb'; accepted: rocksdb, memory"),
        ("{engine: RocksDB}", "storage.engine is 'RocksDB'; accepted: rocksdb, memory"),
        ("{engine: [rocksdb]}", "storage.engine is ['rocksdb']; accepted: rocksdb, memory"),
        ("{engine: }", "storage.engine is None; accepted: rocksdb, memory"),
        ("{durability: on}", "storage.durability is True; accepted: sync, interval, os"),
        ("{durability: {a: b}}", "storage.durability is {'a': 'b'}; accepted: sync, interval, os"),
        ("{path: 5}", "storage.path cannot be used: Expected `str`, got `int`"),
        ("{path: }", "storage.path cannot be used: Expected `str`, got `null`"),
        ("{path: ''}", "storage.path must be a path that is not empty and has no NUL in it"),
        ('{path: "a\\0b"}', "storage.path must be a path that is not empty and has no NUL in it"),
        ("{interval_ms: 0}", "storage.interval_ms is out of range; accepted: 1 to 60000"),
        ("{interval_ms: -1}", "storage.interval_ms is out of range; accepted: 1 to 60000"),
        ("{interval_ms: 60001}", "storage.interval_ms is out of range; accepted: 1 to 60000"),
        ("{interval_ms: '50'}", "storage.interval_ms cannot be used: Expected `int`, got `str`"),
        ("{interval_ms: 50.0}", "storage.interval_ms cannot be used: Expected `int`, got `float`"),
        ("{interval_ms: true}", "storage.interval_ms cannot be used: Expected `int`, got `bool`"),
        (
            "{rocksdb: fast}",
            "storage.rocksdb must be a mapping, not str; accepted keys: cache_capacity, mode",
        ),
        (
            "{rocksdb: [mode]}",
            "storage.rocksdb must be a mapping, not list; accepted keys: cache_capacity, mode",
        ),
        ("{rocksdb: {mode: 1}}", "storage.rocksdb.mode is 1; accepted: low_space, high_throughput"),
        ("{rocksdb: {mod: x}}", "storage.rocksdb.mod is not known; accepted: cache_capacity, mode"),
        (
            "{encryption: yes}",
            (
                "storage.encryption must be a mapping, not bool; "
                "accepted keys: enabled, key_id, key_file, key_command"
            ),
        ),
        (
            "{encryption: {key: k}}",
            "storage.encryption.key is not known; accepted: enabled, key_id, key_file, key_command",
        ),
        (
            "{encryption: {enabled: 'no'}}",
            (
                "storage.encryption.enabled cannot be used: Expected `bool | null`, got `str`; "
                "accepted: true, false"
            ),
        ),
        ("{encryption: {key_id: 7}}", "storage.encryption.key_id cannot be used: Expected `str`, got `int`"),
        (
            "{encryption: {key_id: 'a b'}}",
            (
                "storage.encryption.key_id is 'a b'; accepted: 1 to 64 letters, digits, dots, "
                "underscores and hyphens"
            ),
        ),
        (
            "{encryption: {key_file: ''}}",
            "storage.encryption.key_file must be a path that is not empty and has no NUL in it",
        ),
        (
            "{encryption: {key_command: ''}}",
            "storage.encryption.key_command must be a command and its arguments",
        ),
        (
            "{encryption: {key_command: []}}",
            "storage.encryption.key_command must be a command and its arguments",
        ),
        (
            '{encryption: {key_command: "a \'b"}}',
            "storage.encryption.key_command has unbalanced quotes: No closing quotation",
        ),
        ("{engines: rocksdb}", f"storage.engines is not known; accepted: {', '.join(STORAGE_KEYS)}"),
        ("./data", f"storage must be a mapping, not str; accepted keys: {', '.join(STORAGE_KEYS)}"),
    ],
)
def test_each_wrong_storage_value_is_refused_by_its_key(refusal: Refuse, text: str, message: str) -> None:
    assert refusal(f"storage: {text}") == message
