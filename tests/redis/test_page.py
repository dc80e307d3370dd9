"""docs/configuration.md has every key, default and difference of the Redis family, as the code has them."""

from __future__ import annotations

import pytest

from penstock.backends.redis.differences import DIFFERENCES, OLDEST
from penstock.redis_options import ALIASES, GROUPS, OPTIONS, QUEUE, Option
from penstock.redis_settings import FLAVOURS, RedisSettings, schemes
from tests.docs.pages import DOCS, section, table

PAGE = DOCS / "configuration.md"


def default_of(option: Option) -> str:
    value: object = RedisSettings()
    for part in option.field.split("."):
        value = getattr(value, part)
    if value is None and option.field in DIFFERENCES["redis"].__struct_fields__:
        value = getattr(DIFFERENCES["redis"], option.field)
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g} s" if option.kind == "seconds" else str(value)


def accepted_by(option: Option) -> str:
    fixed = {
        "flag": "true, false",
        "choice": ", ".join(option.choices),
        "path": "a file",
        "secret_file": "a file",
        "prefix": "text without { and }",
        "text": "text",
        "secret": "text",
    }
    unit = " s" if option.kind == "seconds" else ""
    return fixed.get(option.kind) or f"{option.low:g} to {option.high:.15g}{unit}"


def test_every_key_is_there_with_its_default_and_what_it_accepts() -> None:
    shown = {row["key"]: (row["default"], row["accepted"]) for row in table(PAGE, "Keys of the Redis family")}
    assert shown == {name: (default_of(option), accepted_by(option)) for name, option in OPTIONS.items()}


def test_every_key_of_a_queue_is_there() -> None:
    assert [row["key"] for row in table(PAGE, "Queues on servers")] == list(QUEUE)


def test_every_server_and_its_differences_are_there() -> None:
    shown = {row["server"]: list(row.values())[1:] for row in table(PAGE, "Servers")}
    assert shown == {
        flavour: [
            ", ".join(kind.lacks) or "nothing",
            f"{kind.connect_timeout_s:g} s",
            f"{kind.read_timeout_s:g} s",
            f"{kind.write_timeout_s:g} s",
            str(kind.pool_size),
            str(kind.pipeline_size),
            "yes" if kind.compression else "no",
            ".".join(map(str, OLDEST[flavour])),
        ]
        for flavour, kind in DIFFERENCES.items()
    }


def test_every_scheme_is_there() -> None:
    rows = table(PAGE, "The Redis family")
    shown = ", ".join(f"{row['scheme']}, {row['encrypted']}" for row in rows).split(", ")
    assert sorted(shown) == sorted(schemes())
    assert len(rows) == len(FLAVOURS)


@pytest.mark.parametrize("word", [*ALIASES, *GROUPS, "driver", "kind", "encryption"])
def test_every_block_and_other_name_is_there(word: str) -> None:
    text = section(PAGE, "The Redis family") + section(PAGE, "Keys of the Redis family")
    assert f"`{word}`" in text or f"`{word}: " in text
