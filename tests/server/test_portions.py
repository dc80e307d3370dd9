"""Answers of a bounded size: how much of what was asked for is in one, and that nothing is lost."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import penstock
from penstock import InvalidMessage, NewMessage, Penstock
from penstock.event import Entry
from penstock.message import Page
from penstock.server.portions import FIRST, paged, portioned
from penstock.server_config import Limits
from tests.http.running import Running
from tests.server.rest.api import Api, api

#: 152 messages of 10,000 bytes fit, with what they have besides.
LIMITS = Limits(max_answer_bytes=1_600_000)


class Item:
    def __init__(self, size_bytes: int) -> None:
        self.payload = bytes(size_bytes)
        self.headers: dict[str, str] = {}


def taken(sizes: list[int], wanted: int, most_bytes: int) -> tuple[int, list[int]]:
    """How many came, and what was asked for each time."""
    items, asked = [Item(size) for size in sizes], []

    def take(count: int) -> list[Item]:
        asked.append(count)
        some, items[:] = items[:count], items[count:]
        return some

    return len(portioned(take, wanted, most_bytes)), asked


def test_few_are_taken_at_once_whatever_their_size() -> None:
    assert taken([10**6] * 200, FIRST, 1024) == (FIRST, [FIRST])
    assert taken([], 5, 1024) == (0, [5])


def test_small_ones_are_taken_in_two_portions_and_large_ones_until_it_is_full() -> None:
    assert taken([10] * 5000, 4000, 10**7) == (4000, [FIRST, 3900])
    assert taken([10] * 150, 4000, 10**7) == (150, [FIRST, 3900])
    assert taken([10**6] * 5000, 4000, 10**7) == (FIRST, [FIRST])
    count, asked = taken([10**4] * 5000, 4000, 10**7)
    assert 900 < count < 1000
    assert len(asked) == 2


def test_the_largest_so_far_counts_for_what_may_come() -> None:
    count, asked = taken([*[10] * 99, 10**5, *[10] * 10_000], 5000, 10**6)
    assert count > 500
    assert max(asked) == FIRST


@pytest.mark.parametrize("count", [0, 99, 100, 101, 250, 1000])
def test_pages_go_on_where_an_answer_was_full(count: int) -> None:
    items: Any = [Item(10_000) for _ in range(count)]

    def take(after: str | None, limit: int) -> Page:
        at = int(after or 0)
        end = at + limit
        return Page(items[at:end], str(end) if end < count else None)

    found, after, pages = [], None, 0
    while True:
        page = paged(take, after, 1000, 1_600_000)
        found += page.items
        pages, after = pages + 1, page.next
        if after is None:
            break
    assert found == items
    assert pages == max(1, -(-count // 152))  # With what a message has besides its payload.


@pytest.fixture
def full(ps: Penstock) -> Penstock:
    ps.queue("q").enqueue_many([NewMessage(b"%06d" % n + bytes(9994)) for n in range(400)])
    return ps


def test_by_rest_a_lease_and_a_page_have_what_fits(full: Penstock) -> None:
    with api(full, limits=LIMITS) as rest:
        listed = pages(rest)
        assert [len(page) for page in listed] == [152, 152, 96]
        assert len({one["id"] for page in listed for one in page}) == 400
        assert len(rest.ok("GET", "/queues/q/peek?limit=10000")["messages"]) == 152
        assert len(rest.ok("GET", "/queues/q/peek?limit=10000&offset=300")["messages"]) == 100
        leases = [leased(rest) for _ in range(4)]
        assert leases == [152, 152, 96, 0]
    assert full.queue("q").stats().leased == 400


def test_by_rest_a_part_of_a_journal_has_what_fits_and_nothing_is_left_out(full: Penstock) -> None:
    with api(full, limits=LIMITS) as rest:
        full.journal("w").append([Entry(f"k{n % 2}", bytes(10_000)) for n in range(400)])
        parts, after = [], 0
        while True:
            part = rest.ok("GET", f"/journals/w/entries?limit=10000&after={after}")
            if not part["entries"]:
                break
            parts.append([entry["seq"] for entry in part["entries"]])
            after = part["last_seq"]
        assert [len(part) for part in parts] == [152, 152, 96]
        assert [seq for part in parts for seq in part] == list(range(1, 401))
        few = rest.ok("GET", "/journals/w/entries?limit=7&kinds=k1&after=300")
        assert [entry["seq"] for entry in few["entries"]] == list(range(302, 316, 2))
        assert few["last_seq"] == 314


def pages(rest: Api) -> list[list[Any]]:
    found, after = [], ""
    while True:
        page = rest.ok("GET", f"/queues/q/messages?limit=10000{after}")
        found.append(page["messages"])
        if page["next"] is None:
            return found
        after = f"&after={page['next']}"


def leased(rest: Api) -> int:
    return len(rest.ok("POST", "/queues/q/lease", {"max_messages": 10_000})["deliveries"])


@contextmanager
def remote(ps: Penstock) -> Iterator[Penstock]:
    server = Running(ps, limits=LIMITS)
    try:
        with penstock.open(server.url) as client:
            yield client
    finally:
        server.stop()


def test_by_native_calls_too(full: Penstock) -> None:
    with remote(full) as client:
        q = client.queue("q")
        assert len(list(q.iter())) == 400
        assert len(q.list(limit=10_000).items) == 152
        assert len(q.peek(10_000)) == 152
        assert [len(q.lease(10_000, wait_s=wait_s)) for wait_s in (0, 5, 0)] == [152, 152, 96]
        for wrong in (-1, 2**63):
            for ask in (lambda: q.list(limit=wrong), lambda: q.peek(wrong), lambda: q.lease(wrong)):  # noqa: B023
                with pytest.raises(InvalidMessage, match="accepted"):
                    ask()
