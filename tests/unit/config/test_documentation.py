"""The page on configuration has every key, variable and default, and its examples load."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import yaml

from penstock import config
from penstock.config import RocksDBSettings, StorageSettings
from penstock.settings import QueueSettings, Retry
from tests.unit.config.reading import OVERRIDES, Read

DOCS = Path(__file__).resolve().parents[3] / "docs" / "configuration.md"


def documented(structs: list[type[msgspec.Struct]]) -> list[str]:
    return [name for struct in structs for name in struct.__struct_fields__ if name != "name"]


def test_every_key_and_variable_is_documented() -> None:
    text = DOCS.read_text()
    sections: list[type[msgspec.Struct]] = [RocksDBSettings, config.EncryptionSettings, config.HookSettings]
    keys = documented([StorageSettings, *sections, QueueSettings, Retry])
    assert [key for key in [*keys, "url", "backend", *OVERRIDES] if f"`{key}`" not in text] == []


def test_every_documented_default_is_the_default() -> None:
    embedded = DOCS.read_text().partition("## The Redis family")[0]
    rows = dict(re.findall(r"^\| `(\w+)` \|[^|]*\| ([^|]*) \|", embedded, re.MULTILINE))
    for struct in (
        StorageSettings(),
        RocksDBSettings(),
        config.EncryptionSettings(),
        config.HookSettings(),
        QueueSettings(name="q"),
        Retry(),
    ):
        for key in struct.__struct_fields__:
            value = getattr(struct, key)
            if key == "name" or isinstance(value, msgspec.Struct):
                continue
            if key in ("cache_capacity", "memory_limit"):
                assert rows[key] == f"`{value // 2**20}MiB`"
                continue
            plain = yaml.safe_load(rows[key].strip("`"))
            assert plain == (list(value) if isinstance(value, tuple) else value), key


def test_every_documented_example_loads(read: Read) -> None:
    examples = re.findall(r"```yaml\n(.*?)```", DOCS.read_text(), re.DOTALL)
    assert len(examples) >= 3
    for example in examples:
        read(example, REDIS_PASSWORD="x")
