"""Rebuild, copy and verify: a queue is the same elsewhere, message by message, and what differs is found."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import penstock
from penstock import InvalidConfig, ManualClock, NewMessage, Penstock, Queue, QueueNotFound, Unsupported
from penstock.journal import UserState
from penstock.spark.archive.moment import ArchiveOptions
from penstock.spark.jobs import copy as copying
from penstock.spark.jobs import restore as restoring
from penstock.spark.jobs.archive import Archived, archive
from penstock.spark.jobs.compact import compact
from penstock.spark.jobs.copy import copy
from penstock.spark.jobs.history import Until
from penstock.spark.jobs.rebuild import Rebuilt, rebuild
from penstock.spark.jobs.sides import side
from penstock.spark.jobs.verify import Verified, verify
from penstock.spark.store import Store
from tests.spark.stores import KEY, KEY_VARIABLE, place


@pytest.fixture
def ps(tmp_path: Path) -> Iterator[Penstock]:
    with penstock.open(f"rocksdb:{tmp_path}/store?durability=os", rng=random.Random(7)) as ps:
        yield ps


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return str(tmp_path / "archive")


@pytest.fixture
def archived(spark: SparkSession, ps: Penstock, folder: str) -> Callable[..., Archived]:
    return lambda **options: archive(spark, Store(place(ps)), folder, ArchiveOptions(**options))


@pytest.fixture
def rebuilt(spark: SparkSession, folder: str, tmp_path: Path) -> Callable[..., Rebuilt]:
    def run(name: str = "rebuilt", queues: tuple[str, ...] | None = None, **until: Any) -> Rebuilt:
        return rebuild(spark, folder, Store(str(tmp_path / name)), queues, Until(**until))

    return run


@pytest.fixture
def compared(spark: SparkSession, tmp_path: Path) -> Callable[..., Verified]:
    def run(one: str = "store", other: str = "rebuilt", **more: Any) -> Verified:
        return verify(spark, side(str(tmp_path / one)), side(str(tmp_path / other)), **more)

    return run


def mixed(queue: Queue, rng: random.Random, turns: int = 6) -> None:
    """Something of everything that can happen to messages; leases are left in flight."""
    fifo = queue._backend.queue(queue.name).fifo  # type: ignore[union-attr]
    for turn in range(turns):
        queue.enqueue_many(
            [
                NewMessage(
                    payload=rng.randbytes(rng.randrange(40)),
                    headers={"type": f"t{n % 3}", "ü": "\n"} if n % 2 else {},
                    fairness_key=f"key {n % 4}",
                    weight=1 + n % 3,
                    throttle_keys=["b", "a"] if n % 7 == 0 else [],
                    priority=4 if fifo else n % 10,
                    delay_s=0 if fifo else (0, 0, 0, 900)[n % 4],
                    ttl_s=None if n % 5 else 9000,
                    dedup_id=f"{turn} {n}" if n % 6 == 0 else None,
                )
                for n in range(20)
            ]
        )
        _finish(queue, rng, [one.receipt for one in queue.lease(max_messages=12, consumer="w", lease_s=3600)])
        queue.redrive(limit=2)
        waiting = [message.id for message in queue.peek(limit=40)]
        queue.upsert([NewMessage(b"replaced", id=one, fairness_key="new") for one in waiting[:2]])
        queue.move(waiting[3:5], target="aside")
        queue.redrive(limit=1, target="aside")


def _finish(queue: Queue, rng: random.Random, receipts: list[str]) -> None:
    """Each in one of six ways."""
    parts: list[list[str]] = [[] for _ in range(6)]
    for receipt in receipts:
        parts[rng.randrange(6)].append(receipt)
    queue.ack(parts[0])
    queue.nack(parts[1], delay_s=0, reason="at once")
    queue.nack(parts[2], delay_s=800, reason="later: ü")
    queue.nack(parts[3], delay_s=0)
    queue.reject(parts[4], reason="no good")


def _queues(ps: Penstock) -> None:
    ps.create_queue("aside")
    ps.create_queue("buried")
    ps.create_queue("plain", max_attempts=3)
    ps.create_queue("kept/ü", retention_s=3600, dead_retention_s=7200, max_attempts=2)
    ps.create_queue("burying", dead_letter="buried", max_attempts=2, compress_over_bytes=10)
    ps.create_queue("line", fifo=True)
    ps.create_queue("slow", fifo=True, delay_s=900)


WORKED = ("plain", "kept/ü", "burying", "line")


def test_a_mixed_load_is_rebuilt_without_a_difference(
    ps: Penstock,
    archived: Callable[..., Archived],
    rebuilt: Callable[..., Rebuilt],
    compared: Callable[..., Verified],
    tmp_path: Path,
) -> None:
    rng = random.Random(3)
    _queues(ps)
    for turn in range(3):
        archived(events_per_commit=400)
        for name in WORKED:
            mixed(ps.queue(name), rng, turns=2)
        if turn == 1:
            ps.queue("plain").purge("dead")
        ps.queue("slow").enqueue_many([NewMessage(b"%d" % n, fairness_key=f"key {n % 2}") for n in range(5)])
    archived()
    done = rebuilt()
    assert (done.bodies_missing, done.bodies_newer, done.existing) == (0, 0, 0)
    found = compared()
    assert found.same, found.differences
    stats = {name: ps.queue(name).stats() for name in (*WORKED, "slow", "aside", "buried")}
    assert (
        found.left
        == found.right
        == sum(s.ready + s.delayed + s.leased + s.done + s.dead for s in stats.values())
    )
    assert done.leases_ended == found.leased_left == sum(s.leased for s in stats.values()) > 0
    with penstock.open(tmp_path / "rebuilt") as again:
        assert again.check().ok
        for name, was in stats.items():
            now = again.queue(name).stats()
            assert (now.ready, now.delayed, now.done, now.dead) == (
                was.ready + was.leased,
                was.delayed,
                was.done,
                was.dead,
            )
            assert again._home(name).queue(name) == ps._home(name).queue(name)


def test_a_rebuilt_store_can_be_archived_and_rebuilt_again(
    spark: SparkSession,
    ps: Penstock,
    archived: Callable[..., Archived],
    rebuilt: Callable[..., Rebuilt],
    compared: Callable[..., Verified],
    tmp_path: Path,
) -> None:
    _queues(ps)
    archived()
    mixed(ps.queue("kept/ü"), random.Random(5), turns=2)
    archived()
    rebuilt()
    second = str(tmp_path / "second archive")
    archive(spark, Store(str(tmp_path / "rebuilt")), second)
    rebuild(spark, second, Store(str(tmp_path / "again")))
    found = compared("store", "again")
    assert found.same, found.differences


@pytest.mark.soak
def test_a_queue_is_rebuilt_as_it_was_after_any_event(
    spark: SparkSession,
    ps: Penstock,
    archived: Callable[..., Archived],
    rebuilt: Callable[..., Rebuilt],
    tmp_path: Path,
) -> None:
    queue = ps.create_queue("q", retention_s=3600)
    archived()
    queue.enqueue(b"one")
    first = queue.enqueue(b"two", delay_s=5000)
    (delivery,) = queue.lease(lease_s=3600)
    queue.nack([delivery.receipt], delay_s=7000, reason="not now")
    after_nack = queue.events(after=3, limit=1)[0]
    message = queue.get(first)
    queue.purge()
    archived()
    expected = {
        0: [],
        1: [("ready", 0)],
        2: [("delayed", 0), ("ready", 0)],
        3: [("delayed", 0), ("ready", 1)],
    }
    expected[4] = [("delayed", 0), ("delayed", 1)]
    for seq, states in expected.items():
        done = rebuilt(f"at {seq}", ("q",), seq=seq)
        assert done.leases_ended == (seq == 3)
        with penstock.open(tmp_path / f"at {seq}") as then:
            found = sorted((str(one.state), one.attempts) for one in then.queue("q").iter())
            assert found == states, seq
            if seq == 4:
                by_payload = {one.payload: one for one in then.queue("q").iter()}
                assert by_payload[b"one"].reason == "not now"
                assert by_payload[b"one"].visible_at_ns == after_nack.due_ns
                assert by_payload[b"two"].visible_at_ns == message.visible_at_ns
    rebuilt("at the time", at_ns=after_nack.at_ns)
    compared = verify(spark, side(str(tmp_path / "at 4")), side(str(tmp_path / "at the time")))
    assert compared.same, compared.differences


def test_a_history_that_began_late_is_rebuilt_from_how_it_stood(
    ps: Penstock,
    archived: Callable[..., Archived],
    rebuilt: Callable[..., Rebuilt],
    compared: Callable[..., Verified],
) -> None:
    ps.create_queue("aside")
    queue = ps.create_queue("q", journal_max_bytes=1, retention_s=3600, max_attempts=3)
    mixed(queue, random.Random(1), turns=3)
    for _ in range(20):
        ps.sweep()
    began = queue.stats()
    assert began.first_seq > began.enqueued_total
    archived()
    mixed(queue, random.Random(2), turns=3)
    archived()
    assert rebuilt().bodies_missing == 0
    found = compared()
    assert found.same, found.differences
    with pytest.raises(InvalidConfig, match=f"known from event {began.last_seq} on"):
        rebuilt("early", ("q",), seq=began.last_seq - 1)


def test_what_cannot_be_carried_over_is_counted(
    spark: SparkSession, ps: Penstock, archived: Callable[..., Archived], rebuilt: Callable[..., Rebuilt]
) -> None:
    ps.create_queue("buried")
    queue = ps.create_queue("q", dead_letter="buried")
    gone = queue.enqueue(b"gone before")
    queue.ack([one.receipt for one in queue.lease()])
    archived()
    replaced = queue.enqueue(b"first")
    queue.upsert([NewMessage(b"second", id=replaced)])
    archived()
    early = rebuilt("early", ("q",), seq=1)
    assert (early.bodies_missing, early.missing_ids) == (1, [gone])
    assert early.dead_letters_dropped == ["q"]
    then = rebuilt("then", ("q",), seq=4)
    assert (then.bodies_newer, then.newer_ids, then.restored) == (1, [replaced], {"ready": 1})
    assert rebuilt("now", ("q",)).bodies_newer == 0


def test_a_rebuild_that_was_killed_goes_on_and_one_that_is_over_touches_nothing(
    ps: Penstock,
    archived: Callable[..., Archived],
    rebuilt: Callable[..., Rebuilt],
    compared: Callable[..., Verified],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    queue = ps.create_queue("q")
    archived()
    queue.enqueue_many([NewMessage(b"%d" % n) for n in range(30)])
    archived()
    with monkeypatch.context() as patched:
        patched.setattr(restoring.Restored, "add", _dies)
        with pytest.raises(KeyboardInterrupt):
            rebuilt()
    done = rebuilt()
    assert (done.existing, done.again) == (30, False)
    assert compared().same
    with penstock.open(tmp_path / "rebuilt") as again:
        again.queue("q").ack([one.receipt for one in again.queue("q").lease(max_messages=30)])
    assert rebuilt().again
    with penstock.open(tmp_path / "rebuilt") as again:
        assert again.queue("q").length() == 0


def _dies(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_rebuild_goes_on_up_to_where_the_archive_was_when_it_was_begun(
    ps: Penstock,
    archived: Callable[..., Archived],
    rebuilt: Callable[..., Rebuilt],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    queue = ps.create_queue("q")
    archived()
    queue.enqueue_many([NewMessage(b"%d" % n) for n in range(10)])
    archived()
    with monkeypatch.context() as patched:
        patched.setattr(restoring.Restored, "add", _dies)
        with pytest.raises(KeyboardInterrupt):
            rebuilt()
    queue.ack([one.receipt for one in queue.lease(max_messages=6)])
    archived()
    assert rebuilt().existing == 10
    with penstock.open(tmp_path / "rebuilt") as again:
        assert again.queue("q").length() == 10
    with pytest.raises(
        InvalidConfig, match="up to event 10, where the archive ended then, and it goes on to 22"
    ):
        rebuilt()


def test_a_rebuild_that_was_killed_at_its_end_finishes_what_is_not_over(
    ps: Penstock,
    archived: Callable[..., Archived],
    rebuilt: Callable[..., Rebuilt],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("a", "b", "q" * 1024):
        ps.create_queue(name).enqueue(b"x")
    archived()
    put, over = UserState.put, []

    def dies_later(state: UserState, key: str, value: bytes) -> None:
        over.append(b'"done":true' in value)
        if sum(over) == 2:
            raise KeyboardInterrupt
        put(state, key, value)

    with monkeypatch.context() as patched:
        patched.setattr(UserState, "put", dies_later)
        with pytest.raises(KeyboardInterrupt):
            rebuilt()
    done = rebuilt()
    assert (done.queues, done.existing, done.again) == (2, 2, False)
    assert rebuilt().again


def test_a_queue_that_is_not_of_this_rebuild_is_not_written_to(
    ps: Penstock, archived: Callable[..., Archived], rebuilt: Callable[..., Rebuilt], tmp_path: Path
) -> None:
    ps.create_queue("q").enqueue(b"x")
    archived()
    with penstock.open(tmp_path / "rebuilt") as other:
        other.create_queue("q")
    with pytest.raises(InvalidConfig, match="not from a rebuild with the same arguments"):
        rebuilt()
    with pytest.raises(QueueNotFound):
        rebuilt("new", ("none",))


def test_a_rebuild_goes_on_where_time_has_come_since(
    ps: Penstock, archived: Callable[..., Archived], rebuilt: Callable[..., Rebuilt], tmp_path: Path
) -> None:
    queue = ps.create_queue("q")
    archived()
    queue.enqueue(b"late", delay_s=1000)
    queue.enqueue(b"short-lived", ttl_s=1000)
    archived()
    rebuilt()
    clock = ManualClock(queue.events(after=0, limit=1)[0].at_ns)
    with penstock.open(f"rocksdb:{tmp_path}/rebuilt", clock=clock) as then:
        assert [one.payload for one in then.queue("q").peek()] == [b"short-lived"]
        clock.advance(1001)
        assert [one.payload for one in then.queue("q").peek()] == [b"late"]


def test_compaction_changes_nothing_that_is_read(
    spark: SparkSession,
    ps: Penstock,
    folder: str,
    archived: Callable[..., Archived],
    compared: Callable[..., Verified],
) -> None:
    queue = ps.create_queue("q")
    for _ in range(4):
        archived()
        queue.enqueue_many([NewMessage(b"x")] * 5)
    archived()
    before = side(folder)
    done = compact(spark, folder, keep_s=0)
    assert (done.merged > done.into > 0, done.deleted) == (True, done.merged)
    assert verify(spark, before, side(place(ps))).same
    assert compact(spark, folder, keep_s=0).merged == 0


# -- copy ---------------------------------------------------------------------------------------


def test_a_store_is_copied_without_a_difference_and_again_without_a_change(
    spark: SparkSession, ps: Penstock, tmp_path: Path, compared: Callable[..., Verified]
) -> None:
    _queues(ps)
    for name in WORKED:
        mixed(ps.queue(name), random.Random(9), turns=2)
    target = Store(str(tmp_path / "copy"))
    done = copy(spark, Store(place(ps)), target)
    found = compared("store", "copy")
    assert found.same, found.differences
    assert done.leases_ended == found.leased_left > 0
    again = copy(spark, Store(place(ps)), target)
    assert (sum(again.restored.values()), again.existing) == (0, found.left)
    with penstock.open(tmp_path / "copy") as copied:
        assert copied.check().ok
        line = [one.payload for one in copied.queue("line").lease(max_messages=100)]
        queue = ps.queue("line")
        held = list(queue.iter("leased"))
        assert len(line) >= len(held)


def test_a_copy_keeps_the_order_of_each_line(spark: SparkSession, ps: Penstock, tmp_path: Path) -> None:
    queue = ps.create_queue("q")
    queue.enqueue_many([NewMessage(b"%d" % n) for n in range(50)])
    taken = queue.lease(max_messages=10, lease_s=3600)
    queue.nack([one.receipt for one in reversed(taken)], delay_s=0)
    copy(spark, Store(place(ps)), Store(str(tmp_path / "copy")))
    with penstock.open(tmp_path / "copy") as copied:
        there = [one.payload for one in copied.queue("q").lease(max_messages=50)]
    assert there == [one.payload for one in queue.lease(max_messages=50)]


def test_a_copy_that_was_killed_names_the_dead_letter_queues_of_what_it_has_made(
    spark: SparkSession, ps: Penstock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ps.create_queue("buried")
    ps.create_queue("q", dead_letter="buried")
    ps.create_queue("other", dead_letter="buried")
    target = Store(str(tmp_path / "copy"))
    with penstock.open(tmp_path / "copy") as copied:
        copied.create_queue("other")
    with monkeypatch.context() as patched:
        patched.setattr(copying, "name_dead_letters", _dies)
        with pytest.raises(KeyboardInterrupt):
            copy(spark, Store(place(ps)), target)
    for _ in range(2):
        assert copy(spark, Store(place(ps)), target).dead_letters_dropped == []
        with penstock.open(tmp_path / "copy") as copied:
            named = {settings.name: settings.dead_letter for settings in copied.queues()}
        assert named == {"buried": None, "q": "buried", "other": None}


def test_an_encrypted_store_is_copied_into_a_plain_one_only_if_that_is_meant(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    config = tmp_path / "penstock.yaml"
    encryption = "{enabled: true, key_id: tests}"
    config.write_text(f"storage: {{path: {tmp_path}/sealed, durability: os, encryption: {encryption}}}\n")
    target = Store(str(tmp_path / "plain"))
    with penstock.open(config) as ps:
        ps.create_queue("q").enqueue(b"secret")
    with pytest.raises(InvalidConfig, match="--unencrypted"):
        copy(spark, Store(str(config)), target)
    assert not (tmp_path / "plain").exists()
    with penstock.open(tmp_path / "plain") as plain:
        assert plain.queues() == []
    assert copy(spark, Store(str(config)), target, unencrypted=True).restored == {"ready": 1}


def test_keys_come_from_a_command_that_is_given_as_its_words(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "the key").write_text(KEY)
    config = tmp_path / "penstock.yaml"
    command = f"""[sh, -c, "cat '{tmp_path}/the key'"]"""
    encryption = f"{{enabled: true, key_id: listed, key_command: {command}}}"
    config.write_text(f"storage: {{path: {tmp_path}/sealed, durability: os, encryption: {encryption}}}\n")
    with penstock.open(config) as ps:
        ps.create_queue("q").enqueue(b"secret")
    store = Store(str(config))
    assert copy(spark, store, Store(str(tmp_path / "plain")), unencrypted=True).restored == {"ready": 1}


def test_a_store_is_not_copied_into_itself(spark: SparkSession, ps: Penstock) -> None:
    ps.create_queue("q")
    with pytest.raises(InvalidConfig, match="the same store"):
        copy(spark, Store(place(ps)), Store(place(ps)))
    with pytest.raises(QueueNotFound):
        copy(spark, Store(place(ps)), Store(place(ps) + "-other"), ("none",))


def test_a_store_in_memory_is_refused_before_anything_is_made_of_it(
    spark: SparkSession, ps: Penstock, archived: Callable[..., Archived], folder: str
) -> None:
    ps.create_queue("q").enqueue(b"x")
    archived()
    with pytest.raises(Unsupported, match="which memory lacks; backends that have it: rocksdb"):
        rebuild(spark, folder, Store("memory:"))
