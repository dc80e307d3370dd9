"""Bodies kept with their ready rows: they are not read, are what the store has, and are not many."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pytest

from penstock import NewMessage, Queue
from penstock.backends.embedded import lanes
from penstock.backends.embedded.keys import SPACES
from penstock.errors import StorageError
from penstock.kv.base import Batch, Row, Space
from penstock.kv.memory import MemoryStore
from tests.unit.memory_system import MemorySystem


class Watched(MemoryStore):
    """Counts reads of bodies; fails a write when told to."""

    def __init__(self) -> None:
        super().__init__(SPACES)
        self.reads = 0
        self.fails = False

    def get_many(self, keys: Sequence[bytes], space: Space) -> list[bytes | None]:
        self.reads += space == self.space("messages")
        return super().get_many(keys, space)

    def scan(
        self,
        space: Space,
        lower: bytes,
        upper: bytes | None,
        *,
        reverse: bool = False,
        limit: int | None = None,
    ) -> Iterator[Row]:
        self.reads += space == self.space("messages")
        return super().scan(space, lower, upper, reverse=reverse, limit=limit)

    def write(self, batch: Batch, *, sync: bool = False) -> None:
        if self.fails:
            raise StorageError("told to fail")
        super().write(batch, sync=sync)


class Kept:
    """A queue that knows two keys."""

    def __init__(self) -> None:
        self.store = Watched()
        self.system = MemorySystem(self.store)
        self.q = self.system.create("q")
        self.warm(self.q)
        self.store.reads = 0

    def warm(self, q: Queue) -> None:
        q.enqueue_many([NewMessage(b"", fairness_key=key) for key in "ab"])
        q.ack([delivery.receipt for delivery in q.lease(2)])

    def kept(self) -> int:
        """Bodies in memory, those of rows that were taken included."""
        index = self.system.engine.queue("q").ready
        return sum(row[2] is not None for lane in index.lanes() for row in lane.rows)


def numbered(count: int) -> list[NewMessage]:
    return [NewMessage(b"%d" % n, headers={"n": str(n)}, fairness_key="ab"[n % 2]) for n in range(count)]


@pytest.mark.parametrize("more", [{}, {"ttl_s": 60.0}, {"throttle_keys": ("t",)}, {"dedup_id": "d"}])
def test_what_was_enqueued_with_several_keys_is_leased_without_reading_bodies(
    more: dict[str, object],
) -> None:
    kept = Kept()
    own = NewMessage(b"own", fairness_key="a", **more)  # type: ignore[arg-type] # one of its fields
    messages = [own, *numbered(20)]
    kept.q.enqueue_many(messages)
    kept.store.reads = 0  # A dedup id is looked up.
    held = kept.q.lease(100)
    assert kept.store.reads == 0
    assert sorted(held, key=lambda one: one.id)[0].payload == b"own"
    assert {(one.payload, one.headers.get("n")) for one in held} >= {(b"7", "7"), (b"19", "19")}
    assert kept.kept() == 0


def test_one_lane_lies_together_in_the_store_and_keeps_none() -> None:
    system = MemorySystem(store := Watched())
    q = system.create("q")
    for _ in range(3):
        q.enqueue_many([NewMessage(b"x")] * 20)
        store.reads = 0
        assert len(q.lease(20)) == 20
        assert store.reads == 1


def test_a_replaced_message_is_delivered_as_it_is_now() -> None:
    kept = Kept()
    ids = [str(result.id) for result in kept.q.enqueue_many(numbered(4))]
    kept.q.upsert([NewMessage(b"new", id=ids[1], fairness_key="b")])
    assert {one.id: one.payload for one in kept.q.lease(9)} == dict(
        zip(ids, [b"0", b"new", b"2", b"3"], strict=True)
    )


def test_a_write_that_failed_leaves_nothing_kept() -> None:
    kept = Kept()
    kept.q.enqueue_many(numbered(4))
    kept.store.fails = True
    with pytest.raises(StorageError):
        kept.q.enqueue_many([NewMessage(b"lost", fairness_key="a")])
    kept.store.fails = False
    assert sorted(one.payload for one in kept.q.lease(9)) == [b"0", b"1", b"2", b"3"]
    assert kept.store.reads == 1


def test_large_bodies_are_not_kept() -> None:
    kept = Kept()
    kept.q.enqueue_many([NewMessage(b"x" * lanes.KEPT_BODY_BYTES, fairness_key="a"), *numbered(3)])
    assert kept.kept() == 3
    assert sorted(len(one.payload) for one in kept.q.lease(9)) == [1, 1, 1, lanes.KEPT_BODY_BYTES]


def test_a_payload_that_was_compressed_is_kept_as_it_is_stored() -> None:
    kept = Kept()
    kept.q = kept.system.create("small", compress_over_bytes=100)
    kept.warm(kept.q)
    payload = b"x" * (10 * lanes.KEPT_BODY_BYTES)
    kept.q.enqueue_many([NewMessage(payload, fairness_key=key) for key in "ab"])
    index = kept.system.engine.queue("small").ready
    found = [row[2] for lane in index.lanes() for row in lane.rows]
    assert [isinstance(one, bytes) and len(one) <= lanes.KEPT_BODY_BYTES for one in found] == [True, True]
    assert [one.payload for one in kept.q.lease(9)] == [payload, payload]


class Text(str):
    """A kind of str."""


@pytest.mark.parametrize("settings", [{}, {"fifo": True}, {"compress_over_bytes": 10}])
def test_what_is_kept_is_delivered_as_the_store_has_it(settings: dict[str, Any]) -> None:
    kept = Kept()
    q = kept.system.create("other", **settings)
    kept.warm(q)
    kept.store.reads = 0
    levels: list[dict[str, Any]] = [{}]
    if not settings.get("fifo"):
        levels += [{"priority": 0}, {"priority": True}]
    messages = [
        NewMessage(payload, fairness_key=key, headers=headers, weight=weight, **level)
        for payload in (b"", b"short", b"x" * 200)
        for key in ("a", "b", "\u00e9", Text("c"), "")
        for headers in ({}, {"name": "value"})
        for weight in (1, 7)
        for level in levels
    ]
    fresh = [delivered(q, [one, *numbered(3)], kept.system) for one in messages]
    reads = kept.store.reads
    stored = [delivered(q, [one, *numbered(3)], kept.system, reload=True) for one in messages]
    assert (reads, kept.store.reads > 0) == (0, True)
    assert fresh == stored


def delivered(
    q: Queue, messages: list[NewMessage], system: MemorySystem, *, reload: bool = False
) -> list[tuple[Any, ...]]:
    """What consumers get of these, with its types: all but what is new with each message and lease."""
    q.enqueue_many(messages)
    if reload:
        system.engine.queue(q.name).unload()
    out: list[tuple[Any, ...]] = []
    while held := q.lease(10):
        for one in held:
            values = msgspec.structs.asdict(one)
            del values["raw_id"], values["token"]
            out.append((values, *map(type, values.values())))
        q.ack([one.receipt for one in held])
    return sorted(out, key=repr)  # Whose turn comes first is not remembered.


def test_what_waits_long_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "KEPT_BODIES", 40)
    kept = Kept()
    for _ in range(20):
        kept.q.enqueue_many(numbered(10))
    assert kept.kept() == 160  # Small ones: four times as many.
    kept.system.create("other")
    kept.q.ack([one.receipt for one in kept.q.lease(115)])
    kept.q.enqueue_many(numbered(4))
    assert kept.kept() == 45  # It shares with the other one: 85 were waiting, and 80 would do.


def test_the_more_wait_the_smaller_is_what_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "KEPT_BODIES", 40)
    kept = Kept()
    kept.q.enqueue_many(numbered(38))
    for waiting, most in ((38, lanes.KEPT_BODY_BYTES), (40, 768), (80, 384), (120, 256)):
        kept.q.enqueue_many(numbered(waiting - kept.q.stats().ready))
        before = kept.kept()
        kept.q.enqueue_many([NewMessage(b"x" * size, fairness_key="a") for size in (most - 100, most)])
        assert kept.kept() == before + 1, waiting


def test_bodies_of_what_was_taken_go() -> None:
    kept = Kept()
    kept.q.enqueue_many(numbered(20))
    for _ in range(50):
        kept.q.enqueue_many(numbered(10))
        kept.q.lease(10)
    assert kept.kept() <= 2 * 30


def test_neighbours_that_differ_are_leased_each_as_they_are() -> None:
    """Rows that were enqueued alike share their value; what is read of one is no other's."""
    kept = Kept()
    kinds: list[dict[str, Any]] = [{}, {"ttl_s": 60}, {"weight": 3}, {"ttl_s": 90, "weight": 2}]
    messages = [NewMessage(b"%d" % n, fairness_key="ab"[n // 4 % 2], **kinds[n % 4]) for n in range(16)]
    kept.q.enqueue_many(messages)
    again = [one for one in kept.q.lease(16) if int(one.payload) % 3 == 0]
    kept.q.nack([one.receipt for one in again], delay_s=0)
    for _ in range(2):  # Some for the second time, beside new ones.
        kept.q.enqueue_many([*messages[:8], *messages[:8]])
    held = kept.q.lease(99)
    retried = {one.raw_id for one in again}
    found = [(one.attempts, one.weight, one.expires_at_ns is not None) for one in held]
    given = [messages[int(one.payload)] for one in held]
    assert found == [
        (1 + (one.raw_id in retried), message.weight, message.ttl_s is not None)
        for one, message in zip(held, given, strict=True)
    ]
    assert len(held) == 32 + len(again)
