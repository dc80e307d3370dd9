"""Clients are killed at each step of what concerns groups on a cluster: it is finished by others, once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from penstock import NewMessage, Penstock, Queue
from penstock.testing.folding import read_events
from penstock.testing.group_suite import worked
from penstock.testing.harness import ack, ids, sweep_all
from tests.redis.interrupting import after
from tests.redis.one_cluster import PATIENT, Place
from tests.redis.servers import running_cluster
from tests.redis.test_cluster_load import reshard, slot_of
from tests.redis.test_cluster_steps import FORSAKEN_S, die, held_by, prove

pytestmark = pytest.mark.xdist_group("redis-streams-cluster")

GROUPS = ("default", "second")
BODIES = [b"%d" % n for n in range(7)]
#: More than a slice gives to a new group.
MANY = [b"%d" % n for n in range(450)]


def steps(*all_steps: tuple[object, ...], quick: int) -> list[ParameterSet]:
    """The first few in every run of the tests, the rest where there is time."""
    rest = [pytest.param(*one, marks=pytest.mark.soak) for one in all_steps[quick:]]
    return [*(pytest.param(*one) for one in all_steps[:quick]), *rest]


#: Of a transfer.
TRANSFER = steps(("depart",), ("arrive",), ("none",), ("departed",), quick=2)


@pytest.fixture
def place() -> Iterator[Place]:
    place = Place("streams")
    yield place
    place.close()


@pytest.fixture
def ps(place: Place) -> Penstock:
    """Queues on three masters, each with two groups."""
    ps = place.open()
    for name in ("dead", "spare", "work"):
        q = ps.create_queue(name, dead_letter="dead" if name == "work" else None, max_attempts=1)
        for group in GROUPS:
            q.create_group(group)
    return ps


def fill(q: Queue, bodies: list[bytes] = BODIES) -> list[str]:
    return ids(q.enqueue_many([NewMessage(one, fairness_key=f"k{len(one)}") for one in bodies]))


def prove_groups(ps: Penstock, *queues: Queue) -> None:
    prove(ps, *(q.group(one.name) for q in queues for one in q.groups()))


def seen(q: Queue, group: str) -> Counter[bytes]:
    return Counter(worked(q, group))


def finish(place: Place, ps: Penstock) -> None:
    place.clock.advance(FORSAKEN_S)
    sweep_all(ps)


@pytest.mark.parametrize("step", TRANSFER)
def test_what_arrives_is_seen_once_by_each_group_whoever_brings_it_there(
    place: Place, ps: Penstock, step: str
) -> None:
    work, spare = ps.queue("work"), ps.queue("spare")
    found = fill(work)
    die(place, "move", step)
    finish(place, ps)
    assert held_by(work, spare) == {"work": Counter(), "spare": Counter(found)}
    assert Counter(worked(work, "second")) == Counter(BODIES), "a move takes from the own line alone"
    for group in GROUPS:
        assert [event.kind for event in read_events(spare.group(group))] == ["enqueued"] * len(found)
        assert seen(spare, group) == Counter(BODIES)
    prove_groups(ps, work, spare)
    assert spare.groups()[1].lag == 0


@pytest.mark.parametrize("step", TRANSFER)
def test_what_dies_in_a_further_group_is_buried_once_and_the_others_keep_it(
    place: Place, ps: Penstock, step: str
) -> None:
    work, dead = ps.queue("work"), ps.queue("dead")
    found = fill(work)
    die(place, "bury_second", step)
    finish(place, ps)
    assert held_by(work, work.group("second"), dead)["dead"] == Counter(found)
    assert [one.lag + one.pending for one in work.groups()] == [len(found), 0]
    assert {message.headers["penstock-reason"] for message in dead.iter()} == {"no good"}
    kinds = Counter(str(event.kind) for event in read_events(work.group("second")))
    assert (kinds["dead"], kinds["leased"]) == (len(found), len(found))
    assert seen(work, "default") == Counter(BODIES)
    prove_groups(ps, work, dead)


@pytest.mark.parametrize("what", ["bury", "bury_second"])
def test_what_is_put_back_is_pending_again_until_its_lease_is_over(
    place: Place, ps: Penstock, what: str
) -> None:
    """A dead-letter queue that is gone leaves them where they were, in the hands that held them."""
    work = ps.queue("work")
    at = ["bury", "bury_second"].index(what)
    fill(work)
    die(place, what, "depart")
    assert work.groups()[at].pending == 0
    ps.update_queue("work", dead_letter=None)
    ps.delete_queue("dead")
    finish(place, ps)
    assert (work.groups()[at].pending, work.groups()[at].lag) == (len(BODIES), 0)
    prove_groups(ps, work)
    place.clock.advance(30)
    sweep_all(ps)
    assert work.group(GROUPS[at]).stats().dead == len(BODIES), "its one attempt was used"
    assert seen(work, GROUPS[1 - at]) == Counter(BODIES)
    prove_groups(ps, work)


@pytest.mark.parametrize("gone", [False, True])
def test_a_group_that_joins_while_messages_are_on_their_way_sees_them_once(
    place: Place, ps: Penstock, gone: bool
) -> None:
    """As if they had not left yet: whether they arrive, or come back because the target is gone."""
    work, spare = ps.queue("work"), ps.queue("spare")
    found = fill(work)
    die(place, "move", "depart")
    work.create_group("late")
    assert work.group("late").stats().ready == len(found)
    if gone:
        ps.delete_queue("spare")
    finish(place, ps)
    for group in ("late", "second", *(["default"] if gone else [])):
        assert seen(work, group) == Counter(BODIES)
    if not gone:
        assert held_by(work, spare) == {"work": Counter(), "spare": Counter(found)}
    prove_groups(ps, work)


JOINING = steps(("commit", 1), ("join", 2), ("plan", 1), ("change", 1), ("planned", 1), ("join", 1), quick=2)


def test_a_group_that_joins_while_its_slot_moves_sees_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What waits is read by places, and those of one server mean nothing to another."""
    with running_cluster(tmp_path, replicas=0, options=PATIENT) as cluster:
        place = Place("streams", cluster)
        ps = place.open()
        q = ps.create_queue("spare")
        q.lease(group="first")
        sent = [one.id for one in q.enqueue_many([NewMessage(b"x")] * 3000)]
        source, target = cluster.masters[0], cluster.masters[2]

        def move() -> None:
            reshard(cluster, slot_of("spare"), source, target, pause_s=0)

        after(monkeypatch, ps, "join", 7, move)
        q.create_group("late")
        late = q.group("late")
        assert sorted(message.id for message in late.iter()) == sorted(map(str, sent))
        assert ps.check().ok
        ps.close()


@pytest.mark.parametrize(("step", "nth"), JOINING)
def test_a_group_that_is_half_made_is_made_whole_by_a_client_that_was_open_before(
    place: Place, ps: Penstock, step: str, nth: int
) -> None:
    work = ps.queue("work")
    fill(work, MANY)
    die(place, "join", step, nth)
    assert seen(work, "late") == Counter(MANY)
    work.enqueue(b"later")
    for group, count in (("late", 1), ("default", 451), ("second", 451)):
        assert seen(work, group).total() == count
    prove_groups(ps, work)
    assert not [key for key in place.stored() if key.endswith(b":plan")]


DROPPING = steps(
    ("commit", 1), ("part", 1), ("commit", 2), ("plan", 1), ("change", 1), ("change", 2), quick=3
)


@pytest.mark.parametrize(("step", "nth"), DROPPING)
def test_a_group_that_is_half_dropped_is_gone_with_the_next_sweep(
    place: Place, ps: Penstock, step: str, nth: int
) -> None:
    work = ps.queue("work")
    fill(work, MANY)
    die(place, "drop", step, nth)
    sweep_all(ps)
    assert [one.name for one in work.groups()] == ["default"]
    assert seen(work, "default") == Counter(MANY)
    assert not [key for key in place.stored() if b"second" in key and b"{work}" in key]
    fill(work)
    assert seen(work, "second") == Counter(BODIES), "one of the same name is new"
    assert seen(work, "default") == Counter(BODIES)
    prove_groups(ps, work)


@pytest.mark.parametrize("step", steps(("commit",), ("plan",), ("change",), ("planned",), quick=1))
def test_settings_of_a_queue_change_in_all_its_groups_or_in_none(
    place: Place, ps: Penstock, step: str
) -> None:
    work = ps.queue("work")
    ids(work.enqueue_many([NewMessage(one, fairness_key="k") for one in BODIES]))
    die(place, "update", step)
    sweep_all(ps)
    for group in GROUPS:
        held = work.lease(100, group=group)
        assert len(held) == 3, "the new limit of a key"
        ack(work, held)
        assert seen(work, group).total() == len(BODIES) - 3
    prove_groups(ps, work)


@pytest.mark.parametrize("step", steps(("commit",), ("change",), quick=1))
def test_a_queue_that_is_deleted_takes_the_lines_of_its_groups_along(
    place: Place, ps: Penstock, step: str
) -> None:
    fill(ps.queue("spare"))
    die(place, "delete", step)
    sweep_all(ps)
    assert not [key for key in place.stored() if b"{spare}" in key]
    spare = ps.create_queue("spare")
    spare.create_group("second")
    fill(spare)
    assert seen(spare, "second") == Counter(BODIES)
    prove_groups(ps, spare)
