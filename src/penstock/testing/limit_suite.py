"""Limits and bad input: what is beyond is refused by name, item by item, and leaves nothing behind."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, cast

import pytest

from penstock import Entry, InvalidConfig, InvalidMessage, NewMessage, Penstock, PenstockError, Queue
from penstock.message import MAX_HEADERS_BYTES, MAX_PAYLOAD_BYTES, OWNED_HEADER_PREFIX
from penstock.testing.harness import BackendCase, Subject, ack, drain, errors, requires, take_one

#: field -> values of a wrong type or out of range, whatever the backend can do.
WRONG: dict[str, list[object]] = {
    "payload": ["text", None, 7, bytearray(b"x"), memoryview(b"x"), [b"x"]],
    "headers": [None, [], "", "text", 7, [("a", "b")], {"a": 1}, {"a": None}, {"a": b"b"}, {"a": "\ud800"}],
    "id": ["", "nonsense", 7, b"x", [], "0191F2A0-0000-7000-8000-00000000ABCD", "{0191f2a0}"],
    "fairness_key": [None, 7, b"k", []],
    "weight": [0, -1, 1001, 1.0, True, "1", None],
    "throttle_keys": [None, "key", "", 7, [""], [7], ["a\0"], ["k"] * 17],
    "priority": [-1, 10, 4.0, 4.5, True, "4", None],
    "delay_s": [-1, -0.001, float("nan"), float("inf"), "1", "", None, True, False, 10**12],
    "ttl_s": [0, -1, float("nan"), float("inf"), "1", True, False, 10**12],
    "dedup_id": [7, b"k", [], True],
}

#: field -> the capability without which it is refused whatever its value.
FLAGS = {
    "fairness_key": "fairness",
    "weight": "fairness",
    "throttle_keys": "throttling",
    "priority": "prioritization",
    "delay_s": "delay",
    "ttl_s": "time_to_live",
    "dedup_id": "idempotent_enqueue",
}


_FAR = datetime(9999, 1, 1, tzinfo=UTC)

#: call -> the capability that it needs, its error, the call
WRONG_CALLS: dict[str, tuple[str, type[PenstockError], Callable[[Penstock, Any], object]]] = {
    "due since 2**64": ("", InvalidMessage, lambda ps, q: ps.due(since=2**64)),
    "due since year 9999": ("", InvalidMessage, lambda ps, q: ps.due(since=_FAR)),
    "due of no backend": ("", InvalidMessage, lambda ps, q: ps.due(after="nope@5@00")),
    "due after 2**80": ("", InvalidMessage, lambda ps, q: ps.due(after=f"default@{2**80}@00")),
    "events after 2**64": ("journal", InvalidMessage, lambda ps, q: q.events(after=2**64)),
    "events of no number": ("journal", InvalidMessage, lambda ps, q: q.events(kinds=["acked"], limit="x")),
    "events of no kind": ("journal", InvalidMessage, lambda ps, q: q.events(kinds=["ackd"])),
    "events of a list": ("journal", InvalidMessage, lambda ps, q: q.events(kinds=[[]])),
    "scan after 2**64": ("journal", InvalidMessage, lambda ps, q: ps.journal("w").scan(after=2**64)),
    "scan for lists": ("journal", InvalidMessage, lambda ps, q: ps.journal("w").scan(labels=cast(Any, [[]]))),
    "peek from 2**70": ("", InvalidMessage, lambda ps, q: q.peek(offset=2**70)),
    "list of 2**70": ("", InvalidMessage, lambda ps, q: q.list(limit=2**70)),
    "redrive of 2**70": ("", InvalidMessage, lambda ps, q: q.redrive(limit=2**70)),
    "no throttle keys": ("", PenstockError, lambda ps, q: q.enqueue(b"", throttle_keys=None)),
    "a huge vector": (
        "journal",
        InvalidMessage,
        lambda ps, q: ps.journal("w").append([Entry("k", vector=[10**400])]),
    ),
    "a number for a queue": ("", InvalidConfig, lambda ps, q: ps.replace_queues(cast(Any, [5]))),
    "a list for a backend": ("", InvalidConfig, lambda ps, q: ps.create_queue("z", backend=cast(Any, []))),
}


class LimitSuite(BackendCase):
    """Sizes, ranges and types."""

    @pytest.mark.parametrize("field", WRONG)
    def test_a_field_that_cannot_be_is_refused_for_its_item_alone(
        self, subject: Subject, q: Queue, field: str
    ) -> None:
        refused = {"InvalidMessage"}
        if not getattr(subject.capabilities, FLAGS.get(field, ""), True):
            refused.add("Unsupported")
        let_in = []
        for wrong in WRONG[field]:
            bad = NewMessage(**{field: wrong})  # type: ignore[arg-type]
            # The good one goes first: whatever a backend remembers of it must not let the bad one in.
            first, one, last = errors(q.enqueue_many([NewMessage(b"good"), bad, NewMessage(b"good")]))
            alone, neighbour = errors(q.upsert([bad, NewMessage(b"good")]))
            assert (first, last, neighbour) == (None, None, None), wrong
            if one not in refused or alone not in refused:
                let_in.append(wrong)
        assert let_in == []
        assert drain(q) == [b"good"] * (3 * len(WRONG[field]))

    def test_what_is_no_message_is_refused_for_its_item_alone(self, q: Queue) -> None:
        for wrong in (None, "text", b"x", 7, {"payload": b"x"}, [NewMessage()]):
            batch = [NewMessage(b"good"), cast(Any, wrong), NewMessage(b"good")]
            assert errors(q.enqueue_many(batch)) == [None, "InvalidMessage", None], wrong
            assert errors(q.upsert(batch)) == [None, "InvalidMessage", None], wrong
        assert q.length() == 24

    @requires("fairness", "prioritization", "delay", "time_to_live")
    @pytest.mark.parametrize("field", ["weight", "priority", "delay_s", "ttl_s"])
    def test_an_error_names_the_field_and_what_is_accepted(self, q: Queue, field: str) -> None:
        (result,) = q.enqueue_many([NewMessage(**{field: -1})])  # type: ignore[arg-type]
        assert field in str(result.error)
        assert "accepted" in str(result.error)

    def test_payloads_of_no_bytes_and_of_64_mib_are_kept_and_one_byte_more_is_refused(self, q: Queue) -> None:
        largest = b"\xa5" * MAX_PAYLOAD_BYTES
        results = q.enqueue_many([NewMessage(b""), NewMessage(largest), NewMessage(largest + b"\xa5")])
        assert errors(results) == [None, None, "InvalidMessage"]
        assert str(MAX_PAYLOAD_BYTES) in str(results[2].error)
        empty, full = take_one(q), take_one(q)
        assert empty.payload == b""
        assert full.payload == largest
        ack(q, [empty, full])

    def test_headers_of_64_kib_together_are_kept_and_one_byte_more_is_refused(self, q: Queue) -> None:
        largest = {"ä": "v" * 30_000, "name": "w" * (MAX_HEADERS_BYTES - 30_000 - 2 - 4)}
        beyond = {**largest, "ä": "v" * 30_001}
        results = q.enqueue_many([NewMessage(headers=largest), NewMessage(headers=beyond), NewMessage()])
        assert errors(results) == [None, "InvalidMessage", None]
        assert str(MAX_HEADERS_BYTES) in str(results[1].error)
        assert take_one(q).headers == largest

    def test_header_names_that_penstock_owns_are_refused(self, q: Queue) -> None:
        for name in ("origin", "reason", "anything", ""):
            (result,) = q.enqueue_many([NewMessage(headers={OWNED_HEADER_PREFIX + name: "x"})])
            assert isinstance(result.error, InvalidMessage)
        assert q.length() == 0

    @requires("fairness", "prioritization")
    def test_the_ends_of_every_range_are_accepted(self, q: Queue) -> None:
        batch = [NewMessage(weight=weight, priority=priority) for weight in (1, 1000) for priority in (0, 9)]
        assert errors(q.enqueue_many(batch)) == [None] * 4

    @requires("delay", "time_to_live")
    def test_durations_from_a_millisecond_to_years_are_accepted(self, q: Queue) -> None:
        batch = [NewMessage(delay_s=one, ttl_s=one) for one in (0.001, 1, 86_400.5, 5 * 365 * 86_400)]
        assert errors(q.enqueue_many(batch)) == [None] * 4

    @pytest.mark.parametrize(
        ("argument", "values"),
        [
            ("max_messages", [-1, 1.0, None, "1", True]),
            ("lease_s", [0, -1, float("nan"), "30", True, 10**12]),
            ("wait_s", [-1, float("inf"), "1", None, True]),
        ],
        ids=["max_messages", "lease_s", "wait_s"],
    )
    def test_a_lease_that_cannot_be_is_refused_and_takes_nothing(
        self, q: Queue, argument: str, values: list[object]
    ) -> None:
        q.enqueue(b"")
        for wrong in values:
            with pytest.raises(InvalidMessage, match=argument):
                q.lease(**cast(Any, {argument: wrong}))
        assert q.stats().ready == 1

    @requires("delay")
    def test_a_duration_that_cannot_be_is_refused_and_the_lease_stays(self, q: Queue) -> None:
        q.enqueue(b"")
        delivery = take_one(q)
        for wrong in (-1, float("nan"), "1", True, 10**12):
            with pytest.raises(InvalidMessage, match="delay_s"):
                q.nack([delivery.receipt], delay_s=cast(Any, wrong))
            with pytest.raises(InvalidMessage, match="lease_s"):
                q.extend([delivery.receipt], lease_s=cast(Any, wrong))
        with pytest.raises(InvalidMessage, match="lease_s"):
            q.extend([delivery.receipt], lease_s=0)
        ack(q, [delivery])

    def test_a_reason_that_cannot_be_kept_is_refused_and_the_lease_stays(self, q: Queue) -> None:
        q.enqueue(b"")
        delivery = take_one(q)
        for wrong in (None, 7, b"bytes", "\ud800", "x" * (MAX_HEADERS_BYTES + 1)):
            for call in (q.nack, q.reject):
                with pytest.raises(InvalidMessage, match="reason"):
                    call([delivery.receipt], reason=cast(Any, wrong))
        ack(q, [delivery])

    def test_a_long_reason_is_kept(self, q: Queue) -> None:
        reason = "ü\0\n" * 16_000
        message_id = q.enqueue(b"")
        q.reject([take_one(q).receipt], reason=reason)
        assert q.get(message_id).reason == reason

    def test_what_was_never_a_receipt_or_an_id_fails_alone(self, q: Queue) -> None:
        never: list[object] = [None, 7, b"x", [], "nonsense"]
        for wrong in never:
            bad = cast(Any, wrong)
            q.enqueue(b"")
            delivery = take_one(q)
            assert errors(q.extend([bad, delivery.receipt], lease_s=5)) == ["StaleReceipt", None]
            assert errors(q.ack([bad, delivery.receipt])) == ["StaleReceipt", None]
            with pytest.raises(PenstockError):
                q.get(bad)

    def test_a_count_that_cannot_be_is_refused(self, q: Queue) -> None:
        for wrong in (-1, 1.5, "1", None, True):
            count = cast(Any, wrong)
            for method, argument in ((q.peek, "limit"), (q.peek, "offset"), (q.redrive, "limit")):
                with pytest.raises(InvalidMessage, match=argument):
                    cast(Any, method)(**{argument: count})

    @pytest.mark.parametrize("name", WRONG_CALLS)
    def test_an_argument_that_cannot_be_is_refused_by_name(
        self, subject: Subject, q: Queue, name: str
    ) -> None:
        flag, kind, call = WRONG_CALLS[name]
        if flag and not getattr(subject.capabilities, flag):
            pytest.skip(f"this backend has no {flag}")
        with pytest.raises(kind):
            call(subject.ps, q)

    def test_counts_up_to_the_largest_index_are_accepted(self, q: Queue) -> None:
        q.enqueue(b"")
        assert len(q.peek(limit=sys.maxsize)) == len(q.list(limit=sys.maxsize).items) == 1
        assert (q.peek(limit=sys.maxsize, offset=sys.maxsize), q.redrive(limit=sys.maxsize)) == ([], 0)
