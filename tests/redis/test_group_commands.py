"""Consumer groups from the command line: who there is, what each has, and how one goes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock import NewMessage
from penstock.testing.harness import receipts
from tests.cli.calling import Answer, Cli
from tests.redis.stores import Place

Call = Callable[..., Answer]


@pytest.fixture
def place() -> Iterator[Place]:
    place = Place("streams")
    yield place
    place.close()


@pytest.fixture
def call(place: Place, tmp_path: Path) -> Call:
    """Commands on a queue with three messages: one died in the second group, and one is leased there."""
    q = place.open().create_queue("q", lease_s=600)
    for name in ("first", "second"):
        q.create_group(name)
    q.enqueue_many([NewMessage(b"%d" % n) for n in range(3)])
    dead, _ = q.lease(2, group="second")
    q.reject(receipts([dead]), reason="no such address")
    cli = Cli(tmp_path)

    def call(*words: str, code: int = 0) -> Answer:
        return cli(*words, "--store", place.url, code=code)

    return call


def test_groups_are_listed_with_what_each_has(call: Call) -> None:
    assert call("groups", "list", "q", "--json").objects == [
        {"queue": "q", "name": "first", "pending": 0, "lag": 3, "consumers": 0, "dead": 0},
        {"queue": "q", "name": "second", "pending": 1, "lag": 1, "consumers": 1, "dead": 1},
    ]
    assert call("groups", "list", "q").lines[2].split() == ["second", "1", "1", "1", "1"]


def test_a_queue_is_shown_as_a_group_has_it(call: Call) -> None:
    of = ("--group", "second")
    numbers = call("stats", "q", *of, "--json").object
    assert [numbers[name] for name in ("queue", "ready", "leased", "dead")] == ["q", 1, 1, 1]
    (dead,) = call("list", "q", "--state", "dead", *of, "--json").objects
    assert call("get", "q", dead["id"], *of, "--json").object["reason"] == "no such address"
    assert call("get", "q", dead["id"], "--json").object["state"] == "ready"
    assert call("events", "q", *of, "--kind", "dead", "--json").object["message_id"] == dead["id"]
    assert call("redrive", "q", *of).out == "1 redriven, group 'second' of queue 'q'\n"
    assert call("purge", "q", *of, "--yes").out == "2 purged, group 'second' of queue 'q'\n"
    assert call("stats", "q", "--json").object["ready"] == 3, "of the other group nothing went"
    assert "name it" in call("stats", *of, code=2).err


def test_a_group_is_made_and_dropped(call: Call) -> None:
    call("groups", "create", "q", "third")
    assert "add --yes" in call("groups", "drop", "q", "third", code=2).err
    dropped = call("groups", "drop", "q", "third", "--yes", "--json").object
    assert dropped == {"queue": "q", "name": "third", "dropped": True, "messages": 3}
    assert "'third'" in call("groups", "drop", "q", "third", "--yes", code=2).err
    assert "own line" in call("groups", "drop", "q", "first", "--yes", code=2).err
    assert [one["name"] for one in call("groups", "list", "q", "--json").objects] == ["first", "second"]


def test_where_there_are_no_groups_that_is_said(call: Call, tmp_path: Path) -> None:
    place = Place("lists")
    place.open().create_queue("q")
    refused = Cli(tmp_path)("groups", "list", "q", "--store", place.url, code=1)
    assert "consumer_groups" in refused.err
    place.close()
    call("queues", "create", "new")
    assert call("groups", "list", "new", code=1).err == "queue 'new' has no groups yet\n"
