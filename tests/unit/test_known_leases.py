"""What is known of leases: acks need not look for them, and end many at once; of no others."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from penstock import Delivery, NewMessage, Queue
from penstock.backends.embedded import known_leases
from penstock.backends.embedded.keys import SPACES
from penstock.backends.embedded.leases import RANGE_FROM_ROWS
from penstock.errors import StaleReceipt, StorageError
from penstock.kv.base import Batch, Space
from penstock.kv.memory import MemoryBatch, MemoryStore
from tests.unit.memory_system import MemorySystem

MANY = 2 * RANGE_FROM_ROWS


class _Stale:
    def __eq__(self, other: object) -> bool:
        return isinstance(other, StaleReceipt)

    __hash__ = None  # type: ignore[assignment] # it is compared alone


ANY_STALE = _Stale()


class Watched(MemoryStore):
    """Counts look-ups of state rows and deletions of ranges; fails a write when told to."""

    def __init__(self) -> None:
        super().__init__(SPACES)
        self.looked_up = self.ranges = 0
        self.fails = False

    def get_many(self, keys: Sequence[bytes], space: Space) -> list[bytes | None]:
        self.looked_up += len(keys) * (space == self.space("state"))
        return super().get_many(keys, space)

    def write(self, batch: Batch, *, sync: bool = False) -> None:
        if self.fails:
            raise StorageError("told to fail")
        assert isinstance(batch, MemoryBatch)
        self.ranges += sum(change[0] == "delete_range" for change in batch.changes)
        super().write(batch, sync=sync)


class Known:
    """A queue of which messages are leased."""

    def __init__(self) -> None:
        self.store = Watched()
        self.system = MemorySystem(self.store)
        self.q = self.system.create("q", lease_s=10, max_attempts=99)

    def reopened(self) -> Queue:
        self.system = MemorySystem(self.store, clock=self.system.clock)
        return Queue(self.system.backend, "q")

    def interleaved(self) -> tuple[list[Delivery], list[Delivery]]:
        """Two leases that end at the same time, of messages that were enqueued in turn."""
        self.q.enqueue_many([NewMessage(b"", priority=n % 2) for n in range(2 * MANY)])
        first, second = self.q.lease(MANY), self.q.lease(MANY)
        assert first[0].lease_expires_at_ns == second[0].lease_expires_at_ns
        return first, second

    def later(self, count: int) -> list[Delivery]:
        """Leases that were granted at a time of their own."""
        self.system.clock.advance(0.001)
        return self.q.lease(count)

    def released(self, q: Queue | None = None) -> int:
        """How many come back when the leases end."""
        self.system.clock.advance(10)
        return len((q or self.q).lease(9 * MANY))


def ack(q: Queue, held: Sequence[Delivery]) -> list[Any]:
    return [outcome.error for outcome in q.ack([one.receipt for one in held])]


def test_an_ack_of_what_was_just_leased_looks_nothing_up_and_ends_it_by_one_deletion() -> None:
    known = Known()
    known.q.enqueue_many([NewMessage(b"")] * MANY)
    held = known.q.lease(MANY)
    assert ack(known.q, held) == [None] * MANY
    assert (known.store.looked_up, known.store.ranges) == (0, 1)
    assert not known.system.rows("due")
    assert not known.system.rows("state")
    assert not known.system.problems()


def test_a_receipt_counts_once() -> None:
    known = Known()
    known.q.enqueue_many([NewMessage(b"")] * 3)
    (held, *_) = known.q.lease(3)
    first, second = ack(known.q, [held, held])
    assert first is None
    assert isinstance(second, StaleReceipt)
    assert isinstance(ack(known.q, [held])[0], StaleReceipt)


def test_a_lease_that_ended_is_not_known_any_longer() -> None:
    known = Known()
    known.q.enqueue_many([NewMessage(b"")] * 3)
    expired, failed, extended = known.q.lease(3)
    known.q.nack([failed.receipt], delay_s=0)
    known.system.clock.advance(5)
    known.q.extend([extended.receipt], lease_s=10)
    known.system.clock.advance(5)
    again = known.q.lease(3)
    assert sorted(one.raw_id for one in again) == sorted((expired.raw_id, failed.raw_id))
    errors = ack(known.q, [expired, failed, extended])
    assert [type(error) for error in errors] == [StaleReceipt, StaleReceipt, type(None)]
    assert ack(known.q, again) == [None, None]
    assert not known.system.problems()


def test_what_ends_at_the_same_time_is_spared() -> None:
    known = Known()
    first, second = known.interleaved()
    assert ack(known.q, first[::2]) == [None] * (MANY // 2)
    assert ack(known.q, second) == [None] * MANY
    assert known.store.ranges == 0
    assert known.released() == MANY // 2


def test_what_ended_at_the_same_time_before_the_store_was_opened_is_spared() -> None:
    known = Known()
    known.q.enqueue_many([NewMessage(b"", priority=n % 2) for n in range(2 * MANY)])
    before = known.q.lease(MANY)
    q = known.reopened()
    assert ack(q, q.lease(MANY)) == [None] * MANY
    assert known.store.ranges == 0
    assert known.released(q) == len(before)
    assert not known.system.problems()


def test_once_all_of_those_are_over_many_go_at_once_again() -> None:
    known = Known()
    known.q.enqueue_many([NewMessage(b"")] * 3 * MANY)
    before = known.q.lease(MANY)
    q = known.reopened()
    one, other = q.lease(MANY), q.lease(MANY)
    assert ack(q, before) == [None] * MANY  # Taken for some of the others, which end when these do.
    assert ack(q, one) == [None] * MANY
    assert ack(q, other) == [None] * MANY
    assert known.store.ranges == 0
    q.enqueue_many([NewMessage(b"")] * MANY)
    assert ack(q, q.lease(MANY)) == [None] * MANY
    assert known.store.ranges == 1
    assert not known.system.rows("due")


def test_what_was_extended_to_the_same_time_is_spared() -> None:
    known = Known()
    known.q.enqueue_many([NewMessage(b"", priority=n % 2) for n in range(2 * MANY)])
    extended = known.q.lease(MANY)
    known.system.clock.advance(5)
    held = known.q.lease(MANY)
    known.q.extend([one.receipt for one in extended], lease_s=10)
    ack(known.q, held)
    assert known.store.ranges == 0
    assert known.released() == MANY


def test_a_write_that_failed_leaves_nothing_known() -> None:
    known = Known()
    known.q.enqueue_many([NewMessage(b"")] * MANY)
    known.store.fails = True
    with pytest.raises(StorageError):
        known.q.lease(MANY)
    known.store.fails = False
    held = known.q.lease(MANY)
    known.store.fails = True
    with pytest.raises(StorageError):
        ack(known.q, held)
    known.store.fails = False
    assert ack(known.q, held) == [None] * MANY
    assert known.store.looked_up == MANY
    assert not known.system.problems()


def test_only_so_many_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_leases, "KNOWN_MESSAGES", 30)
    known = Known()
    known.q.enqueue_many([NewMessage(b"")] * 50)
    held = [one for _ in range(5) for one in known.later(10)]
    assert ack(known.q, held[30:]) == [None] * 20
    assert known.store.looked_up == 0
    assert ack(known.q, held[:30]) == [None] * 30  # They gave way to the others.
    assert known.store.looked_up == 30
    for _ in range(10):
        known.q.enqueue_many([NewMessage(b"")] * 10)
        assert ack(known.q, known.q.lease(10)) == [None] * 10  # What is over takes no room.
    assert known.store.looked_up == 30


def test_acks_in_any_order_are_of_what_is_known() -> None:
    known = Known()
    known.q.enqueue_many([NewMessage(b"")] * 30)
    first, second, third = (known.later(10) for _ in range(3))
    assert ack(known.q, [*second[::-1], *first[3:]]) == [None] * 17
    assert known.store.looked_up == 0
    assert ack(known.q, first[:3]) == [None] * 3  # Its grant was used up.
    assert known.store.looked_up == 3
    assert ack(known.q, [third[0], first[0], third[1]]) == [None, ANY_STALE, None]
    assert ack(known.q, third[2:]) == [None] * 8
    assert not known.system.problems()


@pytest.mark.parametrize("settings", [{"retention_s": 60}, {"max_leased_per_key": 5}, {"fifo": True}])
def test_where_acks_need_the_rows_they_are_read(settings: dict[str, Any]) -> None:
    known = Known()
    q = known.system.create("other", **settings)
    q.enqueue_many([NewMessage(b"", fairness_key=f"{n}") for n in range(MANY)])
    held = q.lease(MANY)
    assert ack(q, held) == [None] * MANY
    assert known.store.looked_up >= MANY
    assert not known.system.problems()


def test_a_receipt_of_another_queue_holds_nothing() -> None:
    known = Known()
    other = known.system.create("other")
    for q in (known.q, other):
        q.enqueue_many([NewMessage(b"")] * 3)
    held, others = known.q.lease(3), other.lease(3)
    forged = [one.receipt[:32] + two.receipt[32:] for one, two in zip(held, others, strict=True)]
    for receipts in (forged, [one.receipt for one in others]):
        assert all(isinstance(outcome.error, StaleReceipt) for outcome in known.q.ack(receipts))
    assert ack(known.q, held) == [None] * 3
    assert ack(other, others) == [None] * 3


def test_whatever_happens_to_leases_their_due_rows_are_those_of_what_is_leased() -> None:
    """Random calls, and openings in between; few times, so that leases share their ends."""
    rng = random.Random(7)
    known = Known()
    q, held = known.q, list[Delivery]()
    for _ in range(1000):
        what = rng.random()
        some = rng.sample(held, rng.randrange(len(held) + 1)) if rng.random() < 0.5 else held[-MANY:]
        receipts = [one.receipt for one in some]
        if what < 0.35:
            q.enqueue_many([NewMessage(b"", fairness_key=rng.choice("abc")) for _ in range(MANY)])
            held += q.lease(MANY)
        elif what < 0.75:
            q.ack(receipts)
            held = [one for one in held if one not in some]
        elif what < 0.8:
            q.nack(receipts[:5], delay_s=rng.choice((0, 5)))
        elif what < 0.9:
            q.extend(receipts[:20], lease_s=rng.choice((5, 10)))
        elif what < 0.95:
            known.system.clock.advance(rng.choice((0.001, 5)))
        elif what < 0.97:
            q = known.reopened()
        elif known.system.engine.queue("q").counters.counts[2]:
            q.ack([one.receipt for one in held])
            held = []
        leased = {key[5:] for key, _ in known.system.rows("state") if key[4] == 2}
        assert {key[-16:] for key, _ in known.system.rows("due") if key[0] == 1} == leased
    assert known.store.ranges > 20
    assert not known.system.problems()
