"""docs/formats.md lists what the code stores: spaces, codes, versions, offsets."""

from __future__ import annotations

import re
import struct
from enum import IntEnum
from types import ModuleType

import msgspec
import pytest

import penstock
from penstock import Entry, ManualClock
from penstock.backends import bulk, unlocking
from penstock.backends.embedded import (
    buckets,
    encryption,
    founding,
    keys,
    load_rows,
    quarantine,
    rows,
    worlds,
)
from penstock.codec import body, entry, frame, sealed
from penstock.codec.vault import Vault
from penstock.event import KIND_CODES
from tests.docs.pages import DOCS, section, table

PAGE = DOCS / "formats.md"
MODULES: dict[str, ModuleType] = {
    "founding": founding,
    "body": body,
    "entry": entry,
    "frame": frame,
    "rows": rows,
    "sealed": sealed,
}
ID = bytes(16)
SHORTEST_LANE = keys.lane(4, b"", ())


def constant(name: str) -> object:
    module, _, attribute = name.partition(".")
    return getattr(MODULES[module], attribute)


def test_the_spaces_are_those_of_the_store() -> None:
    assert tuple(row["space"] for row in table(PAGE, "Spaces")) == keys.SPACES


def test_the_keys_have_the_lengths_that_are_written_down() -> None:
    built = {
        "messages": keys.message(1, ID),
        "ready": keys.ready(1, SHORTEST_LANE, 1, ID),
        "state": keys.state(1, 1, ID),
        "due": keys.due(1, 1, 1, ID),
        "dedup": keys.dedup(1, "x" * 1000, b"secret"),
        "journal": keys.journal(1, 1),
        "held": keys.held(1, 1, ID),
        "meta": keys.meta(1),
        "entries": ID,
    }
    shown = {row["space"]: int(row["bytes of the key"].split()[0]) for row in table(PAGE, "Spaces")}
    assert shown == {space: len(key) for space, key in built.items()}


def test_a_used_store_has_only_keys_of_those_lengths() -> None:
    shown = {row["space"]: row["bytes of the key"] for row in table(PAGE, "Spaces")}
    clock = ManualClock()
    with penstock.open("memory:", clock=clock) as ps:
        q = ps.create_queue("q", retention_s=9)
        q.cursor("c", required=True)
        q.enqueue_many(
            [penstock.NewMessage(b"x", dedup_id=f"{n}", ttl_s=99, fairness_key="k") for n in range(9)]
        )
        q.enqueue(b"later", delay_s=9)
        q.ack([delivery.receipt for delivery in q.lease(3)])
        q.purge("leased")
        q.purge("ready")
        q.enqueue(b"again")
        ps.journal("w").append([Entry("k")])
        ps.state.put("s", b"")
        kv = ps._default.engine.kv  # type: ignore[attr-defined]  # the rows behind the facade
        seen = set()
        for space in keys.SPACES:
            for key, value in kv.scan(kv.space(space), b"", None):
                seen.add(space)
                exact = "more" not in shown[space]
                assert len(key) == int(shown[space]) if exact else len(key) >= int(shown[space].split()[0])
                assert value[:1] == b"\x01"
        assert seen == set(keys.SPACES)


@pytest.mark.parametrize(
    ("heading", "codes"),
    [("State codes", keys.StateCode), ("Due kinds", keys.Due), ("Meta rows", keys.Meta)],
)
def test_the_codes_are_those_that_are_stored(heading: str, codes: type[IntEnum]) -> None:
    assert {row["name"]: int(row["code"]) for row in table(PAGE, heading)} == {
        code.name.lower(): code.value for code in codes
    }


def test_the_event_kinds_are_those_that_are_stored() -> None:
    shown = {row["kind"]: int(row["code"]) for row in table(PAGE, "Event kinds")}
    assert shown == {str(kind): code for kind, code in KIND_CODES.items()}


def test_the_versions_are_those_that_are_written() -> None:
    assert [(row["constant"], row["value"]) for row in table(PAGE, "Versions")] == [
        (row["constant"], str(constant(row["constant"]))) for row in table(PAGE, "Versions")
    ]


def test_the_fixed_parts_have_the_structs_of_the_code() -> None:
    for row in table(PAGE, "Fixed parts"):
        packed = constant(row["constant"])
        assert isinstance(packed, struct.Struct)
        assert (row["struct"], int(row["bytes"])) == (packed.format, packed.size)


def test_every_struct_of_the_code_is_on_the_page() -> None:
    shown = {constant(row["constant"]) for row in table(PAGE, "Fixed parts")}
    found = [value for module in MODULES.values() for value in vars(module).values()]
    structs = {value for value in found if isinstance(value, struct.Struct)} - {entry.CHECKSUM}
    assert entry.CHECKSUM.format == frame.CHECKSUM.format
    assert structs == shown


@pytest.mark.parametrize(
    ("heading", "packed"),
    [
        ("Body", body.FIXED),
        ("Ready row", rows.READY_ROW),
        ("State row", rows.STATE_ROW),
        ("Dedup row", rows.DEDUP_ROW),
        ("Journal frame", frame.HEAD),
        ("Run in a journal frame", frame.RUN),
        ("World frame", entry.HEAD),
    ],
)
def test_the_offsets_are_those_of_the_struct(heading: str, packed: struct.Struct) -> None:
    parts = re.findall(r"\d*[A-Za-z]", packed.format)
    at, expected = 0, []
    for part in parts:
        size = struct.calcsize("<" + part)
        expected.append((at, size))
        at += size
    assert [(int(row["offset"]), int(row["bytes"])) for row in table(PAGE, heading)] == expected


@pytest.mark.parametrize(
    ("name", "structure"),
    [
        ("counters", rows.Counters),
        ("world", worlds.World),
        ("cursor", rows.CursorRow),
        ("job", rows.Job),
        ("keys", unlocking.KeysRow),
        ("rekey", encryption.RekeyRow),
        ("quarantine", quarantine.Kept),
        ("throttle", buckets.ThrottleRow),
        ("load", load_rows.LoadRow),
        ("load_progress", load_rows.LoadProgress),
        ("chunk", bulk.Chunk),
        ("txn", load_rows.TxnRow),
    ],
)
def test_packed_structures_have_the_parts_of_the_code(name: str, structure: type[msgspec.Struct]) -> None:
    (row,) = [row for row in table(PAGE, "Meta rows", which=1) if row["structure"] == name]
    assert row["parts"].split(", ") == list(structure.__struct_fields__)


def test_a_sealed_record_has_the_parts_that_are_written_down() -> None:
    vault = Vault({"main": bytes(32)}, "main")
    record = vault.sealer(b"place")(b"key", b"value")
    sizes = [row["bytes"] for row in table(PAGE, "Sealed record")]
    fixed = sum(int(size) for size in sizes if size.isdecimal())
    assert len(record) == fixed + len("main") + len(b"value")
    assert record[:6] == b"\xe1\x04main"
    assert int(sizes[3]) == sealed.SALT_BYTES
    assert int(sizes[4]) == sealed.COUNTER_BYTES


def test_a_receipt_has_the_length_that_is_written_down() -> None:
    with penstock.open("memory:", clock=ManualClock()) as ps:
        q = ps.create_queue("q")
        q.enqueue(b"")
        assert len(q.lease()[0].receipt) == 56
    assert "56 digits" in section(PAGE, "Receipts")
