"""Bodies that a lease reads ahead: each is read about once, is what the store has, and they are not many."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence

import pytest

from penstock import NewMessage, Queue, StorageCorrupt, StorageError
from penstock.backends.bulk import StoredMessage
from penstock.backends.embedded import ahead, lanes
from penstock.backends.embedded.keys import SPACES
from penstock.kv.base import Batch, Row, Space
from penstock.kv.memory import MemoryStore
from penstock.message import parse_id
from tests.unit.memory_system import MemorySystem


class Watched(MemoryStore):
    """Counts bodies that are met by scans and looked up; fails a write, or a scan at a key, when told to."""

    def __init__(self) -> None:
        super().__init__(SPACES)
        self.met = self.looked_up = 0
        self.fails = False
        self.damaged_at: bytes | None = None

    def get_many(self, keys: Sequence[bytes], space: Space) -> list[bytes | None]:
        self.looked_up += len(keys) * (space == self.space("messages"))
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
        for key, value in super().scan(space, lower, upper, reverse=reverse, limit=limit):
            if space == self.space("messages"):
                if key == self.damaged_at:
                    raise StorageCorrupt("told to be damaged")
                self.met += 1
            yield key, value

    def write(self, batch: Batch, *, sync: bool = False) -> None:
        if self.fails:
            raise StorageError("told to fail")
        super().write(batch, sync=sync)


@pytest.fixture(autouse=True)
def long_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if more were waiting than bodies are kept with their rows."""
    monkeypatch.setattr(lanes, "KEPT_BODIES", 0)


def remembered(system: MemorySystem) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = {}
    for walk in system.engine.ahead._walks.values():
        found |= walk.older | walk.younger
    return found


def filled(q: Queue, count: int, keys: int) -> dict[str, bytes]:
    """Messages of keys at random, by id."""
    rng = random.Random(1)
    messages = [NewMessage(b"%d" % n, fairness_key=f"{rng.randrange(keys)}") for n in range(count)]
    results = q.enqueue_many(messages)
    return {result.id or "": one.payload for result, one in zip(results, messages, strict=True)}


def drained(q: Queue, batch: int) -> dict[str, bytes]:
    """What is delivered, each once, and done."""
    found: dict[str, bytes] = {}
    while held := q.lease(batch):
        assert not found.keys() & {one.id for one in held}
        found |= {one.id: one.payload for one in held}
        q.ack([one.receipt for one in held])
    return found


# -- what it reads ------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [10, 50])
@pytest.mark.parametrize("keys", [10, 100])
def test_scattered_bodies_are_read_about_once_each(keys: int, batch: int) -> None:
    system = MemorySystem(store := Watched())
    q = system.create("q")
    sent = filled(q, 4000, keys)
    assert drained(q, batch) == sent
    assert store.met <= 1.1 * len(sent)
    assert store.looked_up <= 0.1 * len(sent)
    assert remembered(system) == {}


def test_bodies_of_one_key_are_read_when_they_are_leased_and_none_is_remembered() -> None:
    system = MemorySystem(store := Watched())
    q = system.create("q")
    q.enqueue_many([NewMessage()] * 1000)
    for leased in range(50, 1001, 50):
        assert len(q.lease(50)) == 50
        assert (store.met, store.looked_up, remembered(system)) == (leased, 0, {})


def test_few_bodies_of_a_queue_that_is_leased_singly_are_looked_up() -> None:
    system = MemorySystem(store := Watched())
    q = system.create("q")
    filled(q, 100, 5)
    for _ in range(50):
        q.lease(1)
    assert (store.met, store.looked_up) == (0, 50)


def test_a_key_far_behind_a_long_line_of_another_does_not_have_it_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ahead, "UNWANTED_AT_MOST", 500)
    system = MemorySystem(store := Watched())
    q = system.create("q")
    q.enqueue_many([NewMessage(fairness_key="noisy")] * 20_000)
    q.enqueue_many([NewMessage(fairness_key=f"{n % 9}") for n in range(900)])
    for _ in range(40):
        assert len(q.lease(20)) == 20
    assert store.met <= 500 + 40 * (20 + ahead.AHEAD_FIRST)


def test_what_was_leased_without_walks_is_not_walked_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "STALE_AFTER_ROWS", 100)
    system = MemorySystem(store := Watched())
    q = system.create("q")
    filled(q, 2000, 20)
    q.lease(20)
    for _ in range(1000):
        system.engine.ahead._walks[1].room = 0  # As if nothing of what it remembers were wanted.
        q.lease(1)
    store.met = 0
    q.lease(20)
    assert store.met <= 20 + ahead.AHEAD_FIRST + 1


def test_a_damaged_place_on_the_way_stops_nobody_whose_own_body_can_be_read() -> None:
    system = MemorySystem(store := Watched())
    q = system.create("q")
    sent = filled(q, 400, 20)
    store.damaged_at = system.rows("messages")[30][0]
    assert drained(q, 20) == sent


# -- what it remembers --------------------------------------------------------------------------------


def test_what_is_remembered_is_bounded_over_all_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    limit_bytes = 40 * (ahead.ENTRY_BYTES + 60)
    monkeypatch.setattr(ahead, "REMEMBERED_BYTES", limit_bytes)
    monkeypatch.setattr(ahead, "AHEAD_AT_MOST", 16)
    system = MemorySystem(Watched())
    queues = [system.create(name) for name in "abc"]
    sent = [filled(q, 1000, 100) for q in queues]
    found: list[dict[str, bytes]] = [{}, {}, {}]
    most = 0
    for _ in range(100):
        for n, q in enumerate(queues):
            found[n] |= {one.id: one.payload for one in q.lease(10)}
            most = max(most, sum(len(body) + ahead.ENTRY_BYTES for body in remembered(system).values()))
    assert found == sent
    assert limit_bytes // 4 < most <= limit_bytes + 32 * (ahead.ENTRY_BYTES + 60)


def test_large_bodies_are_not_remembered() -> None:
    system = MemorySystem(Watched())
    q = system.create("q")
    payload = b"x" * ahead.REMEMBERED_BODY_BYTES
    q.enqueue_many([NewMessage(payload, fairness_key=f"{n // 20}") for n in range(200)])
    for _ in range(20):
        assert [one.payload for one in q.lease(10)] == [payload] * 10
        assert remembered(system) == {}


# -- what it must not serve ---------------------------------------------------------------------------


class Passed:
    """A queue of which a lease has passed over a message that waits for its time, and remembers it."""

    def __init__(self) -> None:
        self.store = Watched()
        self.system = MemorySystem(self.store)
        self.q = self.system.create("q")
        self.other = self.system.create("other", dead_letter="q")
        self.other.stats()  # A queue that is loaded makes all forget.
        messages = [NewMessage(b"old", fairness_key=f"{n // 20}") for n in range(200)]
        messages[2] = NewMessage(b"old", delay_s=60)
        self.id = self.q.enqueue_many(messages)[2].id or ""
        assert len(self.q.lease(20)) == 20
        assert self.remembers()

    def remembers(self) -> bool:
        return any(key.endswith(parse_id(self.id)) for key in remembered(self.system))

    def delivered(self) -> bytes:
        return drained(self.q, 10)[self.id]

    def new(self) -> NewMessage:
        return NewMessage(b"new", id=self.id)

    # -- how its body comes to be another one

    def upsert(self) -> None:
        self.q.upsert([self.new()])

    def remove_and_enqueue(self) -> None:
        self.q.purge("delayed")
        self.q.enqueue_many([self.new()])

    def remove_and_restore(self) -> None:
        self.q.purge("delayed")
        self.system.backend.restore("q", [StoredMessage(id=self.id, state="ready", payload=b"new")])

    def remove_and_bury(self) -> None:
        self.q.purge("delayed")
        self.other.enqueue_many([self.new()])
        self.other.reject([one.receipt for one in self.other.lease(1)])

    def remove_and_move(self) -> None:
        self.q.purge("delayed")
        self.other.enqueue_many([self.new()])
        self.other.move([self.id], "q")


CHANGES: list[Callable[[Passed], None]] = [
    Passed.upsert,
    Passed.remove_and_enqueue,
    Passed.remove_and_restore,
    Passed.remove_and_bury,
    Passed.remove_and_move,
]


@pytest.mark.parametrize("change", CHANGES)
def test_a_body_that_was_remembered_is_not_served_once_there_is_another(
    change: Callable[[Passed], None],
) -> None:
    passed = Passed()
    change(passed)
    assert not passed.remembers()
    assert passed.delivered() == b"new"


@pytest.mark.parametrize("change", CHANGES)
def test_nor_if_it_was_remembered_after_what_failed(change: Callable[[Passed], None]) -> None:
    passed = Passed()
    passed.store.fails = True
    with pytest.raises(StorageError):
        passed.q.upsert([passed.new()])
    passed.store.fails = False
    passed.q.lease(20)
    change(passed)
    assert passed.delivered() == b"new"


def test_after_a_write_that_failed_the_body_is_what_it_was() -> None:
    passed = Passed()
    passed.store.fails = True
    with pytest.raises(StorageError):
        passed.q.upsert([passed.new()])
    passed.store.fails = False
    passed.system.engine.queue("q")
    assert remembered(passed.system) == {}
    passed.system.clock.advance(61)
    assert passed.delivered() == b"old"


def test_a_transaction_that_replaces_a_body_remembers_nothing_that_it_reads() -> None:
    passed = Passed()
    engine = passed.system.engine
    q = engine.queue("q")
    key = q.prefix + parse_id(passed.id)
    keys = [row for row, _ in passed.system.rows("messages")]
    with engine.lock, engine.transaction() as txn:
        engine.ahead.clear()
        engine.ahead.replaced(txn, key)
        assert None not in engine.ahead.bodies(q, keys[::4], len(keys[::4]))
    assert remembered(passed.system) == {}
    with engine.lock, engine.transaction():
        engine.ahead.clear()
        engine.ahead.bodies(q, keys[::4], len(keys[::4]))
    assert passed.remembers()


@pytest.mark.parametrize("repair", ["reindex", "check"])
def test_after_a_repair_nothing_is_remembered(repair: str) -> None:
    passed = Passed()
    if repair == "check":
        passed.system.damage("messages", "q", parse_id(passed.id))
        passed.system.backend.check(repair=True)
    else:
        passed.system.backend.reindex()
    passed.q.lease(1)
    assert not passed.remembers()
    passed.remove_and_enqueue()
    assert passed.delivered() == b"new"


def test_a_queue_made_anew_has_nothing_of_the_one_before() -> None:
    passed = Passed()
    for name in ("other", "q"):
        passed.system.backend.delete_queue(name)
    passed.q = passed.system.create("q")
    passed.q.enqueue_many([passed.new()])
    assert passed.delivered() == b"new"
