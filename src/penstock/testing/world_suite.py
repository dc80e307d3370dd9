"""Worlds: users' own journals, appended to, scanned, and found by id."""

from __future__ import annotations

import uuid
from collections import deque
from datetime import UTC, datetime
from typing import Any, cast

import pytest

from penstock import Entry, InvalidMessage, ManualClock, Penstock
from penstock.testing.harness import BackendCase, requires, sweep_all

UNKNOWN = "0191f2a0-0000-7000-8000-00000000abcd"


def bodies(entries: list[Entry]) -> list[bytes]:
    return [entry.body for entry in entries]


class WorldSuite(BackendCase):
    """`ps.journal` and `ps.get_entries`."""

    @requires("journal")
    def test_an_entry_comes_back_with_everything_that_was_given(
        self, ps: Penstock, clock: ManualClock
    ) -> None:
        world = ps.journal("orders")
        given = Entry("paid", b"\x00\xff", ["eu", "ä"], ["vip"], [0.5, -1.25, 3.0])
        (entry_id,) = world.append([given])
        (entry,) = world.scan()
        assert (entry.kind, entry.body, entry.labels, entry.flags) == (
            "paid",
            b"\x00\xff",
            ["eu", "ä"],
            ["vip"],
        )
        assert entry.vector == [0.5, -1.25, 3.0]
        assert (entry.id, entry.world, entry.seq, entry.at_ns) == (entry_id, "orders", 1, clock.now_ns())

    @requires("journal")
    def test_entries_are_scanned_in_the_order_that_they_were_appended(self, ps: Penstock) -> None:
        world = ps.journal("w")
        for n in range(5):
            world.append([Entry("k", b"%d" % (3 * n + i)) for i in range(3)])
        entries = world.scan()
        assert bodies(entries) == [b"%d" % n for n in range(15)]
        assert [entry.seq for entry in entries] == list(range(1, 16))
        assert bodies(world.scan(after=10, limit=3)) == [b"10", b"11", b"12"]

    @requires("journal")
    def test_a_scan_is_of_any_of_the_kinds(self, ps: Penstock) -> None:
        world = ps.journal("w")
        world.append([Entry(kind, kind.encode()) for kind in ("a", "b", "c", "ab")])
        assert bodies(world.scan(kinds=["a"])) == [b"a"]
        assert bodies(world.scan(kinds=["c", "a", "absent"])) == [b"a", b"c"]

    @requires("journal")
    def test_a_scan_is_of_all_the_labels_and_all_the_flags(self, ps: Penstock) -> None:
        world = ps.journal("w")
        world.append(
            [
                Entry("k", b"1", ["x"], ["f"]),
                Entry("k", b"2", ["x", "y"], ["f", "g"]),
                Entry("k", b"3", ["y", "x", "z"], []),
                Entry("k", b"4", [], ["x", "y"]),
            ]
        )
        assert bodies(world.scan(labels=["x"])) == [b"1", b"2", b"3"]
        assert bodies(world.scan(labels=["x", "y"])) == [b"2", b"3"]
        assert bodies(world.scan(flags=["f", "g"])) == [b"2"]
        assert bodies(world.scan(labels=["x"], flags=["f"])) == [b"1", b"2"]
        assert bodies(world.scan(kinds=["other"], labels=["x"])) == []

    @requires("journal")
    def test_since_includes_its_own_time_and_until_does_not(self, ps: Penstock, clock: ManualClock) -> None:
        world = ps.journal("w")
        times = []
        for n in range(4):
            times.append(clock.now_ns())
            world.append([Entry("k", b"%d" % n)])
            clock.advance(1)
        assert bodies(world.scan(since=times[1])) == [b"1", b"2", b"3"]
        assert bodies(world.scan(until=times[2])) == [b"0", b"1"]
        assert bodies(world.scan(since=times[1], until=times[3])) == [b"1", b"2"]
        assert bodies(world.scan(since=datetime.fromtimestamp(times[3] / 1e9, UTC))) == [b"3"]

    @requires("journal")
    def test_a_limit_counts_what_fits(self, ps: Penstock) -> None:
        world = ps.journal("w")
        world.append([Entry("ab"[n % 2], b"%d" % n) for n in range(10)])
        assert bodies(world.scan(kinds=["b"], limit=2)) == [b"1", b"3"]
        assert world.scan(limit=0) == []

    @requires("journal")
    def test_an_entry_is_found_by_its_id_whatever_its_world(self, ps: Penstock) -> None:
        (one,) = ps.journal("a").append([Entry("k", b"1")])
        two, three = ps.journal("b").append([Entry("k", b"2"), Entry("k", b"3", vector=[1.0])])
        found = ps.get_entries([three, UNKNOWN, one, two])
        assert [entry and (entry.world, entry.body, entry.id) for entry in found] == [
            ("b", b"3", three),
            None,
            ("a", b"1", one),
            ("b", b"2", two),
        ]
        assert ps.get_entries([]) == []

    @requires("journal")
    def test_entries_are_found_however_their_ids_are_written_and_as_often_as_they_are_named(
        self, ps: Penstock
    ) -> None:
        found = ps.journal("w").append([Entry("k", b"%d" % n) for n in range(5)])
        as_uuid: Any = uuid.UUID(found[1])
        named = [found[3], as_uuid, found[3], UNKNOWN, found[0]]
        assert [entry and entry.body for entry in ps.get_entries(named)] == [b"3", b"1", b"3", None, b"0"]
        for wrong in ((one for one in found), found[0], None, ["nonsense"], [None]):
            with pytest.raises(InvalidMessage):
                ps.get_entries(cast(Any, wrong))

    @requires("journal")
    def test_worlds_do_not_see_each_other_nor_the_queues(self, ps: Penstock) -> None:
        ps.create_queue("same").enqueue(b"message")
        ps.journal("same").append([Entry("k", b"entry")])
        assert bodies(ps.journal("same").scan()) == [b"entry"]
        assert ps.journal("sam").scan() == ps.journal("same2").scan() == []
        assert ps.queue("same").stats().last_seq == 1

    @requires("journal")
    def test_a_world_without_entries_is_empty(self, ps: Penstock) -> None:
        world = ps.journal("new")
        assert (world.scan(), world.append([])) == ([], [])
        assert world.stats()["entries"] == 0

    @requires("journal")
    def test_a_worlds_numbers_are_known(self, ps: Penstock) -> None:
        world = ps.journal("w")
        world.append([Entry("k", b"x" * 1000), Entry("k", vector=[1.0])])
        world.append([Entry("k", vector=[2.0, 3.0])])
        stats = world.stats()
        assert (stats["entries"], stats["vectors"]) == (3, 2)
        assert (stats["first_seq"], stats["last_seq"]) == (1, 3)
        assert stats["bytes"] > 1000

    @requires("journal")
    def test_an_append_with_one_bad_entry_stores_none_of_them(self, ps: Penstock) -> None:
        world = ps.journal("w")
        wrong = [
            Entry(""),
            Entry("a\0"),
            Entry("x" * 1025),
            Entry(cast(Any, 7)),
            Entry("k", cast(Any, "text")),
            Entry("k", labels=cast(Any, "text")),
            Entry("k", labels=[""]),
            Entry("k", flags=cast(Any, [7])),
            Entry("k", vector=[]),
            Entry("k", vector=[float("nan")]),
            Entry("k", vector=cast(Any, ["1"])),
            Entry("k", vector=cast(Any, 1.0)),
            cast(Any, "text"),
            cast(Any, None),
        ]
        for bad in wrong:
            with pytest.raises(InvalidMessage):
                world.append([Entry("good"), bad])
        assert (world.scan(), world.stats()["last_seq"]) == ([], 0)

    @requires("journal")
    def test_entries_that_do_not_come_in_a_list_are_refused_and_harm_nothing(self, ps: Penstock) -> None:
        world = ps.journal("w")
        world.append([Entry("k", b"1"), Entry("k", b"2")])
        one = Entry("k", b"3")
        for wrong in (one, (entry for entry in [one]), {"k": one}, "k", None):
            with pytest.raises(InvalidMessage):
                world.append(cast(Any, wrong))
        assert bodies(world.scan()) == [b"1", b"2"]
        assert len(world.append(cast(Any, deque([one])))) == 1
        assert bodies(world.scan()) == [b"1", b"2", b"3"]

    @requires("journal")
    def test_names_to_filter_by_come_in_lists(self, ps: Penstock) -> None:
        world = ps.journal("w")
        for wrong in ({"kinds": "k"}, {"labels": b"k"}, {"flags": "k"}, {"limit": -1}, {"after": "1"}):
            with pytest.raises(InvalidMessage):
                world.scan(**cast(Any, wrong))

    @requires("journal")
    def test_large_entries_and_many_entries_come_back(self, ps: Penstock) -> None:
        world = ps.journal("w")
        found = world.append(
            [Entry("k", bytes([n % 256]) * (3_000_000 if n == 7 else 100)) for n in range(600)]
        )
        assert len(set(found)) == 600
        assert [len(entry.body) for entry in world.scan()] == [
            3_000_000 if n == 7 else 100 for n in range(600)
        ]
        (entry,) = ps.get_entries([found[7]])
        assert entry is not None
        assert entry.body == b"\x07" * 3_000_000

    @requires("journal")
    def test_a_world_keeps_everything_unless_told_otherwise(self, ps: Penstock, clock: ManualClock) -> None:
        world = ps.journal("w")
        world.append([Entry("k")])
        clock.advance(3650 * 86_400)
        sweep_all(ps)
        assert len(world.scan()) == 1

    @requires("journal")
    def test_a_world_forgets_by_age_where_it_was_told_to(self, ps: Penstock, clock: ManualClock) -> None:
        world = ps.journal("w")
        (old,) = world.append([Entry("k", b"old", vector=[1.0])])
        world.configure(retention_s=60)
        clock.advance(50)
        world.append([Entry("k", b"young")])
        clock.advance(20)
        sweep_all(ps)
        assert bodies(world.scan()) == [b"young"]
        assert ps.get_entries([old]) == [None]
        stats = world.stats()
        assert (stats["entries"], stats["vectors"], stats["first_seq"], stats["last_seq"]) == (1, 0, 2, 2)

    @requires("journal")
    def test_a_world_forgets_by_size_where_it_was_told_to(self, ps: Penstock) -> None:
        world = ps.journal("w")
        world.configure(max_bytes=5000)
        for n in range(20):
            world.append([Entry("k", b"%03d" % n * 300)])
        sweep_all(ps)
        left = world.scan()
        assert [entry.seq for entry in left] == list(range(21 - len(left), 21))
        assert 0 < len(left) < 20
        assert world.stats()["bytes"] <= 5000

    @requires("journal")
    def test_a_limit_of_a_world_that_cannot_be_is_refused(self, ps: Penstock) -> None:
        world = ps.journal("w")
        world.append([Entry("k")])
        for wrong in (0, -1, "1", float("nan"), float("inf"), True, 10**30):
            with pytest.raises(InvalidMessage):
                world.configure(retention_s=cast(Any, wrong))
            with pytest.raises(InvalidMessage):
                world.configure(max_bytes=cast(Any, wrong))
        with pytest.raises(InvalidMessage):
            world.configure(max_bytes=cast(Any, 1.5))
        with pytest.raises(InvalidMessage):
            world.configure(retention_s=0.0001)
        sweep_all(ps)
        assert len(world.scan()) == 1

    @requires("journal")
    def test_a_whole_number_is_a_limit_in_bytes_however_it_is_written(self, ps: Penstock) -> None:
        world = ps.journal("w")
        world.configure(max_bytes=cast(Any, 1e6))
        world.append([Entry("k", bytes(999_000)), Entry("k", bytes(999_000))])
        sweep_all(ps)
        assert len(world.scan()) == 1
