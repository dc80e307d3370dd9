"""State: small values by key, beside the queues."""

from __future__ import annotations

from typing import Any, cast

import pytest

from penstock import InvalidMessage, Penstock, Queue
from penstock.testing.harness import BackendCase


class StateSuite(BackendCase):
    """`ps.state`."""

    def test_a_value_is_kept_until_it_is_replaced_or_deleted(self, ps: Penstock) -> None:
        assert ps.state.get("k") is None
        ps.state.put("k", b"1")
        assert ps.state.get("k") == b"1"
        ps.state.put("k", b"2")
        assert ps.state.get("k") == b"2"
        ps.state.delete("k")
        assert ps.state.get("k") is None

    def test_deleting_what_is_not_there_is_fine(self, ps: Penstock) -> None:
        ps.state.delete("absent")

    def test_an_empty_value_is_a_value(self, ps: Penstock) -> None:
        ps.state.put("k", b"")
        assert ps.state.get("k") == b""

    def test_keys_are_kept_apart(self, ps: Penstock) -> None:
        keys = ["a", "ab", "a/b", "A", "ä", "a\u0308", " a", "x" * 1024]
        for number, key in enumerate(keys):
            ps.state.put(key, b"%d" % number)
        assert [ps.state.get(key) for key in keys] == [b"%d" % number for number in range(len(keys))]

    def test_what_is_no_key_or_no_value_is_refused(self, ps: Penstock) -> None:
        for wrong in ("", "a\0b", "x" * 1025, None, 7, b"k"):
            for call in (ps.state.get, ps.state.delete, lambda key: ps.state.put(key, b"")):
                with pytest.raises(InvalidMessage):
                    call(cast(Any, wrong))
        for value in ("text", None, 7, bytearray(b"x")):
            with pytest.raises(InvalidMessage):
                ps.state.put("k", cast(Any, value))
        assert ps.state.get("k") is None

    def test_a_large_value_is_kept(self, ps: Penstock) -> None:
        value = bytes(range(256)) * 8192
        ps.state.put("k", value)
        assert ps.state.get("k") == value

    def test_state_has_nothing_to_do_with_queues_of_the_same_name(self, ps: Penstock, q: Queue) -> None:
        ps.state.put("q", b"state")
        q.enqueue(b"message")
        ps.delete_queue("q")
        assert ps.state.get("q") == b"state"
