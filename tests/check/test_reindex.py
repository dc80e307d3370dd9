"""Reindex: whatever is derived can be thrown away, by anyone, and is built again as it was."""

from __future__ import annotations

from pathlib import Path

import pytest

import penstock
from penstock import ManualClock
from penstock.backends.embedded import keys
from penstock.backends.embedded.checking import reindex
from penstock.backends.embedded.keys import SPACES, Meta
from penstock.backends.embedded.worlds import SYSTEM_WORLD
from penstock.kv.memory import Faults, MemoryStore, SimulatedCrash
from tests.check.stores import Raw, contents, engine_of, filled
from tests.unit.memory_system import MemorySystem

TARGETS = ("memory:", "rocksdb")


def target_of(kind: str, folder: Path) -> str:
    return kind if kind == "memory:" else f"rocksdb:{folder / 'store'}?durability=os"


def derived(raw: Raw) -> dict[str, list[tuple[bytes, bytes]]]:
    return {space: raw.rows(space) for space in reindex.DERIVED}


@pytest.mark.parametrize("target", TARGETS)
def test_indexes_are_rebuilt_as_they_were(target: str, tmp_path: Path) -> None:
    with filled(target_of(target, tmp_path)) as ps:
        raw = Raw(ps)
        before, rows = contents(ps), derived(raw)
        for space, found in rows.items():
            for key, _ in found[::2]:
                raw.delete(space, key)
        assert not ps.check().ok
        seen: list[str] = []
        report = ps.reindex(lambda what, done, total: seen.append(what))
        assert report.ok
        assert {space: found for space, found in derived(raw).items() if space != "entries"} == {
            space: found for space, found in rows.items() if space != "entries"
        }
        assert dict(rows["entries"]).items() <= dict(derived(raw)["entries"]).items()
        assert (contents(ps), ps.check().problems) == (before, [])
        assert "messages of jobs" in seen
        assert ps.journal("_penstock").scan(kinds=["reindexed"])


@pytest.mark.parametrize("target", TARGETS)
def test_lost_state_rows_come_back_from_the_journal(target: str, tmp_path: Path) -> None:
    with filled(target_of(target, tmp_path)) as ps:
        raw = Raw(ps)
        before = contents(ps)
        kept = raw.number("kept")
        for key, _ in raw.rows("state"):
            if int.from_bytes(key[:4], "big") != kept:
                raw.delete("state", key)
        assert ps.reindex().ok
        assert contents(ps) == before
        assert ps.check(repair=True).ok


def test_after_an_interrupted_reindex_nothing_is_answered_until_the_store_is_opened_again(
    tmp_path: Path,
) -> None:
    def interrupt(what: str, done: int, total: int) -> None:
        raise KeyboardInterrupt

    with penstock.open(tmp_path) as ps:
        q = ps.create_queue("q")
        q.enqueue_many([penstock.NewMessage(b"x")] * 100)
        with pytest.raises(KeyboardInterrupt):
            ps.reindex(interrupt)
        with pytest.raises(penstock.StorageError, match="a reindex was cut short"):
            q.lease()
        assert ps.health().status == "unhealthy"
    with penstock.open(tmp_path) as ps:
        assert len(ps.queue("q").lease(200)) == 100
        assert ps.check().ok


def test_a_reindex_that_is_cut_short_anywhere_is_finished_by_the_next_opening() -> None:
    with_steps = Faults()
    system = MemorySystem(store=MemoryStore(SPACES, with_steps))
    q = system.create("q", retention_s=60)
    for n in range(9):
        q.enqueue(b"%d" % n, ttl_s=50)
    q.ack([delivery.receipt for delivery in q.lease(2)])
    q.lease(2)
    listed = [(message.id, message.state) for message in q.iter()]
    image, first = system.store, with_steps.steps
    probe = MemorySystem(store=image.reopen(Faults()))
    probe.backend.reindex()
    steps = probe.store._faults.steps if probe.store._faults else 0
    assert steps > 6
    for step in range(2, steps + 1):
        for moment in ("before", "after"):
            faults = Faults(crash_at_step=step, crash_moment=moment)
            broken = MemorySystem(store=image.reopen(faults))
            with pytest.raises(SimulatedCrash):
                broken.backend.reindex()
            again = MemorySystem(store=broken.store.reopen(Faults()))
            assert again.problems() == [], (step, moment)
            found = [(m.id, m.state) for m in penstock.Queue(again.backend, "q").iter()]
            assert found == listed, (step, moment)
    assert first


def test_a_reindex_leaves_out_what_is_damaged_and_says_so() -> None:
    system = MemorySystem()
    q = system.create("q")
    damaged = q.enqueue(b"1")
    q.enqueue(b"2")
    system.damage_body("q", damaged)
    report = system.backend.reindex()
    assert [problem.where for problem in report.problems] == [f"message {damaged}"]
    assert [delivery.payload for delivery in q.lease(9)] == [b"2"]


def test_a_store_with_a_marker_is_reindexed_before_it_serves(tmp_path: Path) -> None:
    target = f"rocksdb:{tmp_path / 'store'}?durability=os"
    with filled(target) as ps:
        before = contents(ps)
        engine = engine_of(ps)
        batch = engine.kv.batch()
        batch.put(reindex._MARKER, b"\x01", engine.meta)
        for key, _ in engine.kv.scan(engine.ready, b"", None):
            batch.delete(key, engine.ready)
        engine.kv.write(batch)
        del engine, batch
    with penstock.open(target, clock=ManualClock()) as ps:
        assert contents(ps) == before
        assert ps.check().ok
        assert not reindex.is_unfinished(engine_of(ps))


def test_indexes_are_rebuilt_though_the_system_journal_is_still_lost() -> None:
    system = MemorySystem()
    q = system.create("q")
    q.enqueue(b"1")
    row = keys.meta(Meta.WORLD, SYSTEM_WORLD.encode())
    batch = system.store.batch()
    batch.delete(row, system.store.space("meta"))
    system.store.write(batch)
    system.engine.catalogue_lost = True
    system.backend.reindex()
    assert row not in dict(system.rows("meta"))
    assert [delivery.payload for delivery in q.lease()] == [b"1"]
