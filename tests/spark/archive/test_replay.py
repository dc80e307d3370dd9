"""Replays: past messages by what happened to them and what they are, each once for the name of a replay."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import penstock
from penstock import InvalidConfig, InvalidMessage, ManualClock, NewMessage, Penstock, Queue, QueueNotFound
from penstock.backends.embedded.load_rows import NAMED_KEPT_S
from penstock.journal import UserState
from penstock.spark.jobs.archive import archive
from penstock.spark.jobs.choosing import Choice, chosen
from penstock.spark.jobs.replay import KNOWN_S, Replayed, replay
from penstock.spark.jobs.sides import Side
from penstock.spark.store import Store
from penstock.testing.harness import sweep_all
from tests.spark.stores import place


@pytest.fixture
def ps(tmp_path: Path) -> Iterator[Penstock]:
    with penstock.open(f"rocksdb:{tmp_path}/store?durability=os", rng=random.Random(7)) as ps:
        yield ps


@pytest.fixture
def worked(spark: SparkSession, ps: Penstock, tmp_path: Path) -> Queue:
    """A queue that is empty again: of its messages only the archive knows."""
    queue = ps.create_queue("q")
    archive(spark, Store(place(ps)), str(tmp_path / "archive"))
    queue.enqueue_many(
        [
            NewMessage(
                b"%d" % n,
                headers={"type": f"t{n % 2}", "n": str(n)},
                fairness_key=f"k{n % 3}",
                priority=n % 10,
            )
            for n in range(12)
        ]
    )
    taken = {one.payload: one.receipt for one in queue.lease(max_messages=12)}
    queue.ack([taken[b"%d" % n] for n in range(8)])
    queue.reject([taken[b"%d" % n] for n in range(8, 12)], reason="no")
    queue.purge("dead")
    archive(spark, Store(place(ps)), str(tmp_path / "archive"))
    return queue


@pytest.fixture
def again(spark: SparkSession, ps: Penstock, tmp_path: Path) -> Callable[..., Replayed]:
    def run(
        name: str, into: str | None = None, queue: str = "q", live: bool = False, **choice: Any
    ) -> Replayed:
        store = Store(place(ps))
        source = Side(place=place(ps), store=store) if live else Side(place=str(tmp_path / "archive"))
        return replay(spark, name, source, queue, Choice(**choice), store, into)

    return run


def _payloads(queue: Queue) -> list[int]:
    return sorted(int(message.payload) for message in queue.iter("ready"))


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ({}, list(range(12))),
        ({"kinds": ("acked",)}, list(range(8))),
        ({"kinds": ("dead",)}, [8, 9, 10, 11]),
        ({"kinds": ("dead", "acked"), "headers": {"type": "t1"}}, [1, 3, 5, 7, 9, 11]),
        ({"headers": {"type": "t1", "n": "3"}}, [3]),
        ({"headers": {"none": "x"}}, []),
        ({"fairness_keys": ("k0", "k2")}, [0, 2, 3, 5, 6, 8, 9, 11]),
        ({"until_ns": 1}, []),
        ({"since_ns": 1, "kinds": ("acked",), "fairness_keys": ("k1",)}, [1, 4, 7]),
    ],
    ids=str,
)
def test_messages_are_chosen_by_what_happened_and_what_they_are(
    worked: Queue, again: Callable[..., Replayed], choice: dict[str, Any], expected: list[int]
) -> None:
    done = again("r", **choice)
    assert (done.enqueued, done.bodies_missing, done.again) == (len(expected), 0, False)
    assert _payloads(worked) == expected


def test_a_replayed_message_is_a_new_one_that_knows_the_first(
    worked: Queue, again: Callable[..., Replayed], ps: Penstock
) -> None:
    first = {event.message_id for event in worked.events() if event.kind == "acked"}
    other = ps.create_queue("other")
    again("r", into="other", kinds=("acked",))
    found = {message.payload: message for message in other.iter()}
    assert {message.headers["replay-of"] for message in found.values()} == first
    assert not first & {message.id for message in found.values()}
    message = found[b"5"]
    assert (message.fairness_key, message.priority, message.attempts) == ("k2", 5, 0)
    assert {name: message.headers[name] for name in ("type", "n")} == {"type": "t1", "n": "5"}


def test_a_name_counts_once_though_its_messages_are_long_done(
    worked: Queue, again: Callable[..., Replayed]
) -> None:
    assert again("r", kinds=("acked",)).enqueued == 8
    worked.ack([one.receipt for one in worked.lease(max_messages=8)])
    repeated = again("r", kinds=("acked",))
    assert (repeated.again, repeated.enqueued, worked.length()) == (True, 8, 0)
    assert again("r", kinds=("dead",)).again
    assert again("another", kinds=("dead",)).enqueued == 4
    with pytest.raises(InvalidConfig, match="needs another name"):
        again("r", into="elsewhere")


@contextmanager
def _killed_after_its_commit() -> Iterator[None]:
    """The second note of a replay says that it is over."""
    put, notes = UserState.put, []

    def dies(state: UserState, key: str, value: bytes) -> None:
        notes.append(key)
        if len(notes) == 2:
            raise KeyboardInterrupt
        put(state, key, value)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(UserState, "put", dies)
        with pytest.raises(KeyboardInterrupt):
            yield


def test_a_replay_that_is_killed_after_its_commit_is_not_done_twice(
    ps: Penstock, worked: Queue, again: Callable[..., Replayed]
) -> None:
    other = ps.create_queue("other")
    with _killed_after_its_commit():
        again("r", kinds=("acked",))
    worked.ack([one.receipt for one in worked.lease(max_messages=3)])
    with pytest.raises(
        InvalidConfig, match="'r' was begun into queue 'q'; one into 'other' needs another name"
    ):
        again("r", into="other", kinds=("acked",))
    for _ in range(2):
        done = again("r", kinds=("acked",))
        assert (done.queue, done.again, done.enqueued, worked.length()) == ("q", True, 8, 5)
    assert other.length() == 0


def test_a_replay_is_not_done_twice_though_the_store_has_forgotten_its_commit(
    spark: SparkSession, tmp_path: Path
) -> None:
    clock = ManualClock()
    with penstock.open(f"rocksdb:{tmp_path}/store?durability=os", clock=clock) as ps:
        ps.create_queue("q").enqueue_many([NewMessage(b"1"), NewMessage(b"2")])
        into, store = ps.create_queue("into"), Store(place(ps))

        def run() -> Replayed:
            return replay(spark, "r", Side(place=store.url, store=store), "q", Choice(), store, "into")

        with _killed_after_its_commit():
            run()
        clock.advance(31 * 86_400)
        sweep_all(ps)
        with pytest.raises(InvalidConfig, match=r"'r' was begun on 20.*is not known any more"):
            run()
        assert into.length() == 2


def test_what_was_begun_is_trusted_no_longer_than_the_store_knows_of_it() -> None:
    assert KNOWN_S < NAMED_KEPT_S


def test_contents_are_no_part_of_what_is_kept_while_messages_are_chosen(spark: SparkSession) -> None:
    events = spark.createDataFrame([], "queue string, at_ns bigint, kind string, message_id string")
    columns = "generation int, queue string, id string, seq bigint, enqueued_at_ns bigint, payload binary"
    bodies = spark.createDataFrame([], f"{columns}, headers map<string, string>, fairness_key string")
    assert chosen(events, bodies, Choice()).columns == ["queue", "id", "brought", "enqueued_at_ns"]


def test_a_replay_that_is_killed_before_its_commit_has_done_nothing(
    worked: Queue, again: Callable[..., Replayed], monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Penstock, "commit_write", dies)
        with pytest.raises(KeyboardInterrupt):
            again("r", kinds=("acked",))
    assert worked.length() == 0
    assert again("r", kinds=("acked",)).enqueued == 8
    assert _payloads(worked) == list(range(8))


def test_a_store_replays_what_it_still_has(again: Callable[..., Replayed], ps: Penstock) -> None:
    queue = ps.create_queue("q", retention_s=3600)
    queue.enqueue_many([NewMessage(b"%d" % n) for n in range(5)])
    queue.ack([one.receipt for one in queue.lease(max_messages=3)])
    ps.create_queue("gone").enqueue(b"9")
    ps.queue("gone").ack([one.receipt for one in ps.queue("gone").lease()])
    assert again("r", live=True, kinds=("acked",)).enqueued == 3
    for name, headers in (("s", {}), ("t", {"type": "none"})):
        done = again(name, live=True, queue="gone", kinds=("acked",), headers=headers)
        assert (done.enqueued, done.bodies_missing) == (0, 1), "headers are gone with the body"


def test_the_last_body_of_a_replaced_message_counts(
    spark: SparkSession, ps: Penstock, tmp_path: Path, again: Callable[..., Replayed]
) -> None:
    queue = ps.create_queue("q")
    archive(spark, Store(place(ps)), str(tmp_path / "archive"))
    message_id = queue.enqueue(b"1")
    archive(spark, Store(place(ps)), str(tmp_path / "archive"))
    queue.upsert([NewMessage(b"2", id=message_id)])
    archive(spark, Store(place(ps)), str(tmp_path / "archive"))
    queue.purge()
    assert again("r").enqueued == 1
    assert _payloads(queue) == [2]


def test_a_replay_that_chose_nothing_leaves_its_name_free(
    worked: Queue, again: Callable[..., Replayed]
) -> None:
    assert again("r", headers={"typo": "t1"}).enqueued == 0
    done = again("r", headers={"type": "t1"})
    assert (done.enqueued, done.again) == (6, False)


def test_what_cannot_be_replayed_is_refused_by_name(
    worked: Queue, again: Callable[..., Replayed], ps: Penstock
) -> None:
    with pytest.raises(InvalidConfig, match="kind 'eaten' is not known"):
        again("r", kinds=("eaten",))
    with pytest.raises(InvalidConfig, match="name of the replay"):
        again("x" * 2000)
    with pytest.raises(QueueNotFound):
        again("r", into="none")
    with pytest.raises(QueueNotFound):
        again("r", into="q", queue="none")
    ps.create_queue("line", fifo=True)
    with pytest.raises(InvalidMessage, match="none was"):
        again("r", into="line")
    assert ps.queue("line").length() == 0
