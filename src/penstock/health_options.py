"""The thresholds that an embedded store's health is judged by: the keys that servers have, but for theirs."""

from __future__ import annotations

import msgspec

from penstock.reading import Reader, join
from penstock.redis_options import GROUPS, OPTIONS, converted
from penstock.settings import HealthSettings

#: Without what only a server has: a limit on its memory.
KEYS = tuple(leaf for leaf in GROUPS["health"] if leaf != "max_memory_ratio")


def field_of(leaf: str) -> str:
    """The field of `HealthSettings` that a key sets."""
    return OPTIONS[f"health.{leaf}"].field.partition(".")[2]


def store_health(reader: Reader, key: str, section: object, base: HealthSettings) -> HealthSettings:
    given = reader.mapping(key, section, KEYS)
    reader.check_keys(key, given, KEYS)
    values = {
        field_of(leaf): converted(reader, join(key, leaf), OPTIONS[f"health.{leaf}"], raw)
        for leaf, raw in given.items()
    }
    return msgspec.structs.replace(base, **values)
