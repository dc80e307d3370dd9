"""Streams that others write to, and groups that others make: what clients of a queue make of that."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock import NewMessage
from penstock.backends.redis.engine import Engine
from penstock.testing.group_suite import worked
from tests.redis import one_server
from tests.redis.stores import Place


@pytest.fixture
def place() -> Iterator[Place]:
    place = Place("streams")
    yield place
    place.close()


def test_a_receipt_of_a_group_made_since_is_known_where_several_groups_are(place: Place) -> None:
    q = place.open().create_queue("q", lease_s=60)
    q.create_group("first")
    q.create_group("second")
    q.enqueue_many([NewMessage(b"1"), NewMessage(b"2")])
    q.ack([one.receipt for one in q.lease(1, group="second")])  # Two groups are known here.
    theirs = place.open(2).queue("q").lease(2, group="third")
    assert [outcome.ok for outcome in q.ack([one.receipt for one in theirs])] == [True, True]


def test_an_entry_that_is_no_message_is_taken_out_and_leaves_a_sound_journal(place: Place) -> None:
    ps = place.open()
    q = ps.create_queue("q", lease_s=60)
    q.enqueue(b"x")
    place.client.xadd(place.key("q", "m"), {"some": "thing"}, id="1-1")
    place.client.xadd(place.key("q", "m"), {"i": "short", "b": "thing"}, id="1-2")
    assert not ps.check().ok
    mended = ps.check(repair=True)
    assert mended.ok, mended
    assert ps.check().ok
    assert [one.payload for one in q.lease(10)] == [b"x"]


def test_what_others_have_leased_stays_theirs_where_entries_were_deleted_by_hand(place: Place) -> None:
    q = place.open().create_queue("q", lease_s=60)
    q.enqueue_many([NewMessage(b"%d" % n, priority=9 if n == 4 else 4) for n in range(6)])
    stream = place.key("q", "m")
    (theirs,) = q.lease(1, consumer="they", group="g")
    assert theirs.payload == b"4"
    names = [name for name, _ in place.client.xrange(stream)]
    place.client.xdel(stream, names[1])
    q.lease(4, consumer="me", group="g")
    rows = place.client.xpending_range(stream, "g", names[4], names[4], 1)
    assert [row["consumer"] for row in rows] == [b"they"]


def test_an_enqueue_gets_through_while_groups_come_and_go_all_the_time(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    q, other = place.open().create_queue("q", lease_s=60), place.open(2).queue("q")
    q.create_group("first")
    is_busy, times = [False], [0]

    def patience(_: Engine, attempt: int) -> None:
        """Every pause is long enough for a group to come or go."""
        if not is_busy[0]:
            is_busy[0] = True
            times[0] += 1
            if times[0] % 2:
                other.create_group("second")
            else:
                other.drop_group("second")
            is_busy[0] = False

    monkeypatch.setattr(Engine, "patience", patience)
    assert q.enqueue(b"x")
    assert times[0] < 5


@pytest.fixture(params=one_server.flavours())
def anywhere(request: pytest.FixtureRequest) -> Iterator[Place]:
    place = Place("streams", one_server.shared(request.param))
    yield place
    place.close()


@pytest.mark.parametrize("waiting", [0, 1200])
def test_an_entry_added_by_hand_under_the_servers_own_number_stops_nobody(
    anywhere: Place, waiting: int
) -> None:
    ps = anywhere.open()
    q = ps.create_queue("q", lease_s=60, max_attempts=3)
    for group in ("first", "second"):
        q.create_group(group)
    q.enqueue_many([NewMessage(b"%d" % n) for n in range(max(waiting, 2))])
    held = [q.lease(2, group=group, consumer="c") for group in ("first", "second")]
    stream = anywhere.key("q", "m")
    anywhere.client.xadd(stream, {"some": "thing"})
    assert q.enqueue(b"later")
    assert q.enqueue(b"last")
    assert "counter" not in ps.check().counts
    mended = ps.check(repair=True)
    assert mended.ok, mended
    for some in held:
        assert all(outcome.ok for outcome in q.ack([one.receipt for one in some]))
    for group in ("first", "second"):
        found = worked(q, group)
        assert len(found) == max(waiting, 2)
        assert {b"later", b"last"} < {*found, b""}
    assert anywhere.bodies("q") == 0
    assert ps.check().ok


@pytest.mark.parametrize("name", ["first", "second"])
def test_a_group_that_was_made_by_hand_brings_nothing_along(place: Place, name: str) -> None:
    ps = place.open()
    q = ps.create_queue("q", lease_s=60)
    q.enqueue_many([NewMessage(b"%d" % n) for n in range(3)])
    stream = place.key("q", "m")
    place.client.xgroup_create(stream, name, id="0")
    place.client.xreadgroup(name, "by-hand", {stream: ">"})
    for group in ("first", "second"):
        q.create_group(group)
    assert ps.check().ok
    assert [(one.pending, one.lag) for one in q.groups()] == [(0, 3), (0, 3)]
    assert len(worked(q, name)) == 3
