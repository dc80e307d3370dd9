"""Groups on streams in odd states: locked lines, half-dropped groups, long streams, rows that are lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

import penstock
from penstock import BackendUnavailable, NewMessage, Penstock, Queue
from penstock.backends.redis import engine
from penstock.testing.group_suite import worked
from penstock.testing.harness import receipts
from tests.redis.interrupting import after, server_of
from tests.redis.stores import Place


@pytest.fixture
def place() -> Iterator[Place]:
    place = Place("streams")
    yield place
    place.close()


@pytest.fixture
def ps(place: Place) -> Penstock:
    return place.open()


@pytest.fixture
def q(ps: Penstock) -> Queue:
    q = ps.create_queue("q", lease_s=60)
    q.create_group("first")
    return q


def interrupted(monkeypatch: pytest.MonkeyPatch, ps: Penstock, script: str, at: int) -> None:
    """The client dies where it is about to run that script for the so-manieth time."""
    run, seen = server_of(ps).run, [0]

    def dies(one: object, *args: object, **more: object) -> object:
        if getattr(one, "name", "") == script:
            seen[0] += 1
            if seen[0] == at:
                raise KeyboardInterrupt
        return run(one, *args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(server_of(ps), "run", dies)


# -- lines that stay locked


@pytest.mark.parametrize("script", ["join", "part"])
def test_a_line_without_counters_is_told_of_and_not_waited_for_for_ever(
    place: Place, ps: Penstock, q: Queue, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    q.enqueue_many([NewMessage(b"%d" % n) for n in range(500)])
    if script == "part":
        q.create_group("second")
    interrupted(monkeypatch, ps, script, 1)
    with pytest.raises(KeyboardInterrupt):
        q.create_group("second") if script == "join" else q.drop_group("second")
    monkeypatch.undo()
    place.client.delete(place.keys.queue("q", "second")[0])
    monkeypatch.setattr(engine, "PATIENCE_S", 0)
    with pytest.raises(BackendUnavailable, match="repaired"):
        q.create_group("second")
    ps.create_queue("other").enqueue(b"x")
    ps.sweep()


# -- groups that are half dropped


@pytest.mark.parametrize("mend", ["reindex", "repair"])
def test_what_a_half_dropped_group_has_is_not_handed_out_again_by_a_repair(
    place: Place, ps: Penstock, q: Queue, monkeypatch: pytest.MonkeyPatch, mend: str
) -> None:
    q.create_group("second")
    q.enqueue_many([NewMessage(b"%d" % n) for n in range(600)])
    assert len(worked(q, "first")) == 600
    q.enqueue(b"waits")
    interrupted(monkeypatch, ps, "part", 2)
    with pytest.raises(KeyboardInterrupt):
        q.drop_group("second")
    monkeypatch.undo()
    assert 1 < place.bodies("q") < 601
    if mend == "repair":
        ready = place.key("q", "z")
        place.client.delete(ready)
    assert ps.check().ok == (mend == "reindex")
    assert (ps.reindex() if mend == "reindex" else ps.check(repair=True)).ok
    while ps.sweep():
        pass
    assert worked(q, "first") == [b"waits"]
    assert place.bodies("q") == 0
    assert ps.check().ok


# -- max_length


@pytest.mark.parametrize("strategy", ["MAXLEN", "MINID"])
def test_max_length_removes_only_what_every_group_is_done_with(place: Place, strategy: str) -> None:
    url = f"{place.url}&max_length=10&trim_strategy={strategy}"
    ps = penstock.open(url, clock=place.clock)
    q = ps.create_queue("q", retention_s=1000)
    for name in ("first", "second"):
        q.create_group(name)
    q.enqueue_many([NewMessage(b"%d" % n) for n in range(30)])
    assert len(worked(q, "first")) == 30
    q.ack(receipts(q.lease(5, group="second")))
    while ps.sweep():
        pass
    assert [q.group(name).stats().done for name in ("first", "second")] == [25, 0], "five are done in both"
    assert ps.check().ok
    assert len(worked(q, "second")) == 25
    while ps.sweep():
        pass
    assert place.bodies("q") == 10
    assert [q.group(name).stats().done for name in ("first", "second")] == [10, 10]
    assert ps.check().ok
    ps.close()


# -- rows that are brought back


@pytest.mark.parametrize("further", [True, False])
def test_an_own_group_that_never_leased_is_brought_back_with_its_queue(
    place: Place, ps: Penstock, q: Queue, further: bool
) -> None:
    if further:
        q.create_group("second")
    ps.update_queue("q", lease_s=70)
    q.enqueue(b"x")
    place.client.hset(place.keys.queues, "q", b"nonsense")
    other = place.open(2)
    assert other.check(repair=True).ok
    found = [one.name for one in other.queue("q").groups()]
    assert found == (["first", "second"] if further else ["first"])
    assert worked(other.queue("q"), "first") == [b"x"]


# -- checks beside others


def test_a_check_takes_a_group_that_is_dropped_meanwhile_for_no_damage(
    place: Place, ps: Penstock, q: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    q.enqueue(b"x")
    q.create_group("second")
    after(monkeypatch, ps, "audit", 2, lambda: place.open(seed=2).queue("q").drop_group("second"))
    assert ps.check().problems == []


def test_a_group_is_sound_while_the_dedup_ids_of_its_queue_are_counted_anew(
    place: Place, ps: Penstock, q: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    q.create_group("second")
    q.enqueue(b"x", dedup_id="once")
    other = place.open(seed=2)

    def half_repaired() -> None:
        interrupted(monkeypatch, other, "rebuild", 5)  # Behind the first step of the own line.
        with pytest.raises(KeyboardInterrupt):
            other.reindex()

    after(monkeypatch, ps, "events", 1, half_repaired)  # The check is through with the own line.
    assert ps.check().problems == []


# -- groups that are made anew while somebody is still at those of the same name


def made_anew(place: Place, killed_at: str = "") -> None:
    """Another client drops the group `late` and makes it again; or is killed before it runs that script."""
    other = place.open(seed=2)
    with pytest.MonkeyPatch.context() as patch:
        if killed_at:
            interrupted(patch, other, killed_at, 2 if killed_at == "join" else 1)
        q = other.queue("q")
        if any(one.name == "late" for one in q.groups()):
            q.drop_group("late")
        q.create_group("late")
    other.close()


def test_who_drops_a_group_leaves_alone_what_one_of_its_name_was_given_since(
    place: Place, ps: Penstock, q: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    payloads = [b"%d" % n for n in range(1000)]
    q.enqueue_many([NewMessage(payload) for payload in payloads])
    q.create_group("late")
    # A worker of the group, say, that leases in the middle of it.
    after(monkeypatch, ps, "part", 1, lambda: made_anew(place))
    q.drop_group("late")
    assert ps.check().ok
    assert [(one.name, one.lag) for one in q.groups()] == [("first", 1000), ("late", 1000)]
    assert Counter(worked(q, "late")) == Counter(payloads)


def test_who_makes_a_group_does_not_take_one_of_its_name_for_whole(
    place: Place, ps: Penstock, q: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    payloads = [b"%d" % n for n in range(1000)]
    q.enqueue_many([NewMessage(payload) for payload in payloads])

    def killed() -> None:
        with pytest.raises(KeyboardInterrupt):
            made_anew(place, killed_at="join")

    after(monkeypatch, ps, "join", 2, killed)
    q.create_group("late")
    assert ps.check().ok
    assert Counter(worked(q, "late")) == Counter(payloads)


def test_a_group_that_is_dropped_again_meanwhile_is_not_forgotten_before_its_entries_are(
    place: Place, ps: Penstock, q: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    q.enqueue_many([NewMessage(b"%d" % n) for n in range(10)])
    q.create_group("late")

    def killed() -> None:
        made_anew(place)
        with pytest.raises(KeyboardInterrupt):
            made_anew(place, killed_at="part")

    after(monkeypatch, ps, "part", 1, killed)
    q.drop_group("late")
    worked(q, "first")
    while ps.sweep():
        pass
    assert place.bodies("q") == 0
    assert ps.check().ok
