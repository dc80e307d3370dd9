"""Several processes on one store: settings, wake-ups, time, lost replies and forgotten scripts."""

from __future__ import annotations

import random
from typing import Any

import pytest

import penstock
from penstock import NewMessage, Penstock, QueueNotFound
from penstock.backends.redis.connecting import Server
from penstock.testing.background import Background, wait_until
from penstock.testing.folding import prove_journal, read_events
from penstock.testing.harness import ack, drain, errors, ids, receipts, take, take_one
from tests.redis.stores import Place


def test_what_one_process_enqueues_another_takes_and_acks(place: Place) -> None:
    one, other = place.open(1), place.open(2)
    one.create_queue("q").enqueue_many([NewMessage(b"%d" % n) for n in range(30)])
    held = take(other.queue("q"), 30)
    ack(one.queue("q"), held)
    assert (one.queue("q").length(), one.check().ok) == (0, True)


def test_settings_that_another_process_changed_count_at_once(place: Place) -> None:
    one, other = place.open(1), place.open(2)
    q, same = one.create_queue("q", compress_over_bytes=None), other.queue("q")
    q.enqueue_many([NewMessage(b"1"), NewMessage(b"2")])
    assert take_one(same).lease_expires_at_ns == place.clock.now_ns() + 30 * 10**9
    one.update_queue("q", lease_s=5, max_attempts=1)
    delivery = take_one(same)
    assert delivery.lease_expires_at_ns == place.clock.now_ns() + 5 * 10**9
    assert errors(same.nack([delivery.receipt])) == [None]
    assert q.get(delivery.id).state == "dead"


def test_a_script_that_another_process_set_sees_the_next_message(place: Place) -> None:
    one, other = place.open(1), place.open(2)
    q, same = one.create_queue("q"), other.queue("q")
    same.enqueue(b"before")
    one.update_queue("q", on_enqueue="function on_enqueue(m) m.headers.seen = 'yes' end")
    same.enqueue(b"after")
    assert [message.headers for message in q.peek(2)] == [{}, {"seen": "yes"}]


def test_a_queue_that_another_process_made_anew_takes_no_old_receipts(place: Place) -> None:
    one, other = place.open(1), place.open(2)
    q, same = one.create_queue("q"), other.queue("q")
    given = q.enqueue(b"x", id="0191f2a0-0000-7000-8000-00000000abcd")
    old = take_one(q)
    other.delete_queue("q")
    with pytest.raises(QueueNotFound):
        q.ack([old.receipt])
    other.create_queue("q").enqueue(b"y", id=given)
    new = take_one(same)
    assert errors(q.ack([old.receipt, new.receipt])) == ["StaleReceipt", None]


def test_a_poll_wakes_for_what_another_process_enqueues(place: Place) -> None:
    one, other = place.open(1), place.open(2)
    q = one.create_queue("q")
    waiting = Background(lambda: q.lease(wait_s=60))
    wait_until(lambda: place.clock.waiters() == 1)
    other.queue("q").enqueue(b"x")
    assert [delivery.payload for delivery in waiting.result()] == [b"x"]


def test_without_a_clock_of_the_callers_time_is_the_servers(place: Place) -> None:
    with penstock.open(place.url, rng=random.Random(1)) as ps:
        q = ps.create_queue("q")
        q.enqueue_many([NewMessage(b"1"), NewMessage(b"2", delay_s=0.05)])
        seconds, micros = place.client.time()
        now_us = seconds * 10**6 + micros
        (event, _) = read_events(q)
        assert abs(event.at_ns // 1000 - now_us) < 10**6
        ack(q, [take_one(q)])
        (late,) = q.lease(wait_s=10)
        assert (late.payload, late.leased_at_ns >= late.enqueued_at_ns + 50_000_000) == (b"2", True)
        assert ps.check().ok


def test_without_a_clock_of_the_callers_one_of_all_processes_keeps_house(place: Place) -> None:
    with penstock.open(place.url) as ps, penstock.open(place.url) as other:
        q = ps.create_queue("q", retention_s=0.05, journal_retention_s=0.05)
        q.enqueue_many([NewMessage()] * 30)
        ack(q, take(q, 30))
        wait_until(lambda: other.queue("q").stats().done == 0)
        wait_until(lambda: q.stats().first_seq > q.stats().last_seq)
        assert ps.check().ok


def test_scripts_that_the_server_forgot_are_sent_again(place: Place) -> None:
    ps = place.open()
    q = ps.create_queue("q")
    q.enqueue(b"1")
    place.client.script_flush()
    q.enqueue(b"2")
    assert drain(q) == [b"1", b"2"]


class LostReplies:
    """A server that does what it is told, but whose first answer is lost: the call is sent again."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, names: set[str]) -> None:
        self.sent_again: list[str] = []
        run = Server.run

        def twice(server: Server, script: Any, keys: Any, args: Any, **options: Any) -> Any:
            reply = run(server, script, keys, args, **options)
            if script.name in names:
                again = list(args)
                again[1] = args[1][:-1] + b"1"
                self.sent_again.append(script.name)
                reply = run(server, script, keys, again, **options)
            return reply

        monkeypatch.setattr(Server, "run", twice)


def work(ps: Penstock) -> tuple[Any, ...]:
    """One of each write; what is answered, and what is left."""
    ps.create_queue("dead")
    q = ps.create_queue("q", dead_letter="dead", max_attempts=1)
    plain = q.enqueue_many([NewMessage(b"%d" % n) for n in range(4)])
    special = q.enqueue_many([NewMessage(b"a", dedup_id="a"), NewMessage(b"b", ttl_s=50, dedup_id="b")])
    upserted = q.upsert([NewMessage(b"new", id=plain[3].id)])
    held = take(q, 5)
    outcomes = [
        errors(q.extend(receipts(held), lease_s=100)),
        errors(q.ack(receipts(held[:2]))),
        errors(q.nack(receipts(held[2:3]))),
        errors(q.reject(receipts(held[3:4]))),
    ]
    moved = errors(q.move([ids(special)[1]], target="dead"))
    purged = q.purge("leased")
    results = [result.ok for result in (*plain, *special, *upserted)]
    left = {name: sorted(m.payload for m in ps.queue(name).iter()) for name in ("q", "dead")}
    return results, outcomes, moved, purged, left, q.stats().last_seq


def test_a_call_whose_answer_was_lost_is_not_done_twice(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = work(place.open())
    other = Place()
    try:
        ps = other.open()
        lost = LostReplies(monkeypatch, {"enqueue", "replace", "ack", "settle", "transfer", "catalogue"})
        assert work(ps) == expected
        assert set(lost.sent_again) >= {"enqueue", "replace", "ack", "transfer", "catalogue"}
        assert ps.check().ok
        for name in ("q", "dead"):
            prove_journal(ps.queue(name))
    finally:
        other.close()


def test_a_message_that_was_acked_before_its_enqueue_is_sent_again_is_not_stored_twice(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    ps = place.open()
    q = ps.create_queue("q")
    run = Server.run

    def slow(server: Server, script: Any, keys: Any, args: Any, **options: Any) -> Any:
        reply = run(server, script, keys, args, **options)
        if script.name == "enqueue":
            monkeypatch.setattr(Server, "run", run)
            ack(q, q.lease(10))
            reply = run(server, script, keys, [args[0], args[1][:-1] + b"1", *args[2:]], **options)
        return reply

    monkeypatch.setattr(Server, "run", slow)
    assert errors(q.enqueue_many([NewMessage(b"x"), NewMessage(b"y")])) == [None, None]
    assert (q.length(), q.stats().enqueued_total) == (0, 2)


def test_everything_of_acked_messages_is_gone(place: Place) -> None:
    ps = place.open()
    ps.create_queue("warm")
    q = ps.create_queue("q", journal_retention_s=1)
    keys = set(place.client.scan_iter())
    q.enqueue_many(
        [
            NewMessage(b"%d" % n, fairness_key=f"k{n % 50}", priority=n % 10, ttl_s=500, dedup_id=str(n))
            for n in range(1500)
        ]
    )
    drain(q)
    place.clock.advance(400)
    while ps.sweep():
        pass
    left = {key for key in place.client.scan_iter() if key not in keys}
    # Of the queue's own: its counters, which were there, and nothing else but an empty stream and rates.
    assert {key.rsplit(b":", 1)[1] for key in left} <= {b"j", b"x", b"m"}, left
    assert place.client.xlen(place.key("q", "j")) == place.bodies("q") == 0
