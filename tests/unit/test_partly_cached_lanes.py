"""Rows that come to lanes of which only the first are cached: all are delivered, in order, and counted."""

from __future__ import annotations

import pytest

from penstock import NewMessage
from penstock.backends.embedded import lanes
from tests.unit.memory_system import MemorySystem


@pytest.mark.parametrize("settings", [{}, {"fifo": True}])
def test_what_is_enqueued_behind_a_cache_is_counted_and_delivered_in_order(
    settings: dict[str, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lanes, "CACHED_ROWS", 8)
    monkeypatch.setattr(lanes, "CACHED_ROWS_MIN", 4)
    system = MemorySystem()
    q = system.create("q", **settings)
    sent: dict[str, list[bytes]] = {"a": [], "b": []}
    found: dict[str, list[bytes]] = {"a": [], "b": []}

    def enqueue(count: int) -> None:
        messages = []
        for n in range(count):
            key = "aab"[n % 3]
            payload = b"%d" % len(sent[key])
            messages.append(NewMessage(payload, fairness_key=key))
            sent[key].append(payload)
        q.enqueue_many(messages)

    def lease(count: int) -> bool:
        held = q.lease(count)
        for one in held:
            found[one.fairness_key].append(one.payload)
        q.ack([one.receipt for one in held])
        return bool(held)

    enqueue(30)
    for _ in range(40):
        lease(7)
        enqueue(9)
        left = {key: len(sent[key]) - len(found[key]) for key in sent}
        assert {one.key: one.ready for one in q.key_stats()} == left
    while lease(7):
        pass
    assert found == sent
    assert system.problems() == []
