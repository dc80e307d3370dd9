"""docs/formats.md lists what is stored on Redis: parts of keys, offsets, and what scripts touch."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import pytest

import penstock.backends.redis
from penstock.backends.redis import keys, records
from tests.docs.pages import DOCS, table

PAGE = DOCS / "formats.md"
LUA = Path(penstock.backends.redis.__file__).parent / "lua"
OPERATIONS = sorted(path for path in LUA.glob("*.lua") if not path.name.startswith("_"))


def test_the_parts_of_a_queues_keys_are_listed_in_their_order() -> None:
    shown = [row["part"] for row in table(PAGE, "Redis")]
    built = [part.decode() for part in keys.OF_QUEUE]
    assert shown == built[: len(shown)]
    assert built[len(shown) - 1 :] == [f"f{level}" for level in range(10)]


def test_the_offsets_of_a_state_record_are_those_that_are_written_down() -> None:
    rows = [row for row in table(PAGE, "Redis", 1) if row["offset"].isdecimal()]
    sizes = [1, 1, 4, 8, 8, 8, 8, 8, 8, 16]
    assert [int(row["offset"]) for row in rows] == [sum(sizes[:n]) for n in range(11)]
    assert struct.calcsize(">BBIQQQQQQ16s") == sum(sizes)
    record = records.decode_state(bytes([2]) + bytes(69) + records.lane(5, b"key") + bytes(2) + bytes(4))
    assert (record.code, record.level, record.key) == (2, 5, b"key")


def test_scripts_and_records_name_the_same_places_of_counters() -> None:
    core = (LUA / "_core.lua").read_text()
    places: dict[str, int] = {}
    for names, numbers in re.findall(r"^local ([A-Z_, ]+) = ([\d, ]+)$", core, re.MULTILINE):
        places.update(zip(names.split(", "), map(int, numbers.split(", ")), strict=True))
    fields = records.Counters.__struct_fields__
    same = {
        "SEQ": "seq",
        "ORDER": "order_us",
        "DELAYED": "delayed",
        "HELD": "held",
        "BYTES": "journal_bytes",
        "BASE": "base_seq",
        "BASE_COUNTS": "base_delayed",
        "REQUIRED": "required",
        "NUMBER": "number",
        "PER_KEY": "per_key",
        "WINDOW": "window_us",
        "READY": "r0",
        "TAG": "turns",
    }
    assert {name: places[name] for name in same} == {
        name: fields.index(field) + 1 for name, field in same.items()
    }


@pytest.mark.parametrize("path", OPERATIONS, ids=lambda path: path.stem)
def test_every_script_opens_with_what_it_does_and_the_keys_that_it_touches(path: Path) -> None:
    comment = []
    for line in path.read_text().splitlines():
        if not line.startswith("--"):
            break
        comment.append(line)
    text = " ".join(comment)
    assert re.search(r"[Tt]ouches|Reads|KEYS", text), text
    assert "ARGV" in text or "ARGV" not in path.read_text()


@pytest.mark.parametrize("path", sorted(LUA.glob("*.lua")), ids=lambda path: path.stem)
def test_no_script_builds_the_name_of_a_key(path: Path) -> None:
    called = re.findall(r"(?:call\('[A-Z]+', |add_many\()([^,)]+)", path.read_text())
    # Names of what was handed on from KEYS, and words of commands that come before a key.
    bare = {"calls", "entries", "index", "states", "f", "k", "x", "keys[1]", "keys[2]", "keys[3]", "keys[4]"}
    bare |= {"hash", "'memory'", "'server'", "'STREAM'", "'CONSUMERS'"}
    bare |= {"stream", "shares", "'CREATE'", "'DESTROY'", "'DELCONSUMER'", "'SETID'", "'GROUP'", "'GROUPS'"}
    assert [one for one in called if not one.startswith("KEYS[") and one not in bare] == []
