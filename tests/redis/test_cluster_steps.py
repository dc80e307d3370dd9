"""Clients are killed at each step of what spans queues of a cluster: it is finished by others, once."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import NewMessage, Penstock, Queue, QueueNotFound
from penstock.backends.redis.connecting import Script, Server
from penstock.event import SYSTEM_WORLD
from penstock.testing.folding import prove_journal, read_events
from penstock.testing.harness import ack, bury, drain, errors, ids, sweep_all, take
from tests.redis.interrupting import lose
from tests.redis.one_cluster import Place

pytestmark = pytest.mark.xdist_group("redis-lists-cluster")

ROOT = Path(__file__).resolve().parents[2]
#: Steps of a transfer, in their order.
STEPS = ["none", "depart", "arrive", "departed", "arrived"]
EVENTS = {"move": "moved", "bury": "dead", "redrive": "redriven"}
#: Longer than a transfer is left to whoever began it.
FORSAKEN_S = 11


@pytest.fixture(params=["lists", pytest.param("streams", marks=pytest.mark.soak)])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    """What differs on streams is tested in test_cluster_groups.py."""
    place = Place(request.param)
    yield place
    place.close()


def die(place: Place, what: str, step: str, nth: int = 1) -> None:
    """Another process does it, and is killed when servers have done the step."""
    command = [sys.executable, str(ROOT / "tests/redis/dying.py"), place.url, what, step, str(nth)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == (0 if step == "none" else -signal.SIGKILL), done.stderr


def stocked(ps: Penstock, what: str) -> list[str]:
    """Queues on three masters; messages that the operation is about, in all states that it takes."""
    ps.create_queue("dead")
    ps.create_queue("spare")
    q = ps.create_queue("work", dead_letter="dead" if what == "bury" else None, max_attempts=1)
    if what == "redrive":
        return [bury(q, b"%d" % n) for n in range(7)]
    new = [NewMessage(b"%d" % n, fairness_key=f"k{n % 3}", ttl_s=1000 + n) for n in range(7)]
    if what == "move":
        new += [NewMessage(b"later", delay_s=500), NewMessage(b"urgent", priority=9)]
    return ids(q.enqueue_many(new))


def prove(ps: Penstock, *queues: Queue) -> None:
    report = ps.check()
    assert report.ok, report.problems
    for q in queues:
        prove_journal(q)


def held_by(*queues: Queue) -> dict[str, Counter[str]]:
    """Ids by queue: listed, in whatever state."""
    return {q.name: Counter(message.id for message in q.iter()) for q in queues}


@pytest.mark.parametrize("what", EVENTS)
@pytest.mark.parametrize("step", STEPS)
def test_a_transfer_is_finished_by_others_at_whatever_step_it_stopped(
    place: Place, what: str, step: str
) -> None:
    ps = place.open()
    found = stocked(ps, what)
    work, target = ps.queue("work"), ps.queue("dead" if what == "bury" else "spare")
    die(place, what, step)
    assert work.length() + work.stats().dead + target.length() >= len(found)
    place.clock.advance(FORSAKEN_S)
    sweep_all(ps)
    assert held_by(work, target) == {"work": Counter(), target.name: Counter(found)}
    kinds = Counter((event.kind, event.message_id) for event in read_events(work))
    assert [kinds[EVENTS[what], one] for one in found] == [1] * len(found)  # type: ignore[index]
    assert [str(event.kind) for event in read_events(target)] == ["enqueued"] * len(found)
    prove(ps, work, target)
    place.clock.advance(1000)
    sweep_all(ps)
    assert not [key for key in place.stored() if key.endswith((b":v", b":n", b":plan"))]
    if what == "bury":
        assert {message.headers["penstock-reason"] for message in target.iter()} == {"no good"}


def test_what_was_acked_where_it_arrived_does_not_come_again_when_the_rest_is_finished(place: Place) -> None:
    ps = place.open()
    found = stocked(ps, "bury")
    work, target = ps.queue("work"), ps.queue("dead")
    die(place, "bury", "arrive")
    held = take(target, len(found))
    ack(target, held)
    assert work.stats().leased == len(found)
    place.clock.advance(FORSAKEN_S)
    sweep_all(ps)
    assert held_by(work, target) == {"work": Counter(), "dead": Counter()}
    prove(ps, work, target)


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("step", ["depart", "arrive"])
@pytest.mark.parametrize("what", ["move", "redrive"])
def test_when_the_target_is_gone_or_another_they_are_put_back_as_they_were(
    place: Place, what: str, step: str, again: bool
) -> None:
    ps = place.open()
    found = stocked(ps, what)
    work = ps.queue("work")
    before = [message for state in ("ready", "delayed", "dead") for message in work.list(state).items]
    events = read_events(work)
    die(place, what, step)
    ps.delete_queue("spare")
    if again:
        ps.create_queue("spare")
    place.clock.advance(FORSAKEN_S)
    sweep_all(ps)
    after = [message for state in ("ready", "delayed", "dead") for message in work.list(state).items]
    assert (after, len(after)) == (before, len(found))
    assert read_events(work) == events
    prove(ps, work)
    if what == "move":
        place.clock.advance(500)
        assert len(drain(work)) == len(found)


def test_when_the_source_is_deleted_what_has_arrived_stays_and_nothing_is_remembered(place: Place) -> None:
    ps = place.open()
    found = stocked(ps, "move")
    die(place, "move", "arrive")
    ps.delete_queue("work")
    place.clock.advance(61)
    sweep_all(ps)
    target = ps.queue("spare")
    assert held_by(target) == {"spare": Counter(found)}
    prove(ps, target)
    assert not [key for key in place.stored() if b"{work}" in key or key.endswith(b":n")]


def test_someone_who_was_held_up_does_not_do_again_what_others_have_finished(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = place.open(1), place.open(2)
    found = stocked(one, "move")
    run = Server.run

    def held_up(self: Server, script: Script, *args: Any, **options: Any) -> Any:
        if script.name == "arrive" and self is one._default._server:  # type: ignore[attr-defined]
            monkeypatch.setattr(Server, "run", run)
            place.clock.advance(FORSAKEN_S)
            sweep_all(other)
            place.clock.advance(500)
            assert len(drain(other.queue("spare"))) == len(found)
        return run(self, script, *args, **options)

    monkeypatch.setattr(Server, "run", held_up)
    assert errors(one.queue("work").move(found, target="spare")) == [None] * len(found)
    assert held_by(one.queue("work"), one.queue("spare")) == {"work": Counter(), "spare": Counter()}
    prove(one, one.queue("work"), one.queue("spare"))


@pytest.mark.parametrize("what", EVENTS)
def test_whose_first_answer_was_lost_until_others_had_finished_is_told_what_became_of_it(
    place: Place, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """As when a master is replaced, which takes longer than a transfer is left to whoever began it."""
    one, other = place.open(1), place.open(2)
    found = stocked(one, what)
    work = one.queue("work")
    there = one.queue("dead" if what == "bury" else "spare").enqueue(b"mine", id=found[0])
    held = take(work, len(found)) if what == "bury" else []

    def meanwhile() -> None:
        place.clock.advance(FORSAKEN_S)
        sweep_all(other)

    lose(monkeypatch, one, "depart", meanwhile)
    if what == "move":
        refused = "InvalidMessage"
        assert errors(work.move(found, target="spare")) == [refused] + [None] * (len(found) - 1)
    elif what == "redrive":
        assert work.redrive(target="spare") == len(found) - 1
    else:
        assert errors(work.reject([one.receipt for one in held])) == [None] * len(found)
        assert [message.id for message in work.list("dead").items] == found[:1]
    assert there == found[0]
    assert other.queue("work").length() + other.queue("work").stats().dead == 1
    prove(one, work)


@pytest.mark.parametrize("again", [False, True])
def test_a_target_that_is_deleted_in_the_middle_is_as_if_it_had_been_gone_before(
    place: Place, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    one, other = place.open(1), place.open(2)
    found = stocked(one, "move")
    run = Server.run

    def meanwhile(self: Server, script: Script, *args: Any, **options: Any) -> Any:
        if script.name == "arrive":
            monkeypatch.setattr(Server, "run", run)
            other.delete_queue("spare")
            if again:
                other.create_queue("spare")
        return run(self, script, *args, **options)

    monkeypatch.setattr(Server, "run", meanwhile)
    work = one.queue("work")
    if again:
        assert errors(work.move(found, target="spare")) == [None] * len(found)
        assert held_by(work, one.queue("spare")) == {"work": Counter(), "spare": Counter(found)}
    else:
        with pytest.raises(QueueNotFound, match="spare"):
            work.move(found, target="spare")
        assert held_by(work) == {"work": Counter(found)}
    prove(one, *(one.queue(settings.name) for settings in one.queues()))
    assert not [key for key in place.stored() if key.endswith(b":v")]


def test_what_is_on_its_way_is_shown_where_it_was_and_left_alone(place: Place) -> None:
    ps = place.open()
    found = stocked(ps, "move")
    work = ps.queue("work")
    before = {one: work.get(one) for one in found}
    die(place, "move", "depart")
    assert {one: work.get(one) for one in found} == before
    assert (work.length(), work.lease(100), work.purge()) == (len(found), [], 0)
    assert work.stats().delayed == 1
    assert errors(work.upsert([NewMessage(b"x", id=found[0])])) == ["MessageLeased"]
    assert [result.duplicate for result in work.enqueue_many([NewMessage(id=found[0])])] == [True]
    assert errors(work.move(found[:1], target="dead")) == ["MessageLeased"]
    assert ps.check().ok


# -- check and repair -------------------------------------------------------------------------------


def kinds(ps: Penstock) -> set[str]:
    return {problem.kind for problem in ps.check().problems}


def test_check_tells_of_a_transfer_that_nobody_goes_on_with_and_a_repair_does(place: Place) -> None:
    ps = place.open()
    found = stocked(ps, "move")
    die(place, "move", "depart")
    assert kinds(ps) == set()
    place.clock.advance(FORSAKEN_S)
    assert kinds(ps) == {"transfer"}
    report = ps.check(repair=True)
    assert (report.remaining, {problem.action for problem in report.problems}) == (
        0,
        {"transfers carried out"},
    )
    assert held_by(ps.queue("work"), ps.queue("spare")) == {"work": Counter(), "spare": Counter(found)}
    prove(ps, ps.queue("work"), ps.queue("spare"))


def key_of(place: Place, queue: str, part: str) -> tuple[Any, bytes]:
    """The master that has a queue's key, and the key."""
    root = "pss1" if place.kind == "streams" else "ps1"
    key = f"{place.prefix}{root}:{{{queue}}}:{part}".encode()
    for master in place.cluster.masters:
        if master.do("CLUSTER", "COUNTKEYSINSLOT", master.do("CLUSTER", "KEYSLOT", key)):
            return master, key
    raise AssertionError(f"{key!r} is nowhere")


def test_messages_whose_transfer_is_lost_are_put_back_by_a_repair(place: Place) -> None:
    ps = place.open()
    found = stocked(ps, "move")
    work = ps.queue("work")
    die(place, "move", "depart")
    master, key = key_of(place, "work", "v")
    master.do("DEL", key)
    assert kinds(ps) == {"transfer missing"}
    assert ps.check(repair=True).remaining == 0
    assert held_by(work) == {"work": Counter(found)}
    place.clock.advance(500)
    assert len(drain(work)) == len(found)


@pytest.mark.parametrize("step", ["depart", "arrive"])
def test_a_queue_is_repaired_while_some_of_it_is_on_its_way(place: Place, step: str) -> None:
    ps = place.open()
    found = stocked(ps, "move")
    die(place, "move", step)
    assert ps.reindex().ok
    place.clock.advance(FORSAKEN_S)
    sweep_all(ps)
    assert held_by(ps.queue("work"), ps.queue("spare")) == {"work": Counter(), "spare": Counter(found)}
    assert ps.check().ok


# -- changes of queues ------------------------------------------------------------------------------

#: operation -> steps, and how often each is done
CHANGES = {
    "create": [("plan", 1), ("change", 1), ("commit", 1), ("planned", 1)],
    "update": [("plan", 1), ("commit", 1), ("change", 1), ("planned", 1)],
    "delete": [("plan", 1), ("commit", 1), ("change", 1), ("planned", 1)],
    "replace": [
        ("plan", 1),
        ("change", 1),
        ("commit", 1),
        *(("change", n) for n in (2, 3, 4)),
        ("planned", 1),
    ],
}


def shown(ps: Penstock) -> list[tuple[str, float]]:
    return [(settings.name, settings.lease_s) for settings in ps.queues()]


@pytest.mark.parametrize(
    ("what", "step", "nth"), [(what, *step) for what, steps in CHANGES.items() for step in steps]
)
def test_a_change_of_queues_is_all_or_nothing_and_finished_by_others(
    place: Place, what: str, step: str, nth: int
) -> None:
    ps = place.open()
    found = stocked(ps, "move")
    ps.queue("spare").enqueue(b"stays")
    before = shown(ps)
    after = {
        "create": sorted([*before, ("new", 7.0)]),
        "update": before,
        "delete": [one for one in before if one[0] != "spare"],
        "replace": [("dead", 5.0), ("new", 30.0), ("work", 5.0)],
    }[what]
    die(place, what, step, nth)
    assert shown(ps) == (before if step == "plan" or (what, step, nth) in FIRST else after)
    with penstock.open(place.url, clock=place.clock) as opened:
        assert shown(opened) == after
    q = ps.queue("work")
    limits = {settings.name: settings.max_leased_per_key for settings in ps.queues()}
    assert limits["work"] == (3 if what == "update" else None)
    assert held_by(q) == {"work": Counter(found)}
    tags = {key.partition(b"{")[2].partition(b"}")[0].decode() for key in place.stored()} - {"~"}
    assert tags == {name for name, _ in after}
    assert not [key for key in place.stored() if key.endswith(b":plan")]
    told = [entry.kind for entry in ps.journal(SYSTEM_WORLD).scan()]
    assert len(told) == 3 + {"replace": 4}.get(what, 1)
    place.clock.advance(500)
    assert len(drain(q)) == len(found)
    prove(ps, *(ps.queue(settings.name) for settings in ps.queues()))


#: Made, and not seen yet.
FIRST = {("create", "change", 1), ("replace", "change", 1)}


def test_someone_who_was_held_up_does_not_make_a_queue_that_is_gone_or_spoil_a_new_one(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = place.open(1), place.open(2)
    run = Server.run

    def held_up(self: Server, script: Script, *args: Any, **options: Any) -> Any:
        if script.name == "change" and self is one._default._server:  # type: ignore[attr-defined]
            monkeypatch.setattr(Server, "run", run)
            other.sweep()
            other.delete_queue("q")
            if again:
                other.create_queue("q").enqueue(b"x")
        return run(self, script, *args, **options)

    for again in (False, True):
        monkeypatch.setattr(Server, "run", held_up)
        one.create_queue("q")
        assert bool([key for key in place.stored() if b"{q}" in key]) == again
    assert drain(one.queue("q")) == [b"x"]
    assert one.check().ok


def test_queues_of_hostile_names_lie_in_slots_of_their_own(place: Place) -> None:
    ps = place.open()
    names = ["{", "}", "{}", "{work}", "}{", "a{b}c", "{~}", "~", "%7B", "{%7B}", "q\n{x}", "{" * 200, "é}"]
    for name in names:
        ps.create_queue(name).enqueue(name.encode())
    for name, other in zip(names, names[1:] + names[:1], strict=True):
        q = ps.queue(name)
        first = q.peek(1)[0].id
        assert errors(q.move([first], target=other)) == [None]
    assert sorted(message.payload.decode() for name in names for message in ps.queue(name).iter()) == sorted(
        names
    )
    assert ps.check().ok
    for name in names:
        ps.delete_queue(name)
    assert {key.partition(b"{")[2].partition(b"}")[0] for key in place.stored()} == {b"~"}
