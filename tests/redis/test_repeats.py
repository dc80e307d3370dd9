"""What is sent again, or begun anew, is done once: and its answer is that of the first time."""

from __future__ import annotations

import os
from typing import Any

import pytest

from penstock import Delivery, Entry, NewMessage
from penstock.backends.redis import driver
from penstock.errors import BackendUnavailable, StorageError, StorageFull
from tests.redis.clocks import SkippingClock
from tests.redis.interrupting import after, lose, server_of
from tests.redis.stores import Place


def test_a_batch_of_slices_is_stored_once_though_a_setting_changes_between_them(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    ps, other = place.open(1), place.open(2)
    queue = ps.create_queue("q")
    after(monkeypatch, ps, "enqueue", 1, lambda: other.update_queue("q", max_attempts=7))
    results = queue.enqueue_many([NewMessage(payload=b"x") for _ in range(1500)])
    assert all(one.ok and not one.duplicate for one in results)
    assert queue.stats().ready == 1500
    assert ps.check().ok


def test_leases_and_acks_of_slices_go_on_though_a_setting_changes_between_them(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    ps, other = place.open(1), place.open(2)
    queue = ps.create_queue("q", max_attempts=1)
    queue.enqueue_many([NewMessage(payload=b"x") for _ in range(1500)])
    after(monkeypatch, ps, "lease", 1, lambda: other.update_queue("q", max_leased=5000))
    deliveries = queue.lease(max_messages=1200)
    assert len(deliveries) == queue.stats().leased == 1200
    after(monkeypatch, ps, "ack", 1, lambda: other.update_queue("q", max_leased=6000))
    assert all(one.ok for one in queue.ack([one.receipt for one in deliveries]))
    assert queue.length() == 300


def test_what_was_leased_is_handed_out_though_the_next_slice_fails(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    ps, other = place.open(1), place.open(2)
    queue = ps.create_queue("q")
    queue.enqueue_many([NewMessage(payload=b"x") for _ in range(1500)])
    after(monkeypatch, ps, "lease", 1, lambda: other.delete_queue("q"))
    assert len(queue.lease(max_messages=1500)) == 1000


def test_a_move_of_slices_goes_on_though_a_setting_changes_between_them(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    ps, other = place.open(1), place.open(2)
    queue, target = ps.create_queue("q"), ps.create_queue("t")
    ids = [str(one.id) for one in queue.enqueue_many([NewMessage(payload=b"x") for _ in range(600)])]
    after(monkeypatch, ps, "transfer", 1, lambda: other.update_queue("t", max_leased=5000))
    assert all(one.ok for one in queue.move(ids, target="t"))
    assert (queue.length(), target.length()) == (0, 600)


def test_a_purge_spares_what_came_after_it_began_though_a_setting_changes(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    ps, other = place.open(1), place.open(2)
    queue = ps.create_queue("q")
    queue.enqueue_many([NewMessage(payload=b"old") for _ in range(800)])

    def meanwhile() -> None:
        other.update_queue("q", max_attempts=9)
        other.queue("q").enqueue(b"new")

    after(monkeypatch, ps, "purge", 2, meanwhile)
    assert queue.purge() == 800
    assert queue.length() == 1


@pytest.mark.parametrize("more", [{}, {"ttl_s": 100.0}], ids=["plain", "with a ttl"])
def test_a_lost_answer_and_a_changed_setting_store_once(
    place: Place, monkeypatch: pytest.MonkeyPatch, more: dict[str, Any]
) -> None:
    ps, other = place.open(1), place.open(2)
    queue = ps.create_queue("q")
    lose(monkeypatch, ps, "enqueue", lambda: other.update_queue("q", max_attempts=7))
    (result,) = queue.enqueue_many([NewMessage(payload=b"x", **more)])
    assert result.ok
    assert not result.duplicate
    assert queue.stats().ready == 1
    assert ps.check().ok


def test_a_lost_answer_and_a_changed_setting_ack_and_move_once(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    ps, other = place.open(1), place.open(2)
    queue, target = ps.create_queue("q"), ps.create_queue("t")
    queue.enqueue(b"x")
    lose(monkeypatch, ps, "ack", lambda: other.update_queue("q", max_attempts=7))
    assert queue.ack([one.receipt for one in queue.lease()])[0].ok
    moved = queue.enqueue(b"x")
    lose(monkeypatch, ps, "transfer", lambda: other.update_queue("t", max_attempts=8))
    assert queue.move([moved], target="t")[0].ok
    assert target.length() == 1


def test_what_had_failed_is_not_done_when_it_is_sent_again(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    ps, other = place.open(1), place.open(2)
    queue = ps.create_queue("q")
    queue.enqueue_many([NewMessage(payload=b"x") for _ in range(4)])
    first, second, third, fourth = [one.receipt for one in queue.lease(max_messages=4)]
    other.queue("q").ack([first])
    lose(monkeypatch, ps, "ack")
    assert [one.ok for one in queue.ack([first, second])] == [False, True]
    after(monkeypatch, ps, "look", 1, lambda: other.queue("q").ack([third]))
    lose(monkeypatch, ps, "settle")
    assert [one.ok for one in queue.nack([third, fourth])] == [False, True]


def test_a_repeated_enqueue_with_a_dedup_id_answers_as_it_did(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    ps = place.open()
    queue = ps.create_queue("q", dedup_window_s=10)
    there = queue.enqueue(b"x", dedup_id="a")
    lose(monkeypatch, ps, "enqueue", lambda: place.clock.advance(20.0))
    results = queue.enqueue_many([NewMessage(payload=b"x", dedup_id=one) for one in "ab"])
    assert [(one.id == there, one.duplicate) for one in results] == [(True, True), (False, False)]
    assert not queue.enqueue_many([NewMessage(payload=b"x", dedup_id="b")])[0].duplicate


def test_a_repeated_enqueue_that_the_server_forgot_is_known_by_its_ids(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    ps = place.open()
    queue = ps.create_queue("q")
    for more in ({}, {"ttl_s": 100.0}):
        lose(monkeypatch, ps, "enqueue", lambda: place.client.delete(place.key("q", "i")))
        queue.enqueue(b"x", **more)  # type: ignore[arg-type]
    assert queue.stats().ready == 2
    assert ps.check().ok


def test_purge_and_redrive_count_what_they_did_the_first_time(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    ps = place.open()
    queue = ps.create_queue("q")
    queue.enqueue(b"x")
    queue.reject([one.receipt for one in queue.lease()])
    lose(monkeypatch, ps, "revive")
    assert queue.redrive() == 1
    lose(monkeypatch, ps, "purge")
    assert queue.purge() == 1


def test_an_entry_is_appended_once_though_another_came_meanwhile(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    ps, other = place.open(1), place.open(2)
    lose(monkeypatch, ps, "world_append", lambda: other.journal("w").append([Entry(kind="k", body=b"other")]))
    ps.journal("w").append([Entry(kind="k", body=b"mine")])
    assert [one.body for one in ps.journal("w").scan()] == [b"mine", b"other"]


def test_queues_are_created_and_deleted_once_though_others_change_them_meanwhile(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    ps, other = place.open(1), place.open(2)
    lose(monkeypatch, ps, "catalogue", lambda: other.create_queue("other"))
    ps.create_queue("q")
    lose(monkeypatch, ps, "catalogue", lambda: other.create_queue("q").enqueue(b"x"))
    ps.delete_queue("q")
    assert ps.queue("q").length() == 1


def test_a_later_slice_that_fails_does_not_hide_what_is_stored(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    ps = place.open()
    queue = ps.create_queue("q")

    def fail(*args: Any, **more: Any) -> Any:
        raise StorageFull("no room")

    after(monkeypatch, ps, "enqueue", 1, lambda: monkeypatch.setattr(server_of(ps), "run", fail))
    results = queue.enqueue_many([NewMessage(payload=b"x") for _ in range(1500)])
    assert [one.ok for one in results] == [True] * 1000 + [False] * 500
    assert isinstance(results[-1].error, StorageFull)


def test_a_fork_is_told_to_open_the_store_itself(place: Place) -> None:
    ps = place.open()
    queue = ps.create_queue("q")
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            queue.enqueue(b"x")
        except StorageError as error:
            os.write(writing, str(error).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert f"opened in process {os.getpid()}; open it anew" in os.read(reading, 1000).decode()
    os.close(reading)
    os.close(writing)
    assert queue.length() == 0


def test_a_lease_that_is_sent_again_hands_out_the_same(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    ps, other = place.open(1), place.open(2)
    queue = ps.create_queue("q", lease_s=60)
    queue.enqueue_many([NewMessage(payload=b"%d" % i, ttl_s=500 if i else 1) for i in range(30)])
    place.clock.advance(2.0)  # The first expires in the same frame.
    lose(monkeypatch, ps, "lease", lambda: other.update_queue("q", max_attempts=7))
    deliveries = queue.lease(max_messages=10)
    assert [one.payload for one in deliveries] == [b"%d" % i for i in range(1, 11)]
    assert {one.attempts for one in deliveries} == {1}
    assert queue.stats().leased == 10
    assert all(one.ok for one in queue.ack([one.receipt for one in deliveries]))


def test_a_lease_that_another_has_by_now_is_not_handed_out_again(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    ps, other = place.open(1), place.open(2)
    queue = ps.create_queue("q", lease_s=5)
    queue.enqueue(b"x")
    taken: list[Delivery] = []

    def meanwhile() -> None:
        place.clock.advance(6.0)
        taken.extend(other.queue("q").lease())

    lose(monkeypatch, ps, "lease", meanwhile)
    assert queue.lease(max_messages=10) == []
    assert other.queue("q").ack([one.receipt for one in taken])[0].ok


def test_a_script_is_not_sent_again_once_the_server_may_have_forgotten_it(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    ps = place.open()
    queue = ps.create_queue("q")
    queue.length()  # The queue is known: nothing else is sent.
    sender, clock, sent = server_of(ps)._sender, SkippingClock(), []

    def lost(connection: Any, node: Any, calls: Any, asking: bool) -> Any:
        sent.append(clock.now_ns())
        calls[0].is_sent = True
        clock.advance(20.0)
        raise driver.ConnectionError("cut")

    monkeypatch.setattr(sender, "_clock", clock)
    monkeypatch.setattr(sender, "_talk", lost)
    with pytest.raises(BackendUnavailable):
        queue.enqueue(b"x")
    assert len(sent) == 3
    assert sent[-1] - sent[0] < 45 * 10**9


@pytest.mark.parametrize(("act", "script", "done"), [("ack", "ack", 1000), ("nack", "settle", 500)])
def test_a_later_slice_that_fails_does_not_hide_what_is_settled(
    place: Place, monkeypatch: pytest.MonkeyPatch, act: str, script: str, done: int
) -> None:
    ps = place.open()
    queue = ps.create_queue("q")
    queue.enqueue_many([NewMessage(payload=b"x") for _ in range(1200)])
    receipts = [one.receipt for one in queue.lease(max_messages=1200)]

    def fail(*args: Any, **more: Any) -> Any:
        raise StorageFull("no room")

    after(monkeypatch, ps, script, 1, lambda: monkeypatch.setattr(server_of(ps), "run", fail))
    outcomes = getattr(queue, act)(receipts)
    assert [one.ok for one in outcomes] == [True] * done + [False] * (1200 - done)
    assert isinstance(outcomes[-1].error, StorageFull)
