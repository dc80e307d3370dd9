"""Calls of several steps in the middle of which something happens: each message has its own answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock import NewMessage, Penstock
from penstock.errors import BackendUnavailable, MessageNotFound, PenstockError
from penstock.testing.harness import ids, receipts
from tests.redis.stores import Place


@pytest.fixture
def place() -> Iterator[Place]:
    place = Place()
    yield place
    writing(place)
    place.close()


def writing(place: Place) -> None:
    place.client.execute_command("REPLICAOF", "NO", "ONE")


@pytest.fixture
def ps(place: Place) -> Penstock:
    return place.open()


Before = Callable[..., None]


@pytest.fixture
def before(ps: Penstock, monkeypatch: pytest.MonkeyPatch) -> Before:
    """Something happens on the server before the nth call of a script is sent."""
    server: Any = ps._default._engine.server  # type: ignore[attr-defined]
    run = server.run

    def before(script: str, number: int, happens: Callable[[], object]) -> None:
        calls = 0

        def wrapped(which: Any, *args: Any, **options: Any) -> Any:
            nonlocal calls
            calls += which.name == script
            if which.name == script and calls == number:
                happens()
            return run(which, *args, **options)

        monkeypatch.setattr(server, "run", wrapped)

    return before


def read_only(place: Place) -> Callable[[], object]:
    """The server follows another one, which does not answer: it refuses to write."""
    return lambda: place.client.execute_command("REPLICAOF", "127.0.0.1", "1")


def error_of(outcome: Any) -> PenstockError | None:
    error: PenstockError | None = outcome.error
    return error


def test_an_extension_that_fails_in_its_second_step_says_which_were_extended(
    place: Place, ps: Penstock, before: Before
) -> None:
    q = ps.create_queue("q", lease_s=60)
    q.enqueue_many([NewMessage(b"x")] * 1500)
    held = [*q.lease(1000), *q.lease(500)]
    before("extend", 2, read_only(place))
    outcomes = q.extend(receipts(held), lease_s=600)
    assert [outcome.ok for outcome in outcomes] == [True] * 1000 + [False] * 500
    assert all(isinstance(error_of(outcome), BackendUnavailable) for outcome in outcomes[1000:])
    writing(place)
    place.clock.advance(100)
    assert len({one.id for one in q.lease(1000)} & {one.id for one in held[1000:]}) == 500


def test_an_extension_that_fails_in_its_first_step_raises(place: Place, ps: Penstock, before: Before) -> None:
    q = ps.create_queue("q")
    q.enqueue(b"x")
    held = q.lease()
    before("extend", 1, read_only(place))
    with pytest.raises(BackendUnavailable):
        q.extend(receipts(held), lease_s=600)


@pytest.mark.parametrize(("step", "moved"), [(2, 250), (3, 500)])
def test_a_move_that_fails_in_a_later_step_says_which_went(
    place: Place, ps: Penstock, before: Before, step: int, moved: int
) -> None:
    q, target = ps.create_queue("q"), ps.create_queue("target")
    known = ids(q.enqueue_many([NewMessage(b"x")] * 800))
    asked = [*known, known[0]]  # One of them twice.
    before("transfer", step, read_only(place))
    outcomes = q.move(asked, "target")
    writing(place)
    assert [outcome.ok for outcome in outcomes] == [True] * moved + [False] * (801 - moved)
    assert {type(error_of(outcome)) for outcome in outcomes[moved:800]} == {BackendUnavailable}
    assert isinstance(error_of(outcomes[800]), MessageNotFound)
    assert sorted(one.id for one in target.iter()) == sorted(known[:moved])
    assert sorted(one.id for one in q.iter()) == sorted(known[moved:])
    assert ps.check().ok


def test_a_move_whose_target_is_made_anew_in_the_middle_goes_on(ps: Penstock, before: Before) -> None:
    q = ps.create_queue("q")
    ps.create_queue("target")
    known = ids(q.enqueue_many([NewMessage(b"x")] * 400))

    def anew() -> None:
        ps.delete_queue("target")
        ps.create_queue("target")

    before("transfer", 2, anew)
    assert all(outcome.ok for outcome in q.move(known, "target"))
    assert q.length() == 0
    assert sorted(one.id for one in ps.queue("target").iter()) == sorted(known[250:])


def test_an_upsert_that_fails_in_its_second_step_says_which_are_stored(
    place: Place, ps: Penstock, before: Before
) -> None:
    q = ps.create_queue("q")
    before("enqueue", 2, read_only(place))
    results = q.upsert([NewMessage(b"%d" % n) for n in range(1500)] + [NewMessage(b"", dedup_id="no")])
    writing(place)
    stored = [result.id for result in results if result.id is not None]
    assert (len(stored), results[:1000].count(results[0])) == (1000, 1)
    assert sorted(one.id for one in q.iter()) == sorted(stored)
    assert all(isinstance(result.error, BackendUnavailable) for result in results[1000:1500])
    assert "dedup_id" in str(results[1500].error)


def test_an_upsert_that_fails_in_its_first_step_raises(place: Place, ps: Penstock, before: Before) -> None:
    q = ps.create_queue("q")
    before("enqueue", 1, read_only(place))
    with pytest.raises(BackendUnavailable):
        q.upsert([NewMessage(b"x"), NewMessage(b"", dedup_id="no")])


def test_a_purge_counts_what_it_did_though_the_queue_is_made_anew(ps: Penstock, before: Before) -> None:
    q = ps.create_queue("q")
    q.enqueue_many([NewMessage(b"x")] * 700)

    def anew() -> None:
        ps.delete_queue("q")
        ps.create_queue("q").enqueue(b"later")

    before("purge", 2, anew)
    assert q.purge("ready") == 500
    assert [one.payload for one in ps.queue("q").iter()] == [b"later"]


def test_a_purge_counts_what_it_did_though_the_queue_is_gone(ps: Penstock, before: Before) -> None:
    q = ps.create_queue("q")
    q.enqueue_many([NewMessage(b"x")] * 700)
    before("purge", 2, lambda: ps.delete_queue("q"))
    assert q.purge("ready") == 500


def graves(ps: Penstock, count: int) -> None:
    """So many dead letters in `graves`, which came from `q`."""
    ps.create_queue("graves")
    q = ps.create_queue("q", dead_letter="graves")
    q.enqueue_many([NewMessage(b"%d" % n) for n in range(count)])
    q.reject(receipts(q.lease(count)))


@pytest.mark.parametrize(("step", "gone"), [(2, 250), (3, 500)])
def test_a_redrive_counts_all_that_went_though_their_origin_is_made_anew(
    ps: Penstock, before: Before, step: int, gone: int
) -> None:
    graves(ps, 800)

    def anew() -> None:
        ps.delete_queue("q")
        ps.create_queue("q")

    before("transfer", step, anew)
    assert ps.queue("graves").redrive(1000) == 800
    assert (ps.queue("graves").length(), ps.queue("q").length()) == (0, 800 - gone)


def test_a_redrive_counts_what_went_though_the_graves_are_made_anew(ps: Penstock, before: Before) -> None:
    graves(ps, 800)

    def anew() -> None:
        ps.update_queue("q", dead_letter=None)
        ps.delete_queue("graves")
        ps.create_queue("graves").enqueue(b"later")

    before("transfer", 3, anew)
    assert ps.queue("graves").redrive(1000) == 500
    assert (ps.queue("graves").length(), ps.queue("q").length()) == (1, 500)
