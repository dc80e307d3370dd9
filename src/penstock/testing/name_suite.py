"""Names: any character but NUL, 1 to 1,024 bytes of UTF-8, and none leaks into another."""

from __future__ import annotations

from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock import Entry, InvalidConfig, InvalidMessage, NewMessage, Penstock, PenstockError, Queue
from penstock.message import OWNED_HEADER_PREFIX
from penstock.testing.harness import BackendCase, ack, drain, errors, ids, requires, take, take_one

#: What separators, escapes, number formats and prefixes would trip over.
HOSTILE = [
    "a",
    "aa",
    "a/b",
    "a:b",
    "{a},b",
    "}",
    ",",
    "*",
    "a b",
    " ",
    "\n",
    "\x01",
    "\x7f",
    "a\x01",
    "%00",
    "\\",
    "..",
    "/",
    "0",
    "-1",
    "None",
    "é",
    "e\u0301",
    "日本語",
    "🚰",
    "\ufeff",
    "\uffff",
    "\U0010ffff",
    "x" * 1024,
    "é" * 512,
    "🚰" * 256,
]

#: What no name may be.
REFUSED = ["", "\0", "a\0", "x" * 1025, "é" * 512 + "x", "\ud800", None, 7, b"bytes", ["a"]]

#: Less the header names and the world that are Penstock's own.
names = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=40).filter(
    lambda name: not name.startswith(OWNED_HEADER_PREFIX) and name != "_penstock"
)


#: One test method, inherited by a suite for each backend, and given a fresh store by a fixture: on purpose.
_INHERITED = [HealthCheck.function_scoped_fixture, HealthCheck.differing_executors]


class Marked(str):
    """Text with something to it, as libraries for templates and numbers have."""


class Unreadable(dict[str, str]):
    """Headers whose contents cannot be asked for."""

    def items(self) -> Any:
        raise TypeError("no items")


class NameSuite(BackendCase):
    """Names of queues, keys, dedup ids, headers, cursors, worlds, state and consumers."""

    def test_queues_of_hostile_names_are_kept_apart(self, ps: Penstock) -> None:
        for name in HOSTILE:
            ps.create_queue(name).enqueue(name.encode())
        assert [one.name for one in ps.queues()] == sorted(HOSTILE)
        for name in HOSTILE:
            q = ps.queue(name)
            assert [message.payload for message in q.iter()] == [name.encode()]
            delivery = take_one(q)
            assert (delivery.queue, delivery.payload) == (name, name.encode())
            ack(q, [delivery])
            ps.delete_queue(name)
        assert ps.queues() == []

    def test_what_is_no_name_is_no_queue(self, ps: Penstock) -> None:
        for wrong in REFUSED:
            with pytest.raises((InvalidConfig, InvalidMessage), match="queue name"):
                ps.create_queue(cast(Any, wrong))
        assert ps.queues() == []

    @requires("fairness")
    def test_hostile_fairness_keys_are_kept_apart(self, q: Queue) -> None:
        keys = ["", *HOSTILE]
        q.enqueue_many([NewMessage(key.encode(), fairness_key=key) for key in keys])
        for key in keys:
            (message,) = q.list(fairness_key=key).items
            assert (message.fairness_key, message.payload) == (key, key.encode())
        held = take(q, len(keys))
        assert sorted(delivery.fairness_key for delivery in held) == sorted(keys)
        for key in keys:
            (message,) = q.list("leased", fairness_key=key).items
            assert message.payload == key.encode()
        ack(q, held)

    @requires("fifo", "fairness")
    def test_hostile_fifo_keys_are_kept_apart(self, ps: Penstock) -> None:
        q = ps.create_queue("line", fifo=True)
        q.enqueue_many([NewMessage(b"%d" % n, fairness_key=key) for n in (1, 2) for key in HOSTILE])
        first = take(q, len(HOSTILE))
        assert {delivery.payload for delivery in first} == {b"1"}
        assert q.lease(100) == []
        ack(q, first)
        assert drain(q) == [b"2"] * len(HOSTILE)

    @requires("idempotent_enqueue")
    def test_hostile_dedup_ids_are_kept_apart(self, q: Queue) -> None:
        results = q.enqueue_many([NewMessage(dedup_id=name) for name in HOSTILE])
        assert not any(result.duplicate for result in results)
        again = q.enqueue_many([NewMessage(dedup_id=name) for name in HOSTILE])
        assert [result.id for result in again] == [result.id for result in results]
        assert [delivery.dedup_id for delivery in take(q, len(HOSTILE))] == HOSTILE

    def test_hostile_header_names_and_values_come_back(self, q: Queue) -> None:
        headers = {name: f"{name}\0" for name in HOSTILE}
        message_id = q.enqueue(b"", headers=headers)
        assert q.get(message_id).headers == headers
        assert take_one(q).headers == headers

    def test_hostile_consumers_are_shown(self, q: Queue) -> None:
        q.enqueue_many([NewMessage()] * len(HOSTILE))
        for name in HOSTILE:
            assert q.get(take_one(q, consumer=name).id).consumer == name

    @requires("journal")
    def test_hostile_cursors_are_kept_apart(self, q: Queue) -> None:
        q.enqueue_many([NewMessage()] * len(HOSTILE))
        for number, name in enumerate(HOSTILE):
            q.cursor(name).commit(number)
        assert {one.name: one.position for one in q.cursors()} == {n: i for i, n in enumerate(HOSTILE)}
        for name in HOSTILE[::2]:
            q.cursor(name).drop()
        assert {one.name for one in q.cursors()} == set(HOSTILE[1::2])

    @requires("journal")
    def test_hostile_worlds_and_entry_names_are_kept_apart(self, ps: Penstock) -> None:
        for name in HOSTILE:
            ps.journal(name).append([Entry(name, name.encode(), HOSTILE, [name])])
        for name in HOSTILE:
            (entry,) = ps.journal(name).scan(kinds=[name], labels=HOSTILE[:3], flags=[name])
            assert (entry.body, entry.world, entry.labels) == (name.encode(), name, HOSTILE)

    def test_hostile_state_keys_are_kept_apart(self, ps: Penstock) -> None:
        for name in HOSTILE:
            ps.state.put(name, name.encode())
        assert [ps.state.get(name) for name in HOSTILE] == [name.encode() for name in HOSTILE]
        for name in HOSTILE[::2]:
            ps.state.delete(name)
        assert [ps.state.get(name) is None for name in HOSTILE] == [n % 2 == 0 for n in range(len(HOSTILE))]

    def test_a_message_dies_and_comes_back_between_queues_of_hostile_names(self, ps: Penstock) -> None:
        for name in HOSTILE:
            dead = ps.create_queue(name + "!" if len(name.encode()) < 1024 else "y" + name[1:])
            q = ps.create_queue(name, dead_letter=dead.name)
            q.enqueue(name.encode())
            q.reject([take_one(q).receipt], reason=name)
            assert dead.redrive() == 1
            assert drain(q) == [name.encode()]
            ps.replace_queues([])

    @requires("fairness", "idempotent_enqueue")
    def test_what_is_no_name_is_refused_and_its_neighbours_are_not(self, q: Queue) -> None:
        for wrong in REFUSED:
            name = cast(Any, wrong)
            batch = [NewMessage(b"first")]
            batch += [NewMessage(fairness_key=name)] if name != "" else []
            batch += [NewMessage(dedup_id=name)] if name is not None else []
            batch += [NewMessage(headers={name: "value"})] if not isinstance(name, list) else []
            batch += [NewMessage(b"last")]
            found = errors(q.enqueue_many(batch))
            assert found == [None, *["InvalidMessage"] * (len(batch) - 2), None], wrong
        assert q.length() == 2 * len(REFUSED)

    @requires("fairness", "idempotent_enqueue")
    def test_a_kind_of_str_is_stored_as_the_text_that_it_is(self, q: Queue) -> None:
        for new in (
            NewMessage(b"", {Marked("h"): Marked("v")}, Marked("k")),
            NewMessage(b"", {Marked("h"): Marked("v")}, Marked("k"), dedup_id=Marked("d")),
        ):
            results = q.enqueue_many([NewMessage(b"before"), new, NewMessage(b"after")])
            assert errors(results) == [None] * 3
            m = q.get(ids(results)[1])
            found = [*m.headers.items(), (m.fairness_key, m.dedup_id or "d")]
            assert found == [("h", "v"), ("k", "d")]
            assert {type(text) for pair in found for text in pair} == {str}

    @requires("journal")
    def test_an_entrys_kinds_of_str_are_stored_as_the_text_that_they_are(self, ps: Penstock) -> None:
        world = ps.journal("w")
        world.append([Entry(Marked("k"), b"", [Marked("l")], [Marked("f")])])
        (entry,) = world.scan()
        assert (entry.kind, entry.labels, entry.flags) == ("k", ["l"], ["f"])

    def test_an_item_that_cannot_be_read_fails_itself_alone(self, q: Queue) -> None:
        for call in (q.enqueue_many, q.upsert):
            results = call([NewMessage(b"before"), NewMessage(b"", Unreadable(a="b")), NewMessage(b"after")])
            assert errors(results) == [None, "InvalidMessage", None]
        assert q.length() == 4

    @requires("journal")
    def test_what_is_no_name_is_no_consumer_cursor_or_world(self, ps: Penstock, q: Queue) -> None:
        q.enqueue(b"x")
        for wrong in REFUSED:
            name = cast(Any, wrong)
            with pytest.raises(InvalidMessage):
                q.cursor(name)
            with pytest.raises(InvalidMessage):
                ps.journal(name).append([Entry("k")])
            if name != "":
                with pytest.raises(InvalidMessage):
                    q.lease(consumer=name)
        assert drain(q) == [b"x"]

    def test_an_error_about_a_name_says_what_is_accepted(self, ps: Penstock, q: Queue) -> None:
        long = "x" * 1025
        with pytest.raises(PenstockError, match="1024"):
            ps.create_queue(long)
        with pytest.raises(PenstockError, match="1024"):
            ps.state.put(long, b"")
        with pytest.raises(PenstockError, match="1024"):
            q.enqueue(b"", headers={long: ""})

    @requires("fairness", "idempotent_enqueue", "journal")
    @settings(max_examples=25, suppress_health_check=_INHERITED)
    @given(pair=st.lists(names, min_size=2, max_size=2, unique=True))
    def test_any_two_names_are_kept_apart(self, ps: Penstock, pair: list[str]) -> None:
        ps.replace_queues([])
        for name in pair:
            q = ps.create_queue(name)
            batch = [NewMessage(one.encode(), {one: one}, one, dedup_id=one) for one in pair]
            assert errors(q.enqueue_many(batch)) == [None, None]
            q.cursor(name, required=True)
            ps.journal(name).append([Entry(name)])
        for name in pair:
            q = ps.queue(name)
            assert [one.name for one in q.cursors()] == [name]
            assert ps.journal(name).scan()[-1].kind == name
            for one in pair:
                (message,) = q.list(fairness_key=one).items
                assert (message.queue, message.headers) == (name, {one: one})
