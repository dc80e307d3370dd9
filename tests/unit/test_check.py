"""`check` finds rows that nothing owns, bodies that nothing frees, and counters that are wrong."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from penstock import Entry
from penstock.backends.embedded import keys
from penstock.backends.embedded.keys import Meta
from penstock.backends.embedded.rows import MARK, Counters, CursorRow, encode_counters, packed
from penstock.backends.embedded.worlds import Worlds
from penstock.journal import Journal
from tests.unit.memory_system import MemorySystem

NO_QUEUE = 99


def sound() -> MemorySystem:
    """A queue with a body that is kept for its required cursor, and a world with a vector."""
    system = MemorySystem()
    q = system.create("q")
    q.cursor("archive", required=True)
    q.enqueue(b"1", dedup_id="d")
    q.ack([q.lease()[0].receipt])
    Journal(system.backend, "w").append([Entry("k", b"body"), Entry("k", vector=[0.5])])
    assert system.problems() == []
    return system


def orphan_cursor(system: MemorySystem) -> None:
    system.put("meta", keys.cursor(NO_QUEUE, b"archive"), packed(CursorRow(0, True)))


def orphan_counters(system: MemorySystem) -> None:
    system.put("meta", keys.meta(Meta.COUNTERS, keys.u32(NO_QUEUE)), encode_counters(Counters()))


def orphan_lane_hint(system: MemorySystem) -> None:
    lane = keys.lane(4, b"", ())
    system.put("meta", keys.lane_hint(NO_QUEUE, lane), MARK + keys.u32(NO_QUEUE) + lane)


def orphan_entry(system: MemorySystem) -> None:
    system.put("entries", bytes(16), MARK + keys.u32(NO_QUEUE) + keys.u64(1))


def lost_entry_ids(system: MemorySystem) -> None:
    system.clear("entries")


def body_that_is_never_freed(system: MemorySystem) -> None:
    system.clear("held")


def wrong_world(**changes: int) -> Callable[[MemorySystem], None]:
    def damage(system: MemorySystem) -> None:
        row = dict(Worlds(system.engine).all())["w"]
        wrong = msgspec.structs.replace(row, **changes)
        system.put("meta", keys.meta(Meta.WORLD, b"w"), packed(wrong))

    return damage


FINDINGS: dict[str, tuple[Callable[[MemorySystem], None], str]] = {
    "a cursor of no queue": (orphan_cursor, "cursor rows of no queue"),
    "counters of no queue": (orphan_counters, "counters rows of no queue"),
    "a hint of no queue": (orphan_lane_hint, "lane_hint rows of no queue"),
    "the id of no entry": (orphan_entry, "an id leads to no entry"),
    "entries without their ids": (lost_entry_ids, "an entry is not found by its id"),
    "a body that is never freed": (body_that_is_never_freed, "held row is missing"),
    "a damaged dedup row": (lambda system: system.damage("dedup", "q"), "dedup row does not decode"),
    "a world's bytes": (wrong_world(bytes=5), "the world says"),
    "a world's vectors": (wrong_world(vectors=7), "the world says"),
    "a world's last number": (wrong_world(next_seq=9), "the world says"),
}


@pytest.mark.parametrize("name", FINDINGS)
def test_check_finds_what_does_not_belong_and_what_does_not_add_up(name: str) -> None:
    damage, finding = FINDINGS[name]
    system = sound()
    damage(system)
    assert [what for what in system.problems() if finding in what]
