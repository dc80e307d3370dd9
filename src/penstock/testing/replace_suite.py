"""Replacing the whole set of queues, or declaring some of it: all of that is done, or nothing has changed."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import InvalidConfig, NewMessage, Penstock, Queue, QueueNotFound, QueueSettings
from penstock.testing.admin_suite import names
from penstock.testing.harness import BackendCase, drain, errors, requires, sweep_all, take_one


class ReplaceQueuesSuite(BackendCase):
    """`replace_queues`."""

    def test_exactly_these_queues_exist_afterwards(self, ps: Penstock) -> None:
        for name in ("gone", "kept", "changed"):
            ps.create_queue(name).enqueue(name.encode())
        ps.replace_queues(["kept", {"name": "changed", "lease_s": 5}, QueueSettings(name="new")])
        assert names(ps) == ["changed", "kept", "new"]
        assert ps.queues()[0].lease_s == 5
        assert [drain(ps.queue(name)) for name in names(ps)] == [[b"changed"], [b"kept"], []]
        assert ps.create_queue("gone").length() == 0

    @pytest.mark.parametrize(
        "wrong",
        [
            ["new", {"name": "bad", "lease_s": -1}],
            ["new", {"name": "bad", "dead_letter": "q"}],
            ["new", "new"],
            ["new", {"lease_s": 1}],
            ["new", ""],
        ],
        ids=["setting", "dead letter", "twice", "no name", "empty name"],
    )
    def test_all_or_nothing_is_replaced(self, ps: Penstock, q: Queue, wrong: list[Any]) -> None:
        q.enqueue(b"x")
        before = ps.queues()
        with pytest.raises(InvalidConfig):
            ps.replace_queues(wrong)
        assert ps.queues() == before
        assert drain(q) == [b"x"]

    def test_queues_that_name_each_other_can_be_made_together(self, ps: Penstock) -> None:
        ps.replace_queues([{"name": "a", "dead_letter": "b"}, "b"])
        a = ps.queue("a")
        a.enqueue(b"x")
        a.reject([take_one(a).receipt])
        assert drain(ps.queue("b")) == [b"x"]

    def test_every_queue_can_be_replaced_by_none(self, ps: Penstock, q: Queue) -> None:
        q.enqueue(b"")
        ps.replace_queues([])
        assert names(ps) == []
        sweep_all(ps)
        assert ps.check().messages == 0

    def test_replacing_queues_by_themselves_changes_nothing(self, ps: Penstock, q: Queue) -> None:
        q.enqueue(b"x")
        ps.replace_queues(ps.queues())
        assert drain(q) == [b"x"]

    def test_a_handle_of_a_kept_queue_stays_good_and_of_a_deleted_one_does_not(
        self, ps: Penstock, q: Queue
    ) -> None:
        other = ps.create_queue("other")
        ps.replace_queues(["q", "new"])
        assert errors(q.enqueue_many([NewMessage()])) == [None]
        with pytest.raises(QueueNotFound):
            other.enqueue(b"")

    @requires("journal")
    def test_a_replacement_is_recorded_queue_by_queue(self, ps: Penstock, q: Queue) -> None:
        ps.create_queue("kept")
        ps.replace_queues(["kept", "new-1", "new-2"])
        entries = ps.journal("_penstock").scan(after=2)
        assert sorted((entry.kind, entry.labels[0]) for entry in entries) == [
            ("queue_created", "new-1"),
            ("queue_created", "new-2"),
            ("queue_deleted", "q"),
        ]


def declare(ps: Penstock, *queues: QueueSettings) -> None:
    """As a configuration does that names these."""
    ps.backends["default"].declare_queues(queues)


class DeclareQueuesSuite(BackendCase):
    """`declare_queues`."""

    def test_these_are_made_and_changed_and_others_stay(self, ps: Penstock, q: Queue) -> None:
        q.enqueue(b"x")
        ps.create_queue("changed").enqueue(b"changed")
        declare(ps, QueueSettings(name="changed", lease_s=5), QueueSettings(name="new"))
        assert names(ps) == ["changed", "new", "q"]
        assert ps.queue("changed").settings().lease_s == 5
        assert [drain(ps.queue(name)) for name in names(ps)] == [[b"changed"], [], [b"x"]]
        before = ps.queues()
        declare(ps, *before)
        declare(ps)
        assert ps.queues() == before

    def test_a_dead_letter_may_be_declared_with_it_or_be_there(self, ps: Penstock, q: Queue) -> None:
        declare(
            ps,
            QueueSettings(name="a", dead_letter="b"),
            QueueSettings(name="b", dead_letter="q"),
        )
        a = ps.queue("a")
        a.enqueue(b"x")
        a.reject([take_one(a).receipt])
        assert drain(ps.queue("b")) == [b"x"]

    @pytest.mark.parametrize(
        "wrong",
        [
            [QueueSettings(name="new"), QueueSettings(name="bad", dead_letter="nowhere")],
            [QueueSettings(name="q", lease_s=1), QueueSettings(name="new"), QueueSettings(name="new")],
        ],
        ids=["dead letter", "twice"],
    )
    def test_all_or_nothing_is_declared(self, ps: Penstock, q: Queue, wrong: list[QueueSettings]) -> None:
        before = ps.queues()
        with pytest.raises(InvalidConfig):
            declare(ps, *wrong)
        assert ps.queues() == before

    @requires("journal")
    def test_what_is_declared_anew_is_recorded(self, ps: Penstock, q: Queue) -> None:
        declare(ps, QueueSettings(name="q", lease_s=1), QueueSettings(name="new"))
        declare(ps, QueueSettings(name="q", lease_s=1), QueueSettings(name="new"))
        entries = ps.journal("_penstock").scan(after=1)
        assert sorted((entry.kind, entry.labels[0]) for entry in entries) == [
            ("queue_created", "new"),
            ("queue_updated", "q"),
        ]
