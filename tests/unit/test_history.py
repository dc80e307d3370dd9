"""Pages of a journal: each costs what it holds, wherever in a frame it starts."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import Event, NewMessage
from penstock.codec import frame
from tests.unit.memory_system import MemorySystem


def test_a_page_builds_no_events_but_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    system = MemorySystem()
    q = system.create("q")
    q.enqueue_many([NewMessage(b"")] * 3000)
    q.nack([delivery.receipt for delivery in q.lease(3000, consumer="c")], reason="why")
    whole = list(q.events(limit=9000))
    assert [event.seq for event in whole] == list(range(1, 9001))
    built: list[int] = []

    def counted(*args: Any) -> Event:
        built.append(1)
        return Event(*args)

    monkeypatch.setattr(frame, "Event", counted)
    for after in (0, 1, 2999, 3000, 3001, 5500, 8999, 9000):
        built.clear()
        page = list(q.events(after=after, limit=700))
        assert page == whole[after : after + 700]
        assert len(built) == len(page)
