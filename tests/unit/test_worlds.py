"""Worlds beneath their calls: what is stored of them, and rows that no call writes."""

from __future__ import annotations

from typing import Any, cast

import msgspec
import pytest

from penstock import Entry, StorageCorrupt
from penstock.backends.embedded import keys, worlds
from penstock.backends.embedded.keys import Meta
from penstock.backends.embedded.rows import packed
from penstock.codec.entry import FRAME_BYTES, decode_entries, encode_entries
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
    assert "frame of world 'w' has no entries" in system.problems()


def frames_of(system: MemorySystem, world: str) -> list[bytes]:
    prefix = keys.u32(stored(system, world)[0])
    return [value for key, value in system.rows("journal") if key.startswith(prefix)]


def test_a_frame_has_few_enough_entries_and_bytes_for_one_of_them_to_be_found_cheaply() -> None:
    system = MemorySystem()
    Journal(system.backend, "many").append([Entry("k")] * 2500)
    assert len(frames_of(system, "many")) == 3
    vector = [0.5] * 1536
    Journal(system.backend, "vectors").append([Entry("k", vector=vector)] * 300)
    Journal(system.backend, "labels").append([Entry("k", labels=["x" * 1000] * 60)] * 50)
    for world in ("vectors", "labels"):
        sizes = [len(frame) for frame in frames_of(system, world)]
        assert (len(sizes) > 2, max(sizes) < 1.1 * FRAME_BYTES) == (True, True)
    assert system.problems() == []


def test_each_frame_is_decoded_once_however_many_of_its_entries_are_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    system = MemorySystem()
    ids = Journal(system.backend, "w").append([Entry("k", b"%d" % n) for n in range(1500)])
    decoded: list[int] = []

    def decode(raw: bytes, *rest: Any) -> Any:
        decoded.append(len(raw))
        return decode_entries(raw, *rest)

    monkeypatch.setattr(worlds, "decode_entries", decode)
    found = system.backend.get_entries(ids[::-1])
    assert [entry and entry.body for entry in found] == [b"%d" % n for n in range(1499, -1, -1)]
    assert len(decoded) == 2


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
