"""The limits themselves: set, read, changed while messages wait, kept over restarts."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import InvalidMessage, ManualClock, Penstock, Queue
from penstock.testing.harness import (
    BackendCase,
    Subject,
    requires,
    take,
    take_one,
)
from penstock.testing.throttle_suite import throttled, tokens


class ThrottleLimitSuite(BackendCase):
    """`ps.throttles`."""

    # -- limits ---------------------------------------------------------------------------------

    @requires("throttling")
    def test_a_limit_is_what_was_set_until_it_is_deleted(self, ps: Penstock) -> None:
        assert ps.throttles.get("api") is None
        ps.throttles.set("api", rate_per_s=2.5, burst=10)
        ps.throttles.set("a/é:\n", 0.1, 1)
        found = ps.throttles.get("api")
        assert found is not None
        assert (found.key, found.rate_per_s, found.burst, found.tokens) == ("api", 2.5, 10, 10)
        assert [(one.key, one.rate_per_s, one.burst) for one in ps.throttles.list()] == [
            ("a/é:\n", 0.1, 1),
            ("api", 2.5, 10),
        ]
        ps.throttles.delete("api")
        ps.throttles.delete("api")
        assert ps.throttles.get("api") is None
        assert [one.key for one in ps.throttles.list()] == ["a/é:\n"]

    @requires("throttling")
    @pytest.mark.parametrize(
        "wrong",
        [
            ("", 1, 1),
            ("a\0b", 1, 1),
            ("k" * 1025, 1, 1),
            (7, 1, 1),
            (None, 1, 1),
            ("k", -1, 1),
            ("k", float("nan"), 1),
            ("k", float("inf"), 1),
            ("k", 1e-9, 1),
            ("k", 1e9, 1),
            ("k", "1", 1),
            ("k", True, 1),
            ("k", None, 1),
            ("k", 1, -1),
            ("k", 1, 1.5),
            ("k", 1, float("nan")),
            ("k", 1, float("inf")),
            ("k", 1, 10**12),
            ("k", 1, "1"),
            ("k", 1, False),
        ],
        ids=str,
    )
    def test_a_limit_that_cannot_be_is_refused_and_changes_nothing(
        self, ps: Penstock, wrong: tuple[Any, Any, Any]
    ) -> None:
        ps.throttles.set("k", 3, 3)
        with pytest.raises(InvalidMessage):
            ps.throttles.set(*wrong)
        assert [(one.key, one.rate_per_s, one.burst) for one in ps.throttles.list()] == [("k", 3, 3)]

    @requires("throttling")
    @pytest.mark.parametrize("key", ["", "a\0b", 7, None])
    def test_a_key_that_cannot_be_is_refused_by_get_and_delete(self, ps: Penstock, key: Any) -> None:
        with pytest.raises(InvalidMessage):
            ps.throttles.get(key)
        with pytest.raises(InvalidMessage):
            ps.throttles.delete(key)

    @requires("throttling")
    def test_a_message_has_its_throttle_keys_wherever_it_is_seen(self, q: Queue) -> None:
        message_id = q.enqueue(b"", throttle_keys=["b", "a", "b"])
        assert q.get(message_id).throttle_keys == ("b", "a", "b")
        assert take_one(q).throttle_keys == ("b", "a", "b")

    # -- changes while messages wait ------------------------------------------------------------

    @requires("throttling")
    def test_a_limit_that_is_raised_or_deleted_counts_at_once(
        self, ps: Penstock, q: Queue, clock: ManualClock
    ) -> None:
        ps.throttles.set("api", 0.001, 1)
        q.enqueue_many(throttled(20, "api"))
        assert len(q.lease(20)) == 1
        assert q.lease(20) == []
        ps.throttles.set("api", 10, 5)
        assert q.lease(20) == []  # What the bucket had stays: nothing.
        clock.advance(1)
        assert len(q.lease(20)) == 5
        ps.throttles.delete("api")
        assert len(q.lease(20)) == 14

    @requires("throttling")
    def test_a_limit_that_is_set_or_lowered_counts_at_once(
        self, ps: Penstock, q: Queue, clock: ManualClock
    ) -> None:
        q.enqueue_many(throttled(30, "api"))
        take(q, 5)
        ps.throttles.set("api", 1, 10)
        take(q, 2)
        ps.throttles.set("api", 1, 3)
        assert len(q.lease(20)) == 3
        clock.advance(100)
        assert len(q.lease(20)) == 3

    @requires("throttling")
    def test_setting_a_limit_again_gives_no_tokens(self, ps: Penstock, q: Queue) -> None:
        ps.throttles.set("api", 1, 2)
        q.enqueue_many(throttled(20, "api"))
        take(q, 2)
        for _ in range(3):
            ps.throttles.set("api", 1, 2)
            assert q.lease(20) == []

    # -- restarts -------------------------------------------------------------------------------

    @requires("throttling", "persistence")
    def test_reopening_neither_gives_tokens_nor_loses_any(
        self, subject: Subject, q: Queue, clock: ManualClock
    ) -> None:
        subject.ps.throttles.set("api", 1, 5)
        q.enqueue_many(throttled(50, "api"))
        take(q, 3)
        q = subject.reopen().queue("q")
        assert tokens(subject.ps, "api") == 2
        assert len(q.lease(50)) == 2
        for _ in range(3):
            q = subject.reopen().queue("q")
            assert q.lease(50) == []
        clock.advance(1.5)
        q = subject.reopen().queue("q")
        assert len(q.lease(50)) == 1
        clock.advance(0.5)
        q = subject.reopen().queue("q")
        assert len(q.lease(50)) == 1

    @requires("throttling", "persistence")
    def test_limits_are_there_after_reopening(self, subject: Subject) -> None:
        subject.ps.throttles.set("kept", 0.25, 7)
        subject.ps.throttles.set("gone", 1, 1)
        subject.ps.throttles.delete("gone")
        before = subject.ps.throttles.list()
        assert subject.reopen().throttles.list() == before
        assert [one.key for one in before] == ["kept"]

    @requires("throttling", "journal")
    def test_the_system_journal_tells_who_was_limited(self, ps: Penstock) -> None:
        ps.throttles.set("api", 1.5, 2)
        ps.throttles.delete("api")
        entries = ps.journal("_penstock").scan(labels=["api"])
        assert [entry.kind for entry in entries] == ["throttle_set", "throttle_deleted"]
        assert b"1.5" in entries[0].body
