"""Restoring: messages of another store are put into a queue as they stood there, once, and recorded."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from penstock import ManualClock, Penstock, Queue, Unsupported
from penstock.backends.bulk import RESTORED, StoredMessage
from penstock.clock import to_ns
from penstock.testing.harness import BackendCase, refuses, requires, sweep_all, take


def stored(number: int, clock: ManualClock, **values: Any) -> StoredMessage:
    """One that was enqueued some time ago."""
    at_ns = clock.now_ns() - to_ns(100)
    given = {"state": "ready", "payload": b"%d" % number, "enqueued_at_ns": at_ns, "visible_at_ns": at_ns}
    return StoredMessage(**{"id": str(uuid.UUID(int=number)), "order_ns": at_ns + number, **given, **values})


class RestoreSuite(BackendCase):
    """`restore`: what comes back, how it is counted, and what is refused."""

    @refuses("restore")
    def test_restoring_is_refused_by_name_where_it_cannot_be_done(self, ps: Penstock, q: Queue) -> None:
        with pytest.raises(Unsupported, match="restore"):
            ps.restore("q", [StoredMessage(id=str(uuid.UUID(int=1)), state="ready")])

    @requires("restore")
    def test_a_message_is_restored_with_everything_that_it_had(
        self, ps: Penstock, q: Queue, clock: ManualClock
    ) -> None:
        now_ns = clock.now_ns()
        body: dict[str, Any] = {
            "headers": {"a": "1", "penstock-origin": "elsewhere"},
            "fairness_key": "k",
            "weight": 7,
            "throttle_keys": ["x", "y"] if ps.info().default.capabilities.throttling else [],
            "priority": 9,
            "dedup_id": "d",
        }
        there = [
            stored(1, clock, **body),
            stored(2, clock, state="ready", attempts=3, reason="again", visible_at_ns=now_ns - 5),
            stored(3, clock, state="delayed", visible_at_ns=now_ns + to_ns(50), order_ns=now_ns + to_ns(50)),
            stored(4, clock, state="delayed", attempts=2, reason="r", visible_at_ns=now_ns + to_ns(9)),
            stored(5, clock, state="dead", attempts=5, reason="no", until_ns=now_ns + to_ns(1000)),
            stored(6, clock, state="done", attempts=1, until_ns=now_ns + to_ns(500)),
            stored(7, clock, expires_at_ns=now_ns + to_ns(30)),
        ]
        results = ps.restore("q", there)
        assert [(result.ok, result.duplicate, result.id) for result in results] == [
            (True, False, one.id) for one in there
        ]
        for one in there:
            found = q.get(one.id)
            assert (str(found.state), found.attempts, found.reason or "") == (
                one.state,
                one.attempts,
                one.reason,
            )
            assert (found.payload, found.headers, found.fairness_key) == (
                one.payload,
                one.headers,
                one.fairness_key,
            )
            assert (found.weight, list(found.throttle_keys)) == (one.weight, list(one.throttle_keys))
            assert (found.priority, found.dedup_id) == (one.priority, one.dedup_id)
            assert (found.enqueued_at_ns, found.expires_at_ns) == (one.enqueued_at_ns, one.expires_at_ns)
        assert q.get(there[2].id).visible_at_ns == there[2].visible_at_ns
        stats = q.stats()
        assert (stats.ready, stats.delayed, stats.dead, stats.done) == (3, 2, 1, 1)
        assert ps.check().ok

    @requires("restore")
    def test_restored_messages_live_on_as_others_do(self, ps: Penstock, q: Queue, clock: ManualClock) -> None:
        now_ns = clock.now_ns()
        ps.restore(
            "q",
            [
                stored(1, clock, attempts=4, reason="r"),
                stored(2, clock, state="delayed", visible_at_ns=now_ns + to_ns(5)),
                stored(3, clock, state="dead", until_ns=now_ns + to_ns(20)),
                stored(4, clock, state="done", until_ns=now_ns + to_ns(20)),
                stored(5, clock, expires_at_ns=now_ns + to_ns(1)),
            ],
        )
        clock.advance(6)
        held = q.lease(max_messages=5)
        assert sorted((one.payload, one.attempts) for one in held) == [(b"1", 5), (b"2", 1)]
        q.nack([one.receipt for one in held], delay_s=0)
        assert {str(message.state) for message in q.iter()} == {"dead", "ready", "done"}
        assert q.get(str(uuid.UUID(int=1))).state == "dead"
        clock.advance(20)
        sweep_all(ps)
        assert sorted(message.payload for message in q.iter()) == [b"1", b"2"]
        assert ps.check().ok

    @requires("restore")
    def test_a_line_stands_as_it_stood(self, ps: Penstock, q: Queue, clock: ManualClock) -> None:
        ps.restore("q", [stored(number, clock) for number in (4, 2, 3)])
        q.enqueue(b"9")
        ps.restore("q", [stored(1, clock)])
        assert [one.payload for one in take(q, 5)] == [b"1", b"2", b"3", b"4", b"9"]

    @requires("restore")
    def test_an_id_that_is_there_is_left_alone(self, ps: Penstock, q: Queue, clock: ManualClock) -> None:
        mine = stored(1, clock)
        first, second = ps.restore("q", [mine, stored(1, clock, payload=b"other")])
        assert (first.duplicate, second.duplicate) == (False, True)
        (again,) = ps.restore("q", [stored(1, clock, payload=b"other", state="dead")])
        assert (again.id, again.duplicate) == (mine.id, True)
        assert q.get(mine.id).payload == b"1"
        assert q.stats().enqueued_total == 1

    @requires("restore", "idempotent_enqueue")
    def test_a_dedup_id_holds_for_the_rest_of_its_window(
        self, ps: Penstock, q: Queue, clock: ManualClock
    ) -> None:
        mine, old = stored(1, clock, dedup_id="d"), stored(2, clock, dedup_id="old", enqueued_at_ns=1)
        twin = stored(3, clock, dedup_id="d")
        assert all(result.ok and not result.duplicate for result in ps.restore("q", [mine, old, twin]))
        assert q.enqueue(b"", dedup_id="d") == mine.id
        assert q.enqueue(b"", dedup_id="old") != old.id
        clock.advance(201)  # It was enqueued 100 seconds ago, and the window is of 300.
        assert q.enqueue(b"", dedup_id="d") != mine.id
        sweep_all(ps)
        assert ps.check().ok

    @requires("restore", "journal")
    def test_the_journal_says_how_each_came_to_stand(
        self, ps: Penstock, q: Queue, clock: ManualClock
    ) -> None:
        until_ns = clock.now_ns() + to_ns(60)
        ps.restore(
            "q",
            [stored(1, clock), stored(2, clock, state="dead", attempts=3, reason="no", until_ns=until_ns)],
        )
        told = [
            (str(one.kind), one.attempt, one.due_ns, one.consumer, one.reason, one.extra)
            for one in q.events()
        ]
        now_ns = clock.now_ns()
        assert told == [
            ("enqueued", 0, now_ns, "", "", ""),
            ("enqueued", 0, now_ns, "", "", ""),
            ("repaired", 3, until_ns, RESTORED, "no", "dead"),
        ]

    @requires("restore")
    def test_a_message_that_cannot_be_restored_fails_no_other(
        self, ps: Penstock, q: Queue, clock: ManualClock
    ) -> None:
        bad: list[tuple[dict[str, Any], str]] = [
            ({"id": "nonsense"}, "not a UUID"),
            ({"state": "leased"}, "nobody holds it here"),
            ({"state": "gone"}, "accepted: delayed"),
            ({"state": "done"}, "until_ns"),
            ({"state": "delayed", "visible_at_ns": 0}, "visible_at_ns"),
            ({"attempts": -1}, "attempts"),
            ({"weight": 0}, "weight"),
            ({"priority": 10}, "priority"),
            ({"headers": {"a": "v" * 70_000}}, "64|65536"),
            ({"order_ns": -1}, "order_ns"),
            ({"reason": "r" * 70_000}, "reason"),
            ({"dedup_id": ""}, "dedup_id"),
        ]
        messages = [stored(1, clock), *(stored(50 + at, clock, **one) for at, (one, _) in enumerate(bad))]
        results = ps.restore("q", [*messages, stored(2, clock)])
        assert [result.ok for result in results] == [True, *[False] * len(bad), True]
        for result, (_, expected) in zip(results[1:-1], bad, strict=True):
            assert any(word in str(result.error) for word in expected.split("|")), result.error
        assert q.length() == 2
        assert ps.check().ok

    @requires("restore", "fifo")
    def test_a_fifo_line_is_restored_with_what_holds_it_up(self, ps: Penstock, clock: ManualClock) -> None:
        line = ps.create_queue("line", fifo=True)
        soon_ns = clock.now_ns() + to_ns(10)
        ps.restore(
            "line", [stored(1, clock, state="delayed", attempts=1, visible_at_ns=soon_ns), stored(2, clock)]
        )
        assert line.lease(max_messages=2) == []
        clock.advance(11)
        assert [one.payload for one in line.lease(max_messages=2)] == [b"1"]
        (refused,) = ps.restore("line", [stored(3, clock, priority=5)])
        assert "fifo" in str(refused.error)

    @requires("restore")
    def test_an_id_whose_body_is_only_held_for_a_cursor_can_be_restored(
        self, ps: Penstock, q: Queue, clock: ManualClock
    ) -> None:
        q.cursor("slow", required=True)
        ps.restore("q", [stored(1, clock)])
        q.ack([one.receipt for one in take(q, 1)])
        assert q.stats().held_bodies == 1
        (result,) = ps.restore("q", [stored(1, clock, payload=b"back")])
        assert not result.duplicate
        assert (q.get(str(uuid.UUID(int=1))).payload, q.stats().held_bodies) == (b"back", 0)
        assert ps.check().ok
