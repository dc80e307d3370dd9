"""Snapshots of a store on a cluster, beside what spans queues: transfers under way, and deleted queues."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from penstock import NewMessage, Penstock
from penstock.backends.bulk import BulkRequest, Snapshot
from penstock.backends.registry import open_reader, release_snapshot
from penstock.testing.harness import drain, sweep_all
from tests.redis.one_cluster import Place
from tests.redis.test_cluster_steps import EVENTS, FORSAKEN_S, STEPS, die, held_by, prove, stocked

pytestmark = pytest.mark.xdist_group("redis-lists-cluster")

LIFETIME_S = 10_000
#: Longer than a target remembers a transfer whose end it has not heard of.
ARRIVED_S = 61
STATES = {"move": {"ready", "delayed"}, "bury": {"leased"}, "redrive": {"dead"}}


@pytest.fixture
def place() -> Iterator[Place]:
    place = Place()
    yield place
    place.close()


def read(place: Place, snapshot: Snapshot, table: str, *names: str) -> list[dict[str, Any]]:
    with open_reader(snapshot, clock=place.clock) as reader:
        plan = reader.plan(BulkRequest(table=table, names=names))  # type: ignore[arg-type]
        return [row for part in plan.partitions for batch in reader.read(part) for row in batch.to_pylist()]


def counted(place: Place, snapshot: Snapshot, name: str) -> Counter[str]:
    """Messages by state, as the queue's own row counts them."""
    row = read(place, snapshot, "queues", name)[0]
    return Counter({state: row[state] for state in ("delayed", "ready", "leased", "done", "dead")})


def nothing_is_left(place: Place, ps: Penstock, snapshot: Snapshot) -> None:
    release_snapshot(snapshot)
    place.clock.advance(ARRIVED_S)
    sweep_all(ps)
    parts = (b":e", b":q", b":v", b":n", b":plan")
    assert not [key for key in place.stored() if key.endswith(parts) or b":snapshot" in key]


@pytest.mark.parametrize("what", EVENTS)
@pytest.mark.parametrize("step", ["depart", "arrive"])
def test_what_is_on_its_way_is_in_a_snapshot_where_it_was_however_it_ends(
    place: Place, what: str, step: str
) -> None:
    ps = place.open()
    found = stocked(ps, what)
    work = ps.queue("work")
    payloads = {one: work.get(one).payload for one in found}
    die(place, what, step)
    snapshot = ps.take_snapshot(lifetime_s=LIFETIME_S)
    shown = read(place, snapshot, "messages", "work")
    assert {row["id"]: row["payload"] for row in shown} == payloads
    assert len(shown) == len(found)
    assert {row["state"] for row in shown} == STATES[what]
    assert counted(place, snapshot, "work") == Counter(row["state"] for row in shown)

    place.clock.advance(FORSAKEN_S)
    sweep_all(ps)
    assert work.length() == 0
    assert read(place, snapshot, "messages", "work") == shown
    nothing_is_left(place, ps, snapshot)
    prove(ps, work)


def test_what_is_put_back_is_in_a_snapshot_once_and_as_it_was(place: Place) -> None:
    ps = place.open()
    found = stocked(ps, "move")
    work = ps.queue("work")
    die(place, "move", "depart")
    snapshot = ps.take_snapshot(lifetime_s=LIFETIME_S)
    shown = read(place, snapshot, "messages", "work")
    ps.delete_queue("spare")
    place.clock.advance(FORSAKEN_S)
    sweep_all(ps)
    assert held_by(work) == {"work": Counter(found)}
    work.upsert([NewMessage(b"another", id=found[0])])
    again = read(place, snapshot, "messages", "work")
    assert again == shown
    assert Counter(row["id"] for row in shown) == Counter(found)
    place.clock.advance(500)
    assert len(drain(work)) == len(found)
    nothing_is_left(place, ps, snapshot)
    prove(ps, work)


@pytest.mark.parametrize("what", EVENTS)
@pytest.mark.parametrize("step", STEPS)
def test_a_snapshot_shows_what_set_out_after_it_was_taken(place: Place, what: str, step: str) -> None:
    ps = place.open()
    found = stocked(ps, what)
    work, target = ps.queue("work"), ps.queue("dead" if what == "bury" else "spare")
    snapshot = ps.take_snapshot(lifetime_s=LIFETIME_S)
    shown = {table: read(place, snapshot, table, "work") for table in ("messages", "bodies")}
    assert {row["id"] for row in shown["messages"]} == set(found)
    die(place, what, step)
    for _ in range(2):  # Under way, and when it is over.
        assert {table: read(place, snapshot, table, "work") for table in shown} == shown
        assert read(place, snapshot, "messages", target.name) == []
        place.clock.advance(FORSAKEN_S)
        sweep_all(ps)
    assert ps.check().ok
    assert held_by(target) == {target.name: Counter(found)}
    nothing_is_left(place, ps, snapshot)
    prove(ps, work, target)


def test_what_went_is_held_for_a_required_cursor_and_its_record_is_sound(place: Place) -> None:
    ps = place.open()
    found = stocked(ps, "move")
    work = ps.queue("work")
    events = work.cursor("all", required=True)
    expiries = {row.id: row.expires_at_ns for row in work.iter()}
    work.move(found, target="spare")
    snapshot = ps.take_snapshot(lifetime_s=LIFETIME_S)
    bodies = read(place, snapshot, "bodies", "work")
    assert {row["id"]: row["expires_at_ns"] for row in bodies} == expiries
    assert ps.check().ok
    release_snapshot(snapshot)
    events.drop()
    sweep_all(ps)
    prove(ps, work)


@pytest.mark.parametrize("step", ["none", "plan", "commit", "change", "planned"])
@pytest.mark.parametrize("again", [False, True])
def test_a_queue_that_is_deleted_stays_in_a_snapshot(place: Place, step: str, again: bool) -> None:
    ps = place.open()
    stocked(ps, "move")
    spare = ps.queue("spare")
    spare.enqueue_many([NewMessage(b"%d" % n, delay_s=n % 2) for n in range(10)])
    snapshot = ps.take_snapshot(lifetime_s=LIFETIME_S)
    tables = ("messages", "events", "bodies", "queues")
    shown = {table: read(place, snapshot, table, "spare") for table in tables}
    assert len(shown["messages"]) == 10
    spare.ack([one.receipt for one in spare.lease(3)])
    die(place, "delete", step)
    other = place.open(2)  # Whoever opens the store goes on with the plan.
    assert "spare" not in {settings.name for settings in other.queues()}
    if again:
        other.create_queue("spare").enqueue(b"new")
        assert [message.payload for message in other.queue("spare").iter()] == [b"new"]
    assert {table: read(place, snapshot, table, "spare") for table in tables} == shown
    aside = {key for key in place.stored() if b"{spare}" in key and key.rpartition(b":")[2].isdigit()}
    assert aside
    for key in aside:
        assert any(0 < ttl <= 86_400_000 for ttl in _ttls(place, key)), key
    release_snapshot(snapshot)
    sweep_all(other)
    assert other.check().ok


def _ttls(place: Place, key: bytes) -> list[int]:
    return [
        master.do("PTTL", key)
        for master in place.cluster.masters
        if master.do("CLUSTER", "COUNTKEYSINSLOT", master.do("CLUSTER", "KEYSLOT", key))
    ]
