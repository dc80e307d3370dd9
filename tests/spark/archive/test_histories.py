"""Queues that have several histories: deleted, made anew, put back from a copy, gone on after a gap."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import SparkSession

import penstock
from penstock import InvalidConfig, ManualClock, NewMessage, Penstock, Queue
from penstock.settings import QueueSettings
from penstock.spark.archive.log import ArchiveLog, Commit, Position
from penstock.spark.archive.moment import ArchiveOptions
from penstock.spark.archive.reading import Archive
from penstock.spark.jobs.archive import Archived, archive
from penstock.spark.jobs.choosing import Choice
from penstock.spark.jobs.history import History, Until
from penstock.spark.jobs.rebuild import Rebuilt, rebuild
from penstock.spark.jobs.replay import replay
from penstock.spark.jobs.sides import Side, side
from penstock.spark.jobs.verify import verify
from penstock.spark.store import Store
from tests.spark.archive.contents import has_everything
from tests.spark.stores import place

START_NS = 1_800_000_000 * 10**9


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START_NS)


@pytest.fixture
def ps(tmp_path: Path, clock: ManualClock) -> Iterator[Penstock]:
    with penstock.open(f"rocksdb:{tmp_path}/store?durability=os", clock=clock, rng=random.Random(7)) as ps:
        yield ps


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "archive"


@pytest.fixture
def run(spark: SparkSession, tmp_path: Path, folder: Path) -> Callable[..., Archived]:
    def run(**options: Any) -> Archived:
        return archive(spark, Store(str(tmp_path / "store")), str(folder), ArchiveOptions(**options))

    return run


@pytest.fixture
def rebuilt(spark: SparkSession, tmp_path: Path, folder: Path) -> Callable[..., Rebuilt]:
    def run(name: str, queues: tuple[str, ...] | None = None, **until: Any) -> Rebuilt:
        return rebuild(spark, str(folder), Store(str(tmp_path / name)), queues, Until(**until))

    return run


def _lengths(folder: Path) -> dict[str, int]:
    with penstock.open(folder) as ps:
        return {settings.name: ps.queue(settings.name).length() for settings in ps.queues()}


def _fill(queue: Queue, count: int, text: str = "x") -> None:
    queue.enqueue_many([NewMessage(f"{text} {n}".encode()) for n in range(count)])


# -- which history counts at a moment, by the log alone ------------------------------------------

#: Made at 10, deleted at 20, made anew at 30 and cut off until 40; still there.
ANEW = [
    Position(seq=3, at_ns=15, began_ns=10),
    Position(generation=2, seq=9, at_ns=50, began_ns=30, base_seq=8, base_at_ns=40),
]


@pytest.fixture
def chosen(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, tuple[int, float]]]:
    """The generation and the lease time of each queue; the latter is 100 times the former, plus the look."""
    log = ArchiveLog(folder)
    log.commit(Commit(queues={"anew": ANEW[0], "gone": Position(began_ns=10)}), lambda _: True)
    log.commit(Commit(gone={"anew": 20, "gone": 60}), lambda _: True)
    state = log.commit(Commit(queues={"anew": ANEW[1]}), lambda _: True)
    log.note_moments(state, {"anew": 60})
    looks = [(12, "anew", 1, 100), (17, "anew", 1, 101), (40, "anew", 2, 200), (12, "gone", 1, 100)]
    texts = [
        (at_ns, name, generation, msgspec.json.encode(QueueSettings(name=name, lease_s=lease_s)).decode())
        for at_ns, name, generation, lease_s in looks
    ]
    monkeypatch.setattr(Archive, "settings", lambda _: texts)

    def run(queues: tuple[str, ...] | None = None, **until: Any) -> dict[str, tuple[int, float]]:
        history = History(None, str(folder), queues, Until(**until))  # type: ignore[arg-type]
        return {
            name: (position.generation, history.settings[name].lease_s)
            for name, position in history.positions.items()
        }

    return run


@pytest.mark.parametrize(
    ("at_ns", "expected"),
    [
        (10, {"anew": (1, 100), "gone": (1, 100)}),
        (19, {"anew": (1, 101), "gone": (1, 100)}),
        (20, {"gone": (1, 100)}),
        (29, {"gone": (1, 100)}),
        (40, {"anew": (2, 200), "gone": (1, 100)}),
        (60, {"anew": (2, 200)}),
        (None, {"anew": (2, 200)}),
    ],
)
def test_of_each_queue_the_history_counts_that_there_was_at_the_moment(
    chosen: Callable[..., dict[str, tuple[int, float]]],
    at_ns: int | None,
    expected: dict[str, tuple[int, float]],
) -> None:
    assert chosen(at_ns=at_ns) == expected


def test_a_moment_before_the_base_of_a_history_is_refused_by_time_as_by_number(
    chosen: Callable[..., dict[str, tuple[int, float]]],
) -> None:
    for until in ({"at_ns": 39}, {"seq": 7}):
        with pytest.raises(InvalidConfig, match="known from event 8 on, 1970-01-01T00:00:01Z"):
            chosen(("anew",), **until)


def test_a_moment_before_all_that_is_archived_or_after_it_is_refused(
    chosen: Callable[..., dict[str, tuple[int, float]]],
) -> None:
    for until, why in (
        ({"at_ns": 9}, "before anything that is archived"),
        (
            {"at_ns": 61},
            "'anew' is archived up to 1970-01-01T00:00:00Z, and .* run penstock pipeline archive",
        ),
        ({"seq": 10}, "'anew' is archived up to event 9, and event 10 is later"),
    ):
        with pytest.raises(InvalidConfig, match=why):
            chosen(**until)


def test_a_deleted_queue_that_is_named_is_as_it_stood_in_the_end(
    chosen: Callable[..., dict[str, tuple[int, float]]],
) -> None:
    assert chosen(("gone",)) == {"gone": (1, 100)}
    assert chosen(("anew",), at_ns=25) == {"anew": (1, 101)}
    assert chosen(("gone",), at_ns=99) == {"gone": (1, 100)}
    with pytest.raises(InvalidConfig, match="was not there at"):
        chosen(("gone",), at_ns=9)


# -- stores ---------------------------------------------------------------------------------------


def test_queues_that_were_deleted_do_not_come_back_and_those_made_later_were_not_there(
    spark: SparkSession,
    ps: Penstock,
    clock: ManualClock,
    folder: Path,
    run: Callable[..., Archived],
    rebuilt: Callable[..., Rebuilt],
    tmp_path: Path,
) -> None:
    for name in ("a", "b"):
        _fill(ps.create_queue(name), 10)
    run()
    clock.advance(10)
    ps.delete_queue("a")
    ps.create_queue("c")
    assert run().gone == ["a"]
    assert verify(spark, side(place(ps)), side(str(folder))).same
    clock.advance(10)
    ps.create_queue("a")
    assert run().anew == ["a"]
    rebuilt("now")
    assert _lengths(tmp_path / "now") == {"a": 0, "b": 10, "c": 0}
    rebuilt("then", at_ns=START_NS)
    assert _lengths(tmp_path / "then") == {"a": 10, "b": 10}


def test_a_moment_that_is_not_archived_yet_is_refused_until_it_is_though_nothing_has_happened(
    ps: Penstock, clock: ManualClock, run: Callable[..., Archived], rebuilt: Callable[..., Rebuilt]
) -> None:
    queue = ps.create_queue("q", max_attempts=5)
    queue.enqueue(b"1")
    run()
    clock.advance(10)
    then_ns = clock.now_ns()
    with pytest.raises(InvalidConfig, match="run penstock pipeline archive first"):
        rebuilt("then", at_ns=then_ns)
    assert run().commits == 0
    assert rebuilt("then", at_ns=then_ns).restored == {"ready": 1}


def test_settings_are_those_that_the_queue_had_at_the_moment_not_when_it_was_archived(
    ps: Penstock, clock: ManualClock, run: Callable[..., Archived], folder: Path, spark: SparkSession
) -> None:
    ps.create_queue("q", max_attempts=1)
    clock.advance(10)
    ps.update_queue("q", max_attempts=2)
    clock.advance(10)
    run()
    for attempts in (3, 4):
        ps.update_queue("q", max_attempts=attempts)
        clock.advance(10)
    run()
    found = [
        History(spark, str(folder), None, Until(at_ns=START_NS + at_s * 10**9)).settings["q"].max_attempts
        for at_s in (0, 10, 19, 20, 29, 30, 40)
    ]
    assert found == [1, 2, 2, 3, 3, 4, 4]


def test_a_store_that_was_put_back_from_a_copy_has_another_history(
    run: Callable[..., Archived], folder: Path, tmp_path: Path
) -> None:
    """It has the archive's cursor, and as many events as were archived: only they tell."""
    store = tmp_path / "store"
    with penstock.open(store) as ps:
        ps.create_queue("q")
        run()
    shutil.copytree(store, tmp_path / "copy")
    with penstock.open(store) as ps:
        _fill(ps.queue("q"), 5, "lost")
        ps.journal("w").append([penstock.Entry(kind="lost", body=b"")])
        run()
    shutil.rmtree(store)
    shutil.move(tmp_path / "copy", store)
    with penstock.open(store) as ps:
        _fill(ps.queue("q"), 8, "other")
        ps.journal("w").append([penstock.Entry(kind="other", body=b"")] * 2)
        done = run()
        assert (done.anew, done.events, done.bodies) == (["q"], 8, 8)
        has_everything(folder, ps, "q")
    state = ArchiveLog(folder).read()
    assert (state.worlds["w"].generation, state.worlds["w"].seq) == (2, 2)
    assert [one.gone_ns for one in state.histories("q")] == [0, 0]


def test_a_moment_before_the_state_of_a_queue_is_known_is_refused(
    ps: Penstock, clock: ManualClock, run: Callable[..., Archived], rebuilt: Callable[..., Rebuilt]
) -> None:
    queue = ps.create_queue("q", journal_max_bytes=1)
    _fill(queue, 4)
    ps.sweep()
    ps.update_queue("q", journal_max_bytes=None)
    queue.enqueue(b"in the journal")
    then_ns = clock.now_ns()
    clock.advance(5)
    queue.ack([one.receipt for one in queue.lease(max_messages=3)])
    assert queue.stats().first_seq > 1
    run()
    with pytest.raises(InvalidConfig, match="is not known"):
        rebuilt("then", at_ns=then_ns)
    assert rebuilt("now", at_ns=clock.now_ns()).restored == {"ready": 2}


def test_a_message_on_both_sides_of_a_gap_is_replayed_once(
    spark: SparkSession, ps: Penstock, folder: Path, run: Callable[..., Archived]
) -> None:
    queue = ps.create_queue("q", journal_max_bytes=1)
    into = ps.create_queue("into")
    run()
    _fill(queue, 3)
    queue.nack([one.receipt for one in queue.lease(max_messages=3)], delay_s=0)
    run()
    queue.cursor("archive").drop()
    queue.enqueue(b"more")
    for _ in range(5):
        ps.sweep()
    assert run(accept_gaps=True).anew == ["q"]
    queue.nack([one.receipt for one in queue.lease(max_messages=4)], delay_s=0)
    run()
    done = replay(
        spark, "r", Side(place=str(folder)), "q", Choice(kinds=("leased",)), Store(place(ps)), "into"
    )
    assert (done.enqueued, done.bodies_missing) == (4, 0)
    assert sorted(one.payload for one in into.iter()) == [b"more", b"x 0", b"x 1", b"x 2"]


def test_a_clock_that_was_set_back_does_not_take_a_history_apart(
    ps: Penstock, clock: ManualClock, run: Callable[..., Archived], rebuilt: Callable[..., Rebuilt]
) -> None:
    queue = ps.create_queue("q")
    clock.advance(100)
    queue.enqueue(b"early in the journal, late on the clock")
    clock.set_ns(START_NS + 40 * 10**9)
    queue.nack([one.receipt for one in queue.lease()], delay_s=0)
    clock.advance(60)
    queue.enqueue(b"later")
    run()
    done = rebuilt("then", at_ns=START_NS + 50 * 10**9)
    assert (done.restored, done.bodies_missing) == ({"ready": 1}, 0)
