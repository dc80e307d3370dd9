"""Scripts that try to do harm are stopped, each of them, and nobody else notices."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from penstock import HookError, ManualClock, NewMessage, Penstock
from penstock.hooks.scripts import Script
from tests.hooks.hostile import CHANGES, STOPPED

#: A neighbour of every hostile script.
GOOD = """
calls = (calls or 0) + 1
function on_enqueue(message)
  message.fairness_key = string.format("%s-%d", message.headers.tenant, calls)
end
"""


@pytest.fixture(scope="module")
def ps() -> Iterator[Penstock]:
    with penstock.open("memory:", clock=ManualClock()) as opened:
        opened.create_queue("good", on_enqueue=GOOD)
        opened.create_queue("plain")
        opened.state.put("large", bytes(60_000))
        yield opened


@pytest.fixture
def evil(ps: Penstock) -> Iterator[str]:
    """The name of a queue that is deleted, and after which the others are as they were."""
    descriptors = set(os.listdir("/proc/self/fd"))
    yield "evil"
    if ps.queues()[0].name == "evil":
        ps.delete_queue("evil")
    good = ps.queue("good")
    results = good.enqueue_many([NewMessage(headers={"tenant": name}) for name in ("a", "b")])
    assert [result.error for result in results] == [None, None]
    assert sorted(message.fairness_key for message in good.peek(10)) == ["a-1", "b-1"]
    good.purge()
    ps.queue("plain").enqueue(b"x")
    assert ps.queue("plain").purge() == 1
    assert len(os.listdir("/proc/self/fd")) <= len(descriptors) + 1  # The line to a helper.
    assert not Path("/tmp/penstock-escaped").exists()
    assert ps.check().ok


@pytest.mark.parametrize("name", [*STOPPED, *CHANGES])
def test_a_hostile_script_on_enqueue_lets_nothing_in_and_harms_nobody(
    name: str, ps: Penstock, evil: str
) -> None:
    body, said = {**STOPPED, **CHANGES}[name]
    q = ps.create_queue(evil, on_enqueue=f"function on_enqueue(message)\n  {body}\nend")
    results = q.enqueue_many([NewMessage(b"one"), NewMessage(b"two", headers={"a": "b"})])
    for result in results:
        assert isinstance(result.error, HookError), (name, result)
        assert re.search(said, str(result.error)), (name, result)
        assert str(result.error).startswith("queue 'evil': on_enqueue:")
    assert q.length() == 0


@pytest.mark.parametrize("name", STOPPED)
def test_a_hostile_script_on_failure_leaves_it_to_the_queues_settings(
    name: str, ps: Penstock, evil: str
) -> None:
    body, said = STOPPED[name]
    q = ps.create_queue(
        evil, on_failure=f"function on_failure(message)\n  {body}\nend", retry={"delay_s": 5}, max_attempts=2
    )
    q.enqueue_many([NewMessage(b"one"), NewMessage(b"two")])
    assert [outcome.error for outcome in q.nack([d.receipt for d in q.lease(2)], reason="why")] == [None] * 2
    assert (q.stats().delayed, q.stats().leased) == (2, 0)
    (script,) = scripts(ps, evil)
    assert script.failures == 2
    assert re.search(said, script.last_failure)


def scripts(ps: Penstock, queue: str) -> list[Script]:
    engine = ps._default.engine  # type: ignore[attr-defined]
    return list(engine.queues[queue].scripts.values())
