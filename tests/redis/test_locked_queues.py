"""A queue that is being repaired: nobody unlocks it by changing or deleting it meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from penstock import BackendUnavailable, NewMessage, Penstock, QueueNotFound
from penstock.backends.redis import catalogue, planning
from tests.redis import one_cluster
from tests.redis.interrupting import server_of
from tests.redis.stores import Place


@pytest.fixture(params=["lists", "streams"])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    place = Place(request.param)
    yield place
    place.close()


def during_repair(monkeypatch: pytest.MonkeyPatch, ps: Penstock, act: Callable[[], None]) -> None:
    """Do this when a repair has run its third step."""
    run, seen = server_of(ps).run, [0]

    def meanwhile(script: object, *args: object, **more: object) -> object:
        reply = run(script, *args, **more)  # type: ignore[arg-type]
        seen[0] += getattr(script, "name", "") == "rebuild"
        if seen[0] == 3:
            seen[0] = 100
            act()
        return reply

    monkeypatch.setattr(server_of(ps), "run", meanwhile)


def test_a_queue_is_not_changed_while_it_is_repaired(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    ps, other = place.open(), place.open(2)
    q = ps.create_queue("q", lease_s=60)
    q.enqueue_many([NewMessage(b"%d" % n) for n in range(1000)])
    monkeypatch.setattr(catalogue, "PATIENCE_S", 0)

    def change() -> None:
        with pytest.raises(BackendUnavailable, match="'q'"):
            other.update_queue("q", max_leased=900)
        other.create_queue("beside")

    during_repair(monkeypatch, ps, change)
    assert ps.reindex().ok
    other.update_queue("q", max_leased=900)
    assert len(q.lease(2000)) == 900
    assert ps.check().ok


def test_a_change_waits_for_a_repair_to_end(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    ps, other = place.open(), place.open(2)
    q = ps.create_queue("q", lease_s=60)
    q.enqueue_many([NewMessage(b"x")] * 10)
    changing = threading.Thread(target=lambda: other.update_queue("q", max_leased=9), daemon=True)
    during_repair(monkeypatch, ps, changing.start)
    assert ps.reindex().ok
    changing.join(20)
    assert not changing.is_alive()
    assert len(q.lease(10)) == 9


def test_a_queue_that_is_deleted_while_it_is_repaired_is_gone(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    ps, other = place.open(), place.open(2)
    ps.create_queue("q").enqueue_many([NewMessage(b"x")] * 1000)
    during_repair(monkeypatch, ps, lambda: other.delete_queue("q"))
    assert ps.reindex().ok
    with pytest.raises(QueueNotFound):
        ps.queue("q")


def test_who_keeps_house_waits_for_no_repair_whatever_it_did_before(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    ps = place.open()
    locked, other = ps.create_queue("a-locked"), ps.create_queue("b-other")
    for q in (locked, other):
        q.enqueue(b"x")
        q.lease(lease_s=1)
    place.client.zrem(place.key("a-locked", "l"), *place.client.zrange(place.key("a-locked", "l"), 0, -1))
    place.clock.advance(2)
    assert ps.sweep() > 0  # The other's lease is over, and released: housekeeping has changed something.
    assert other.stats().ready == 1
    waited: list[int] = []
    engine = ps._default._engine  # type: ignore[attr-defined]
    monkeypatch.setattr(engine, "patience", waited.append)

    def sweep() -> None:
        other.lease(lease_s=1)
        place.clock.advance(2)
        waited.clear()
        ps.sweep()
        assert other.stats().ready == 1
        assert sum(waited) < 10

    during_repair(monkeypatch, ps, sweep)
    assert ps.reindex().ok


@pytest.mark.xdist_group("redis-streams-cluster")
def test_on_a_cluster_a_change_that_waits_for_a_repair_holds_up_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    place = one_cluster.Place("streams")
    try:
        ps, other = place.open(), place.open(2)
        ps.create_queue("q").enqueue_many([NewMessage(b"%d" % n) for n in range(500)])
        monkeypatch.setattr(catalogue, "PATIENCE_S", 0)
        monkeypatch.setattr(planning, "PATIENCE_S", 0)

        def change() -> None:
            with pytest.raises(BackendUnavailable, match="'q'"):
                other.update_queue("q", max_leased=400)
            other.create_queue("beside")
            other.update_queue("beside", max_leased=7)

        during_repair(monkeypatch, ps, change)
        assert ps.reindex().ok
        limits = {settings.name: settings.max_leased for settings in ps.queues()}
        assert limits == {"q": None, "beside": 7}
        assert not [key for key in place.stored() if key.endswith(b":plan")]
    finally:
        place.close()


@pytest.mark.xdist_group("redis-streams-cluster")
def test_on_a_cluster_a_change_is_made_when_the_repair_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    place = one_cluster.Place("streams")
    try:
        ps, other = place.open(), place.open(2)
        q = ps.create_queue("q", lease_s=60)
        for group in ("first", "second"):
            q.create_group(group)
        q.enqueue_many([NewMessage(b"%d" % n) for n in range(500)])
        changing = threading.Thread(target=lambda: other.update_queue("q", max_leased=400), daemon=True)
        during_repair(monkeypatch, ps, changing.start)
        assert ps.reindex().ok
        changing.join(20)
        assert not changing.is_alive()
        assert [len(q.lease(500, group=one)) for one in ("first", "second")] == [400, 400]
        assert ps.check().ok
    finally:
        place.close()
