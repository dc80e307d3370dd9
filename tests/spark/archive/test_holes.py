"""Journals with holes that a repair has left: what is archived of them, and what can be known from it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import penstock
from penstock import Entry, InvalidConfig, ManualClock, NewMessage, Penstock, Queue
from penstock.backends.embedded import keys
from penstock.backends.embedded.keys import Meta
from penstock.backends.embedded.worlds import decode_world
from penstock.spark.archive.log import ArchiveLog
from penstock.spark.jobs import archive as job
from penstock.spark.jobs.archive import Archived, archive
from penstock.spark.jobs.auditing.run import Wanted
from penstock.spark.jobs.auditing.run import run as audit
from penstock.spark.jobs.history import Until
from penstock.spark.jobs.rebuild import Rebuilt, rebuild
from penstock.spark.jobs.sides import side
from penstock.spark.jobs.verify import verify
from penstock.spark.store import Store
from tests.check.stores import Raw, flipped
from tests.spark.archive.contents import rows
from tests.spark.stores import place


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_800_000_000 * 10**9)


@pytest.fixture
def ps(tmp_path: Path, clock: ManualClock) -> Iterator[Penstock]:
    with penstock.open(f"rocksdb:{tmp_path}/store?durability=os", clock=clock, rng=random.Random(7)) as ps:
        yield ps


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "archive"


@pytest.fixture
def run(spark: SparkSession, ps: Penstock, folder: Path) -> Callable[[], Archived]:
    return lambda: archive(spark, Store(place(ps)), str(folder))


@pytest.fixture
def rebuilt(spark: SparkSession, folder: Path, tmp_path: Path) -> Callable[..., Rebuilt]:
    def run(name: str, **until: Any) -> Rebuilt:
        return rebuild(spark, str(folder), Store(str(tmp_path / name)), None, Until(**until))

    return run


def _fill(queue: Queue, text: str) -> None:
    queue.enqueue_many([NewMessage(f"{text}{n}".encode()) for n in range(5)])


def _lose(ps: Penstock, name: str, *frames: int) -> None:
    """Frames of the journal of a queue or world, by place: damaged, and the store repaired."""
    raw = Raw(ps)
    world = raw.rows("meta", keys.meta(Meta.WORLD, name.encode()))
    there = raw.rows("journal", keys.u32(decode_world(world[0][1]).number if world else raw.number(name)))
    for at in frames:
        key, value = there[at]
        raw.put("journal", key, flipped(value, len(value) // 2))
    assert ps.check(repair=True).ok


def _work(queue: Queue, clock: ManualClock) -> int:
    """Frames: a, b, leases, acks, c; the time after the first of them."""
    _fill(queue, "a")
    after_a_ns = clock.now_ns()
    clock.advance(10)
    _fill(queue, "b")
    queue.ack([one.receipt for one in queue.lease(max_messages=4)])
    _fill(queue, "c")
    clock.advance(10)
    return after_a_ns


def test_what_is_behind_a_hole_is_another_history_that_starts_with_how_the_queue_stands(
    spark: SparkSession,
    ps: Penstock,
    clock: ManualClock,
    folder: Path,
    run: Callable[[], Archived],
    rebuilt: Callable[..., Rebuilt],
) -> None:
    queue = ps.create_queue("q")
    run()
    after_a_ns = _work(queue, clock)
    _lose(ps, "q", 1, 3)
    done = run()
    assert (done.anew, done.base) == (["q"], 11)
    assert verify(spark, side(place(ps)), side(str(folder))).same
    assert rebuilt("now").restored == {"ready": 11}
    assert rebuilt("then", at_ns=after_a_ns).restored == {"ready": 5}
    for until in ({"at_ns": clock.now_ns() - 5 * 10**9}, {"seq": 7}):
        with pytest.raises(InvalidConfig, match="removed or lost"):
            rebuilt("within", **until)
    both = Wanted(store=Store(place(ps)), archive=str(folder))
    assert audit(spark, both).counts == {}
    queue.ack([one.receipt for one in queue.lease(max_messages=2)])
    assert run().anew == []
    assert verify(spark, side(place(ps)), side(str(folder))).same
    assert [row["seq"] for row in rows(folder, "events", "q")] == list(range(1, queue.stats().last_seq + 1))


def test_an_archive_that_begins_with_a_journal_that_has_a_hole_knows_how_its_queue_stands(
    spark: SparkSession, ps: Penstock, clock: ManualClock, folder: Path, run: Callable[[], Archived]
) -> None:
    _work(ps.create_queue("q"), clock)
    _work(ps.create_queue("sound"), clock)
    _lose(ps, "q", 0)
    done = run()
    assert (done.anew, done.base, ps.queue("q").length()) == ([], 11, 11)
    assert verify(spark, side(place(ps)), side(str(folder))).same
    assert len(ArchiveLog(folder).read().histories("sound")) == 1


def test_events_that_are_lost_after_they_were_archived_are_not_missed(
    spark: SparkSession,
    ps: Penstock,
    clock: ManualClock,
    folder: Path,
    run: Callable[[], Archived],
) -> None:
    queue, world = ps.create_queue("q"), ps.journal("w")
    run()
    _fill(queue, "a")
    _fill(queue, "b")
    world.append([Entry("k", b"1")])
    run()
    _lose(ps, "q", -1)
    _lose(ps, "w", -1)
    both = Wanted(store=Store(place(ps)), archive=str(folder))
    assert audit(spark, both).counts == {}
    world.append([Entry("k", b"2")])
    done = run()
    assert done.anew == []
    assert verify(spark, side(place(ps)), side(str(folder))).same
    assert [row["body"] for row in rows(folder, "entries", "w")] == [b"1", b"2"]


def test_a_history_with_a_hole_in_it_is_rebuilt_up_to_there_and_not_further(
    ps: Penstock,
    clock: ManualClock,
    run: Callable[[], Archived],
    rebuilt: Callable[..., Rebuilt],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queue = ps.create_queue("q")
    run()
    _work(queue, clock)
    _lose(ps, "q", 1)
    monkeypatch.setattr(job._Run, "_find_holes", lambda *_: False)
    run()
    with pytest.raises(InvalidConfig, match=r"event 6 was lost before it was archived; .* up to event 5"):
        rebuilt("now")
    assert rebuilt("then", seq=5).restored == {"ready": 5}
