"""What docs/semantics.md says of time is what the calls do."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from penstock import NewMessage, Queue
from penstock.backends.embedded import keys
from penstock.backends.embedded.keys import Due
from tests.docs.pages import DOCS, table
from tests.unit.memory_system import MemorySystem

PAGE = DOCS / "semantics.md"

CALLS: dict[str, Callable[[Queue], object]] = {
    "lease": lambda q: q.lease(1),
    "every read": lambda q: q.stats(),
    "enqueue": lambda q: q.enqueue(b""),
    "upsert": lambda q: q.upsert([NewMessage(b"")]),
    "ack": lambda q: q.ack([]),
    "nack": lambda q: q.nack([]),
    "reject": lambda q: q.reject([]),
    "extend": lambda q: q.extend([], lease_s=1),
    "move": lambda q: q.move([], "other"),
    "redrive": lambda q: q.redrive(),
    "purge": lambda q: q.purge("dead"),
}

CHANGES: dict[str, tuple[Due, Callable[[Queue], object]]] = {
    "a delay passes": (Due.DELAY, lambda q: q.enqueue(b"", delay_s=1)),
    "a ttl passes": (Due.TTL, lambda q: q.enqueue(b"", ttl_s=1)),
    "a lease ends": (Due.LEASE, lambda q: [q.enqueue(b""), q.lease(1, lease_s=1)]),
}


def named(change: str) -> set[str]:
    """The calls that the table says a change is applied before."""
    (row,) = [row for row in table(PAGE, "Time") if row["change"] == change]
    return {call for call in CALLS if re.search(rf"\b{call}\b", row["applied"].split(";")[0])}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("change", CHANGES)
def test_time_is_applied_before_the_calls_that_the_table_names_and_no_other(change: str, call: str) -> None:
    system = MemorySystem()
    system.create("other")
    q = system.create("q")
    kind, arrange = CHANGES[change]
    arrange(q)
    system.clock.advance(2)
    CALLS[call](q)
    due = [keys.parse_due(key) for key, _ in system.rows("due")]
    left = [what for what, at_ns, _, _ in due if what == kind and at_ns <= system.clock.now_ns()]
    assert (left == []) == (call in named(change))
