"""Random histories of several queues: what an archive says of a moment is what the store had then."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyspark.sql import SparkSession

import penstock
from penstock import ManualClock, NewMessage, Penstock, PenstockError, Queue
from penstock.spark.archive.moment import ArchiveOptions
from penstock.spark.jobs.archive import archive
from penstock.spark.jobs.as_stored import BODY
from penstock.spark.jobs.history import History, Until
from penstock.spark.store import Store
from tests.spark.jobs.stored import tables_of
from tests.spark.stores import place

Row = dict[str, Any]
#: Steps between two moments that are looked at.
EVERY = 35


class Moment(NamedTuple):
    """What the store had, by queue and id."""

    at_ns: int
    rows: dict[tuple[str, str], Row]


class Story:
    """A store that things happen to: leases that run out, messages that expire, move, die and come back."""

    def __init__(self, ps: Penstock, clock: ManualClock, seed: int) -> None:
        self.ps, self._clock, self._rng = ps, clock, random.Random(seed)
        self._receipts: dict[str, list[str]] = defaultdict(list)
        self.kinds: set[str] = set()
        ps.create_queue("dead")
        ps.create_queue("aside", max_attempts=2)
        ps.create_queue("plain", max_attempts=3, lease_s=20, retention_s=40, dead_retention_s=60)
        ps.create_queue("burying", max_attempts=2, dead_letter="dead", lease_s=15)
        ps.create_queue("line", fifo=True, max_attempts=3, lease_s=10, dead_letter="aside")
        self._names = [settings.name for settings in ps.queues()]
        self._steps: list[Callable[[Queue], object]] = [
            *[self._enqueue] * 4, *[self._lease] * 3, self._ack, self._nack, self._reject, self._redrive,
            self._move, self._upsert, self._extend, self._purge, lambda _: self.ps.sweep(),
        ]  # fmt: skip

    def step(self) -> None:
        # What a queue does not allow, such as a delay in a fifo one, is refused, and nothing has happened.
        with suppress(PenstockError):
            self._rng.choice(self._steps)(self.ps.queue(self._rng.choice(self._names)))
        self._clock.advance(self._rng.choice([0.1, 0.5, 2, 6]))

    def moment(self) -> Moment:
        tables = tables_of(self.ps)
        self.kinds |= {str(kind) for kind in tables["events"]["kind"].to_pylist()}
        found = Moment(self._clock.now_ns(), {})
        for row in tables["messages"].to_pylist():
            found.rows[row["queue"], row["id"]] = row
        self._clock.advance(0.001)
        return found

    def _enqueue(self, queue: Queue) -> None:
        rng, fifo = self._rng, queue.name == "line"
        for _ in range(rng.randrange(1, 5)):
            queue.enqueue(
                rng.randbytes(rng.randrange(12)),
                headers={"type": rng.choice("ab")},
                fairness_key=rng.choice(["", "k", "l"]),
                priority=4 if fifo else rng.randrange(10),
                delay_s=0 if fifo else rng.choice([0, 0, 5, 30]),
                ttl_s=rng.choice([None, None, 8, 25, 60]),
                dedup_id=rng.choice([None, None, f"d{rng.randrange(20)}"]),
            )

    def _lease(self, queue: Queue) -> None:
        got = queue.lease(max_messages=self._rng.randrange(1, 5), consumer="c")
        self._receipts[queue.name] += [one.receipt for one in got]

    def _taken(self, queue: Queue) -> list[str]:
        held = self._receipts[queue.name]
        self._rng.shuffle(held)
        return [held.pop() for _ in range(min(2, len(held)))]

    def _ack(self, queue: Queue) -> None:
        queue.ack(self._taken(queue))

    def _nack(self, queue: Queue) -> None:
        delay_s = None if queue.name == "line" else self._rng.choice([None, 0, 10])
        queue.nack(self._taken(queue), delay_s=delay_s, reason=self._rng.choice(["", "bad"]))

    def _reject(self, queue: Queue) -> None:
        queue.reject(self._taken(queue), reason=self._rng.choice(["", "no"]))

    def _redrive(self, queue: Queue) -> None:
        queue.redrive(limit=self._rng.randrange(1, 4), target=self._rng.choice([None, None, "aside"]))

    def _move(self, queue: Queue) -> None:
        waiting = [message.id for message in queue.peek(limit=4)]
        queue.move(waiting[:2], target=self._rng.choice(self._names))

    def _upsert(self, queue: Queue) -> None:
        for message in queue.peek(limit=2):
            queue.upsert([NewMessage(b"new", id=message.id, ttl_s=self._rng.choice([None, 30]))])

    def _extend(self, queue: Queue) -> None:
        queue.extend(self._receipts[queue.name][:1], lease_s=40)

    def _purge(self, queue: Queue) -> None:
        queue.purge(self._rng.choice(["dead", "done"]))


def _comparable(row: Row, at_ns: int) -> Row:
    """Leases end, and delays pass without an event; places in line are compared by themselves."""
    state, visible_at_ns = row["state"], row["visible_at_ns"]
    delayed = state == "delayed" and visible_at_ns > at_ns
    kept = state in ("done", "dead")
    body = {name: row[name] for name in BODY}
    return {
        **({} if row.get("newer") else {**body, "headers": dict(body["headers"])}),
        "state": state if kept else "delayed" if delayed else "ready",
        "leased": row.get("leased", state == "leased"),
        "delayed_until_ns": visible_at_ns if delayed else 0,
        "expires_at_ns": row["expires_at_ns"] or 0,
        "until_ns": (row["until_ns"] or 0) if kept else 0,
        "attempts": row["attempts"],
        "reason": row["reason"] or "",
    }


def _lines(rows: dict[tuple[str, str], Row], keys: set[tuple[str, str]]) -> dict[Any, list[str]]:
    """Messages in the order of their places, by what is one line: a queue, a priority and a key."""
    found: dict[Any, list[tuple[int, str]]] = defaultdict(list)
    for queue, message_id in keys:
        row = rows[queue, message_id]
        found[queue, row["priority"], row["fairness_key"]].append((row["order_ns"] or 0, message_id))
    return {line: [message_id for _, message_id in sorted(places)] for line, places in found.items()}


def _compare(moment: Moment, found: list[Row], told: str) -> None:
    rows = {(row["queue"], row["id"]): row for row in found}
    assert rows.keys() == moment.rows.keys(), told
    for key, row in rows.items():
        mine, theirs = _comparable(moment.rows[key], moment.at_ns), _comparable(row, moment.at_ns)
        if row["newer"]:  # Only what its body does not say is known of it.
            mine = {name: mine[name] for name in ("state", "leased", "attempts", "reason")}
            theirs = {name: theirs[name] for name in mine}
        assert theirs == mine, (told, key)
    ready = {key for key, row in moment.rows.items() if row["state"] == "ready" and not rows[key]["newer"]}
    assert _lines(rows, ready) == _lines(moment.rows, ready), told


def _told(spark: SparkSession, folder: Path, seed: int, steps: int) -> set[str]:
    clock, archived = ManualClock(), str(folder / "archive")
    with penstock.open(f"rocksdb:{folder}/store?durability=os", clock=clock, rng=random.Random(seed)) as ps:
        story, moments = Story(ps, clock, seed), []
        archive(spark, Store(place(ps)), archived)
        for step in range(1, steps + 1):
            story.step()
            if step % EVERY == 0:
                moments.append(story.moment())
            if step % (2 * EVERY) == 0:
                archive(spark, Store(place(ps)), archived, ArchiveOptions(events_per_commit=37))
        archive(spark, Store(place(ps)), archived)
    for number, moment in enumerate(moments):
        history = History(spark, archived, None, Until(at_ns=moment.at_ns))
        found = [row.asDict() for row in history.messages().collect()]
        _compare(moment, found, f"seed {seed}, moment {number}")
    return story.kinds


def test_an_archive_knows_how_queues_stood_at_any_moment(spark: SparkSession, tmp_path: Path) -> None:
    kinds = _told(spark, tmp_path, seed=86, steps=70)
    assert kinds >= {"released", "expired", "moved", "dead", "redriven", "updated", "extended", "purged"}


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 120))
def test_archives_of_many_histories_know_how_queues_stood(
    spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    _told(spark, tmp_path, seed, steps=210)
