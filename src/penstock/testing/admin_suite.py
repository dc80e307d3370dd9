"""Queues themselves: made, changed, deleted, replaced as a set, and recorded."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from penstock import (
    Entry,
    InvalidConfig,
    InvalidMessage,
    ManualClock,
    NewMessage,
    Penstock,
    Queue,
    QueueAlreadyExists,
    QueueNotFound,
    Retry,
    Unsupported,
)
from penstock.testing.folding import read_events
from penstock.testing.harness import BackendCase, drain, requires, sweep_all, take, take_one


def names(ps: Penstock) -> list[str]:
    return [settings.name for settings in ps.queues()]


class AdminSuite(BackendCase):
    """`create_queue`, `update_queue`, `delete_queue`, `queues` and `queue`."""

    def test_queues_are_listed_by_name(self, ps: Penstock) -> None:
        for name in ("b", "ä", "a", "B", "a/b"):
            assert ps.create_queue(name).name == name
        assert names(ps) == ["B", "a", "a/b", "b", "ä"]

    def test_a_queue_has_the_documented_settings_unless_told_otherwise(self, ps: Penstock, q: Queue) -> None:
        (settings,) = ps.queues()
        assert (settings.lease_s, settings.max_attempts, settings.dead_letter) == (30, 5, None)
        assert (settings.fifo, settings.retention_s, settings.dedup_window_s) == (False, 0, 300)
        assert (settings.journal_retention_s, settings.max_leased) == (7 * 86_400, None)

    @requires("delay")
    def test_settings_are_kept_as_they_were_given(self, ps: Penstock, q: Queue) -> None:
        given: dict[str, Any] = {
            "lease_s": 0.25,
            "max_attempts": 1,
            "dead_letter": "q",
            "retention_s": 1.5,
            "dead_retention_s": 2.5,
            "dedup_window_s": 0,
            "journal_retention_s": None,
            "journal_max_bytes": 10**12,
            "retry": Retry(policy="list", delays_s=(1, 2.5)),
            "annotations": {"team": "mail", "«any» name": ""},
        }
        ps.create_queue("new", **given)
        settings = ps.queues()[0]
        assert {name: getattr(settings, name) for name in given} == given

    def test_a_queue_is_made_once(self, ps: Penstock, q: Queue) -> None:
        with pytest.raises(QueueAlreadyExists, match="'q'"):
            ps.create_queue("q", lease_s=1)
        assert ps.queues()[0].lease_s == 30

    def test_a_queue_that_does_not_exist_is_not_found(self, ps: Penstock) -> None:
        for call in (ps.queue, ps.delete_queue, ps.update_queue):
            with pytest.raises(QueueNotFound, match="'nowhere'"):
                call("nowhere")

    def test_every_handle_of_a_queue_is_the_same_queue(self, ps: Penstock, q: Queue) -> None:
        q.enqueue(b"x")
        assert drain(ps.queue("q")) == [b"x"]
        assert q.length() == 0

    def test_an_update_changes_what_it_names_and_nothing_else(self, ps: Penstock) -> None:
        ps.create_queue("q", lease_s=1, max_attempts=7, retention_s=9)
        ps.update_queue("q", lease_s=2, retry=Retry(max_delay_s=3))
        settings = ps.queues()[0]
        assert (settings.lease_s, settings.retry.max_delay_s) == (2, 3)
        assert (settings.max_attempts, settings.retention_s) == (7, 9)

    def test_an_update_counts_at_once(self, ps: Penstock, q: Queue, clock: ManualClock) -> None:
        q.enqueue_many([NewMessage(b"1"), NewMessage(b"2")])
        take_one(q)
        ps.update_queue("q", lease_s=1)
        assert take_one(q).lease_expires_at_ns == clock.now_ns() + 10**9
        assert q.length() == 2

    @pytest.mark.parametrize(
        "wrong",
        [
            {"lease_s": 0},
            {"lease_s": -1},
            {"lease_s": float("nan")},
            {"lease_s": "30"},
            {"max_attempts": 0},
            {"max_attempts": 1.5},
            {"retention_s": -1},
            {"dedup_window_s": -0.1},
            {"journal_max_bytes": 0},
            {"annotations": {"": "x"}},
            {"annotations": {"x": 1}},
            {"annotations": {"x": "\ud800"}},
            {"annotations": {"x": "x" * 65_536}},
            {"fifo": "yes"},
            {"dead_letter": ""},
            {"dead_letter": 7},
            {"retry": {"policy": "never"}},
            {"retry": {"delay_s": -1}},
            {"retry": {"policy": "list"}},
            {"unknown": 1},
        ],
        ids=str,
    )
    def test_a_setting_that_cannot_be_is_refused_by_name(
        self, ps: Penstock, q: Queue, wrong: dict[str, Any]
    ) -> None:
        (name,) = wrong
        before = ps.queues()
        with pytest.raises(InvalidConfig, match=name):
            ps.create_queue("new", **wrong)
        with pytest.raises(InvalidConfig, match=name):
            ps.update_queue("q", **wrong)
        assert ps.queues() == before

    @requires("fairness")
    @pytest.mark.parametrize("setting", ["max_leased", "max_leased_per_key"])
    def test_a_limit_of_leases_is_kept_or_refused_but_never_ignored(self, ps: Penstock, setting: str) -> None:
        settings: dict[str, Any] = {setting: 2}
        try:
            q = ps.create_queue("limited", **settings)
        except (InvalidConfig, Unsupported):
            with pytest.raises((InvalidConfig, Unsupported), match=setting):
                ps.create_queue("limited", **settings)
            return
        q.enqueue_many([NewMessage(fairness_key="k")] * 5)
        assert len(q.lease(10)) == 2
        assert q.lease(10) == []

    @pytest.mark.parametrize("setting", ["on_enqueue", "on_failure"])
    def test_a_hook_that_does_not_exist_is_refused_and_never_ignored(
        self, ps: Penstock, setting: str
    ) -> None:
        settings: dict[str, Any] = {setting: "/no/such/hook.lua"}
        with pytest.raises((InvalidConfig, Unsupported), match=setting):
            ps.create_queue("hooked", **settings)

    def test_a_deleted_queue_is_gone(self, ps: Penstock, q: Queue) -> None:
        q.enqueue(b"")
        ps.delete_queue("q")
        assert names(ps) == []
        for call in (q.length, q.lease, q.stats, q.purge, q.peek, lambda: q.ack([])):
            with pytest.raises(QueueNotFound):
                call()

    @requires("idempotent_enqueue", "delay", "time_to_live", "journal")
    def test_a_queue_made_anew_under_an_old_name_has_nothing_of_the_old_one(
        self, ps: Penstock, q: Queue, clock: ManualClock
    ) -> None:
        q.enqueue_many([NewMessage(dedup_id="d"), NewMessage(delay_s=5), NewMessage(ttl_s=5)])
        take_one(q, lease_s=5)
        q.cursor("c", required=True).commit(2)
        ps.update_queue("q", retention_s=77)
        ps.delete_queue("q")
        new = ps.create_queue("q")
        assert (new.length(), list(new.iter()), read_events(new), list(new.cursors())) == (0, [], [], [])
        assert (new.stats().enqueued_total, new.stats().last_seq) == (0, 0)
        assert (ps.queues()[0].retention_s, ps.due()) == (0, [])
        (result,) = new.enqueue_many([NewMessage(b"x", dedup_id="d")])
        assert not result.duplicate
        clock.advance(10)
        assert drain(new) == [b"x"]
        assert new.cursor("c").position == 0

    @requires("idempotent_enqueue", "time_to_live")
    def test_a_large_queue_is_deleted_without_a_trace(self, ps: Penstock, q: Queue) -> None:
        q.enqueue_many([NewMessage(ttl_s=60, dedup_id=str(n)) for n in range(1700)])
        take(q, 600)
        ps.delete_queue("q")
        new = ps.create_queue("q")
        assert (new.length(), ps.due(), ps.check().ok) == (0, [], True)
        new.enqueue(b"x")
        sweep_all(ps)
        assert (ps.due(), ps.check().messages) == ([], 1)
        assert drain(new) == [b"x"]

    @requires("journal")
    def test_the_system_journal_records_what_is_done_to_queues(
        self, ps: Penstock, clock: ManualClock
    ) -> None:
        ps.create_queue("a", lease_s=5)
        clock.advance(1)
        ps.update_queue("a", lease_s=6)
        ps.delete_queue("a")
        entries = ps.journal("_penstock").scan()
        assert [(entry.kind, entry.labels) for entry in entries] == [
            ("queue_created", ["a"]),
            ("queue_updated", ["a"]),
            ("queue_deleted", ["a"]),
        ]
        assert entries[1].at_ns - entries[0].at_ns == 10**9
        assert msgspec.json.decode(entries[1].body)["lease_s"] == 6

    @requires("journal")
    def test_what_was_refused_is_not_recorded(self, ps: Penstock, q: Queue) -> None:
        with pytest.raises(QueueAlreadyExists):
            ps.create_queue("q")
        with pytest.raises(InvalidConfig):
            ps.create_queue("r", dead_letter="nowhere")
        assert [entry.kind for entry in ps.journal("_penstock").scan()] == ["queue_created"]

    @requires("journal")
    def test_nobody_else_writes_to_the_system_journal(self, ps: Penstock) -> None:
        with pytest.raises(InvalidMessage, match="_penstock"):
            ps.journal("_penstock").append([Entry("k")])
        assert ps.create_queue("_penstock").enqueue(b"")
