"""Worlds beneath their calls: what is stored of them, and rows that no call writes."""

from __future__ import annotations

from typing import Any, cast

import msgspec
import pytest

from penstock import Entry, StorageCorrupt
from penstock.backends.embedded import keys
from penstock.backends.embedded.keys import Meta
from penstock.backends.embedded.rows import packed
from penstock.codec.entry import encode_entries
from penstock.journal import Journal
from tests.unit.memory_system import MemorySystem


def row_key(world: str) -> bytes:
    return keys.meta(Meta.WORLD, world.encode())


def stored(system: MemorySystem, world: str) -> list[Any]:
    raw = dict(system.rows("meta"))[row_key(world)]
    return cast("list[Any]", msgspec.msgpack.decode(raw[1:]))


def test_a_backend_appends_what_can_be_walked_over_once() -> None:
    system = MemorySystem()
    world = Journal(system.backend, "w")
    world.append([Entry("k", b"1")])
    ids = system.backend.append_entries("w", cast(Any, (Entry("k", body) for body in (b"2", b"3"))))
    assert [entry.body for entry in world.scan()] == [b"1", b"2", b"3"]
    assert (len(ids), system.problems()) == (2, [])


def test_check_reports_a_frame_without_entries() -> None:
    system = MemorySystem()
    Journal(system.backend, "w").append([Entry("k", b"1")])
    system.put("journal", keys.journal(stored(system, "w")[0], 1), encode_entries([], [], 2, 0, 0))
    assert "world frame without entries" in system.problems()


@pytest.mark.parametrize("limits", [[None, 1e6], [None, float("inf")], [float("inf"), None], [True, None]])
def test_a_world_whose_limits_do_not_decode_stops_no_sweep_and_is_mended_by_configure(
    limits: list[Any],
) -> None:
    system = MemorySystem()
    other = system.create("other", journal_retention_s=1)
    other.enqueue(b"")
    bad, good = Journal(system.backend, "bad"), Journal(system.backend, "good")
    for world in (bad, good):
        world.append([Entry("k")])
    good.configure(retention_s=1)
    system.put("meta", row_key("bad"), packed([*stored(system, "bad")[:6], *limits]))
    system.clock.advance(5)
    system.sweep()
    assert (other.stats().first_seq, good.stats()["entries"]) == (2, 0)
    with pytest.raises(StorageCorrupt):
        bad.stats()
    assert any("world row does not decode" in what for what in system.problems())
    bad.configure(retention_s=None)
    assert (len(bad.scan()), system.problems()) == (1, [])
