"""The file as a whole: what is read of it, and what every refusal says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from penstock import config
from penstock.config import EncryptionSettings, StorageSettings
from penstock.errors import InvalidConfig
from penstock.redis_settings import RedisSettings, Secret
from penstock.settings import QueueSettings
from tests.unit.config.reading import SAMPLE, Read, Refuse, storage_of

SECTIONS = "storage, backends, queues, security, config, server"


def test_the_documented_sample_loads_as_written(read: Read) -> None:
    loaded = read(SAMPLE, REDIS_PASSWORD="hunter2")
    assert loaded.default == StorageSettings(
        path="/home/ann/penstock-data", encryption=EncryptionSettings(enabled=False)
    )
    assert loaded.backends == {
        "fast": RedisSettings(password=Secret("hunter2", template="${REDIS_PASSWORD}"))
    }
    assert {name: queue.backend for name, queue in loaded.queues.items()} == {
        "emails": "default",
        "clicks": "fast",
    }
    assert loaded.queues["emails"].settings == QueueSettings(
        name="emails", lease_s=30.0, dead_letter="emails-dead"
    )
    assert loaded.queues["clicks"].settings == QueueSettings(name="clicks", max_attempts=3)
    assert loaded.source.endswith("penstock.yaml")


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n", "{}", "storage:\nbackends:\nqueues:\n"])
def test_what_is_left_out_or_left_empty_has_its_default(read: Read, tmp_path: Path, text: str) -> None:
    loaded = read(text)
    assert loaded.default == StorageSettings(path=str(tmp_path / "penstock-data"))
    assert (loaded.backends, loaded.queues) == ({}, {})


def test_a_byte_order_mark_is_skipped(read: Read) -> None:
    assert storage_of(read(b"\xef\xbb\xbfstorage: {durability: os}")).durability == "os"


def test_settings_are_frozen(read: Read) -> None:
    with pytest.raises(AttributeError):
        read("").source = "other"  # type: ignore[misc]  # that is what is tested


@pytest.mark.parametrize("text", ["- a", "text", "42", "[storage]", "null and void"])
def test_a_document_that_is_not_a_mapping_is_refused(refusal: Refuse, text: str) -> None:
    assert re.fullmatch(rf"must be a mapping, not \w+; accepted keys: {SECTIONS}", refusal(text))


def test_an_unknown_section_is_refused_with_the_known_ones(refusal: Refuse) -> None:
    assert refusal("storrage: {}") == f"storrage is not known; accepted: {SECTIONS}"


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("storage: {}\nstorage: {}", "storage"),
        ("storage:\n  path: a\n  path: b", "storage.path"),
        ("queues:\n  a: {}\n  a: {}", "queues.a"),
        ("queues:\n  a: {}\n  'a': {}", "queues.a"),
        ("backends:\n  b: {url: 'http://h', x: 1, x: 2}", "backends.b.x"),
    ],
)
def test_a_key_that_is_there_twice_is_refused_with_its_line(refusal: Refuse, text: str, key: str) -> None:
    assert re.match(rf"{key} is there twice, again in line \d;", refusal(text))


def test_yaml_syntax_errors_give_the_place(refusal: Refuse) -> None:
    assert refusal("storage:\n  path: [a") == "is not one valid YAML document, line 2, column 11"
    assert "is not one valid YAML document" in refusal("storage: {}\n---\nqueues: {}")
    assert "is not one valid YAML document" in refusal("storage: \0")


def test_a_file_that_is_not_utf8_is_refused(refusal: Refuse) -> None:
    assert refusal(b"storage: {path: \xff}") == "is not UTF-8 at byte 16; save it as UTF-8"
    assert "is not UTF-8" in refusal("storage: {}".encode("utf-16"))


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match=r"none\.yaml cannot be read: No such file or directory"):
        config.load(tmp_path / "none.yaml")
    with pytest.raises(InvalidConfig, match="cannot be read: Is a directory"):
        config.load(tmp_path)
    with pytest.raises(InvalidConfig, match="cannot be read: embedded null"):
        config.load("a\0.yaml")


@pytest.mark.parametrize("key", ["1", "no", "2024-01-01", "~", "[a, b]", "{a: b}", "<<", "=", "!x y"])
def test_a_key_that_yaml_does_not_read_as_text_is_refused(refusal: Refuse, key: str) -> None:
    message = refusal(f"queues:\n  ? {key}\n  : {{}}")
    assert message == "queues has a key that is not text, in line 2; put it in quotes"
