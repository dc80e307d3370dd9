"""A server whose memory is full: what fills it is refused, what drains it and makes room goes on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import penstock
from penstock import Entry, NewMessage, StorageFull
from penstock.testing.harness import receipts
from tests.redis import one_server
from tests.redis.servers import wait_until
from tests.redis.stores import Place


@pytest.fixture(
    params=[(flavour, kind) for flavour in one_server.flavours() for kind in ("lists", "streams")]
)
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    flavour, kind = request.param
    place = Place(kind, one_server.shared(flavour))
    yield place
    place.client.config_set("maxmemory", 0)
    place.close()


def fill(place: Place) -> None:
    """From now on the server refuses every command that may need memory."""
    place.client.config_set("maxmemory", 1)


def test_new_messages_are_refused_and_nothing_grows(place: Place) -> None:
    ps = place.open()
    q = ps.create_queue("q")
    q.enqueue_many([NewMessage(b"x" * 1000)] * 600)
    fill(place)
    for _ in range(3):
        with pytest.raises(StorageFull):
            q.enqueue(b"y")
    assert (q.stats().enqueued_total, place.bodies("q")) == (600, 600)
    place.client.config_set("maxmemory", 0)
    assert q.enqueue(b"y")
    assert ps.check().ok


@pytest.mark.parametrize("is_shown", [False, True], ids=["", "while a snapshot is read"])
def test_what_is_there_is_worked_off(place: Place, is_shown: bool) -> None:
    ps = place.open()
    ps.create_queue("dead")
    q = ps.create_queue("q", lease_s=10, max_attempts=2, dead_letter="dead")
    q.lease()  # On streams, the group is made.
    archive = q.cursor("archive", required=True)
    q.enqueue_many([NewMessage(b"%d" % n) for n in range(9)])
    q.nack(receipts(q.lease(2)), delay_s=0)
    backend: Any = q._backend
    snapshot = backend.take_snapshot() if is_shown else None
    fill(place)
    held, dying = q.lease(7), q.lease(2)
    assert [one.attempts for one in (*held, *dying)] == [1] * 7 + [2] * 2
    assert [one.ok for one in q.extend(receipts(held[:2]), lease_s=100)] == [True] * 2
    place.clock.advance(20)
    again = q.lease(9)
    assert [one.attempts for one in again] == [2] * 5, (
        "leases that ran out; two were extended, two were their last"
    )
    assert [one.ok for one in q.nack(receipts(held[:1]), delay_s=5)] == [True]
    assert [one.ok for one in q.reject(receipts(again[:1]))] == [True]
    assert all(one.ok for one in q.ack(receipts([held[1], *again[1:]])))
    assert ps.queue("dead").length() == 3
    assert q.purge() == 1
    archive.commit(q.stats().last_seq)
    if snapshot is not None:
        penstock.release_snapshot(snapshot)
    while ps.sweep():
        pass
    place.client.config_set("maxmemory", 0)
    assert (q.length(), q.stats().held_bodies, place.bodies("q")) == (0, 0, 0)
    assert ps.check().ok


def test_what_is_over_makes_room_by_itself(place: Place) -> None:
    with penstock.open(place.url) as ps:  # Housekeeping goes by the time of day.
        q = ps.create_queue("q", retention_s=1)
        q.enqueue_many([NewMessage(b"done")] + [NewMessage(b"x", ttl_s=1)] * 3)
        q.ack(receipts(q.lease(1)))
        world = ps.journal("world")
        world.configure(retention_s=1)
        world.append([Entry("k", b"x")] * 3)
        place.client.delete(place.keys.sweeper)
        fill(place)
        with pytest.raises(StorageFull):
            q.enqueue(b"y")
        assert wait_until(lambda: place.bodies("q") == world.stats()["entries"] == 0)
