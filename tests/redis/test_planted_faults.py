"""Faults that were planted: `check` finds each of them, a repair mends it, and nobody loses a message."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock import NewMessage, Penstock, Queue
from penstock.testing.folding import prove_journal
from penstock.testing.harness import ack, drain, ids, receipts, take, take_one
from tests.redis.stores import Place


@pytest.fixture
def ps(place: Place) -> Penstock:
    return place.open()


@pytest.fixture
def q(ps: Penstock) -> Queue:
    """With something in every state, of several keys and priorities."""
    ps.create_queue("graves")
    q = ps.create_queue("q", retention_s=1000, dedup_window_s=1000)
    q.enqueue_many([NewMessage(b"done"), NewMessage(b"dead")])
    done, dead = take(q, 2)
    ack(q, [done])
    q.reject([dead.receipt])
    q.enqueue_many(
        [NewMessage(b"%d" % n, fairness_key=f"k{n % 3}", priority=n % 3 + 3, ttl_s=500) for n in range(9)]
    )
    take(q, 2)
    q.enqueue(b"delayed", delay_s=60, dedup_id="once")
    return q


def first(place: Place, part: str) -> bytes:
    """A member of one of the queue's indexes."""
    found: list[bytes] = place.client.zrange(place.key("q", part), 0, 0)
    return found[0]


def with_counter(place: Place, at: int, change: int) -> None:
    import msgspec

    key = place.key("q", "c")
    numbers = msgspec.msgpack.decode(place.client.get(key))
    numbers[at] += change
    place.client.set(key, msgspec.msgpack.encode(numbers))


def damaged_frame(place: Place) -> None:
    entry, fields = place.client.xrange(place.key("q", "j"), count=1)[0]
    place.client.delete(place.key("q", "j"))
    place.client.xadd(place.key("q", "j"), {"f": fields[b"f"][:-9] + b"?" + fields[b"f"][-8:]}, id=entry)


#: what is wrong -> how it is planted, the kind that is found
INDEXES: dict[str, tuple[Callable[[Place], object], str]] = {
    "a ready row is lost": (lambda p: p.client.zrem(p.key("q", "z"), first(p, "z")), "ready row missing"),
    "a lease's end is lost": (lambda p: p.client.zrem(p.key("q", "l"), first(p, "l")), "state row missing"),
    "a delay is lost": (lambda p: p.client.zrem(p.key("q", "d"), first(p, "d")), "state row missing"),
    "a dead row is lost": (lambda p: p.client.zrem(p.key("q", "y"), first(p, "y")), "state row missing"),
    "a done row is lost": (lambda p: p.client.zrem(p.key("q", "g"), first(p, "g")), "state row missing"),
    "an expiry is lost": (lambda p: p.client.zrem(p.key("q", "t"), first(p, "t")), "ttl row missing"),
    "a window is lost": (lambda p: p.client.zrem(p.key("q", "u"), first(p, "u")), "dedup row missing"),
    "a lease ends later": (lambda p: p.client.zincrby(p.key("q", "l"), 9, first(p, "l")), "row of another"),
    "an expiry is late": (lambda p: p.client.zincrby(p.key("q", "t"), 9, first(p, "t")), "row of another"),
    "a lease of nothing": (lambda p: p.client.zadd(p.key("q", "l"), {b"n" * 16: 5e15}), "row of nothing"),
    "a ready row twice": (
        lambda p: p.client.zadd(p.key("q", "z"), {first(p, "z")[:-17] + b"\x07" + first(p, "z")[-16:]: 0}),
        "row of another",
    ),
    "a head is lost": (lambda p: p.client.zrem(p.key("q", "o"), first(p, "o")), "counter"),
    "a head is another": (lambda p: p.client.zincrby(p.key("q", "o"), 7, first(p, "o")), "head"),
    "a flow is lost": (lambda p: p.client.delete(p.key("q", "f5"), p.key("q", "f6")), "flow missing"),
    "leases are miscounted": (lambda p: with_counter(p, 5, 1), "counter"),
    "ready ones are miscounted": (lambda p: with_counter(p, 29 + 5, -1), "counter"),
    "the counters are lost": (lambda p: p.client.delete(p.key("q", "c")), "counters"),
}


@pytest.mark.parametrize("fault", INDEXES)
def test_what_is_wrong_with_an_index_is_found_and_mended_without_loss(
    place: Place, ps: Penstock, q: Queue, fault: str
) -> None:
    plant, kind = INDEXES[fault]
    before = {(message.id, message.state, message.payload) for message in q.iter()}
    assert ps.check().ok
    plant(place)
    report = ps.check()
    assert not report.ok
    assert kind in report.counts, report.counts
    assert {problem.queue for problem in report.problems} == {"q"}
    mended = ps.check(repair=True)
    assert mended.ok, mended
    assert all(problem.action for problem in mended.problems)
    assert ps.check().ok
    assert {(message.id, message.state, message.payload) for message in q.iter()} == before
    if fault != "the counters are lost":  # Totals are nowhere else.
        prove_journal(q)
    assert len(drain(q)) == 7


@pytest.mark.parametrize("part", ["c", "d"])
def test_what_waits_for_the_delay_of_a_fifo_queue_stands_in_line_again(
    place: Place, ps: Penstock, part: str
) -> None:
    q = ps.create_queue("q", fifo=True, delay_s=20)
    q.enqueue_many([NewMessage(b"1"), NewMessage(b"2")])
    place.clock.advance(20)
    q.nack([take_one(q).receipt], delay_s=5)
    q.enqueue_many([NewMessage(b"3"), NewMessage(b"other", fairness_key="k")])
    due = ps.due()
    assert len(due) == 3
    place.client.delete(place.key("q", part))
    assert not ps.check().ok
    assert ps.check(repair=True).ok
    assert (ps.check().ok, ps.due()) == (True, due)
    place.clock.advance(5)
    assert drain(q) == [b"1", b"2"]
    place.clock.advance(15)
    assert sorted(drain(q)) == [b"3", b"other"]


def test_a_body_that_is_lost_is_found_and_its_message_is_taken_out(
    place: Place, ps: Penstock, q: Queue
) -> None:
    lost = q.peek(1)[0].id
    place.lose_body("q", bytes.fromhex(lost.replace("-", "")))
    assert "body missing" in ps.check().counts
    assert ps.check(repair=True).ok
    assert lost not in [message.id for message in q.iter()]
    assert [event.kind for event in q.events() if event.message_id == lost][-1] == "repaired"
    prove_journal(q)


def test_a_message_whose_record_is_lost_is_ready_again(place: Place, ps: Penstock, q: Queue) -> None:
    held = take_one(q)
    place.client.hdel(place.key("q", "s"), held.raw_id)
    assert "body of nothing" in ps.check().counts
    assert ps.check(repair=True).ok
    message = q.get(held.id)
    assert (message.state, message.payload, message.priority) == ("ready", held.payload, held.priority)
    assert [outcome.ok for outcome in q.ack([held.receipt])] == [False]


@pytest.mark.parametrize("damage", ["lost", "cut short", "empty", "another state"])
def test_a_record_that_cannot_be_used_costs_nobody_else_a_delivery(
    place: Place, ps: Penstock, damage: str
) -> None:
    q = ps.create_queue("line")
    known = ids(q.enqueue_many([NewMessage(b"%d" % n, ttl_s=50) for n in range(20)]))
    bad = bytes.fromhex(known[3].replace("-", ""))
    record = place.client.hget(place.key("line", "s"), bad)
    if damage == "lost":
        place.client.hdel(place.key("line", "s"), bad)
    else:
        changed = {"cut short": record[:60], "empty": b"", "another state": b"\x05" + record[1:]}[damage]
        place.client.hset(place.key("line", "s"), bad, changed)
    assert not ps.check().ok
    held = q.lease(20)
    assert ids(held) == [one for one in known if one != known[3]]
    ack(q, held)
    assert q.lease(5) == []
    place.clock.advance(60)
    assert q.lease(5) == []
    assert ps.check(repair=True).ok
    assert q.stats().leased == 0


def test_a_body_that_does_not_decode_goes_to_quarantine(place: Place, ps: Penstock, q: Queue) -> None:
    lost = q.peek(1)[0]
    place.spoil_body("q", lost.raw_id, b"\xffnonsense")
    assert "body damaged" in ps.check().counts
    assert lost.id not in [message.id for message in q.iter()]
    assert ps.check(repair=True).ok
    (item,) = ps.quarantine()
    assert (item.queue, item.key, ps.quarantine_get(item.id)) == ("q", lost.raw_id, b"\xffnonsense")
    assert ps.quarantine_drop([item.id]) == 1


def test_a_journal_with_a_damaged_frame_or_a_gap_is_told(place: Place, ps: Penstock, q: Queue) -> None:
    damaged_frame(place)
    counts = ps.check().counts
    assert "journal frame" in counts or "journal gap" in counts
    place.client.delete(place.key("q", "j"))
    assert "journal gap" in ps.check().counts


def test_a_world_that_lost_a_frame_is_told(place: Place, ps: Penstock, q: Queue) -> None:
    stream = place.keys.world("_penstock")
    entry, _ = place.client.xrange(stream, count=1)[0]
    place.client.xdel(stream, entry)
    assert "world" in ps.check().counts


def test_reindex_builds_everything_that_is_derived_anew(place: Place, ps: Penstock, q: Queue) -> None:
    before = list(q.iter())
    for part in ("z", "o", "d", "l", "g", "y", "t", "u", "f3", "f4", "f5", "f6"):
        place.client.delete(place.key("q", part))
    assert ps.reindex().ok
    assert sorted(q.iter(), key=lambda one: one.id) == sorted(before, key=lambda one: one.id)


def test_fifo_and_limits_are_counted_anew(place: Place, ps: Penstock) -> None:
    line = ps.create_queue("line", fifo=True)
    line.enqueue_many([NewMessage(b"%d" % n, fairness_key="ab"[n % 2]) for n in range(6)])
    held = take(line, 2)
    line.nack(receipts(held[:1]), delay_s=100)
    for part in ("k", "b", "f5", "o"):
        place.client.delete(place.key("line", part))
    assert not ps.check().ok
    assert ps.check(repair=True).ok
    assert line.lease(10) == []
    ack(line, held[1:])
    assert [one.payload for one in line.lease(10, lease_s=1000)] == [b"3"]
    place.clock.advance(100)
    assert ids(line.lease(10)) == [held[0].id]


def test_a_queue_whose_repair_was_interrupted_says_so_and_is_repaired_again(
    place: Place, ps: Penstock, q: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    from penstock.backends.redis import engine
    from penstock.backends.redis.repairing import Repairing

    monkeypatch.setattr(engine, "MOST_CHANGES", 4)
    monkeypatch.setattr(Repairing, "_walk", lambda *args: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        ps.reindex()
    monkeypatch.undo()
    monkeypatch.setattr(engine, "MOST_CHANGES", 4)
    with pytest.raises(Exception, match="repair"):
        ps.queue("graves").enqueue(b"x")
    assert "locked" in ps.check().counts
    assert ps.check(repair=True).ok
    assert len(list(q.iter())) == 12
