"""Answers of a bounded size: many messages are taken in portions, as long as there is room.

An answer is whole in memory before it is sent, several times over: one request for ten thousand large ones
would take the server down, and everybody with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from penstock.event import Entry
from penstock.message import MAX_COUNT, Page

#: So many are taken at once, whatever their size; it tells how many more there is room for.
FIRST = 100
#: Of a message besides its payload and headers, and of an entry besides its body.
FIELDS_BYTES = 512


class _Sized(Protocol):
    @property
    def payload(self) -> bytes: ...

    @property
    def headers(self) -> Mapping[str, str]: ...


S = TypeVar("S")


def size_of_message(one: _Sized) -> int:
    return len(one.payload) + sum(map(len, one.headers.values())) + FIELDS_BYTES


def size_of_entry(one: Entry) -> int:
    numbers = 9 * len(one.vector or ())
    return len(one.body) + numbers + sum(map(len, [*one.labels, *one.flags])) + FIELDS_BYTES


def portioned(
    take: Callable[[int], Sequence[S]],
    wanted: int,
    most_bytes: int,
    size_of: Callable[[Any], int] = size_of_message,
) -> Sequence[S]:
    """What `take` gives, again and again, until nothing more comes, all are there, or the answer is full."""
    if not FIRST < wanted <= MAX_COUNT:
        return take(wanted)  # What cannot be is the store's to refuse.
    found: list[S] = []
    portion, largest, left_bytes = FIRST, 1, most_bytes
    while portion > 0:
        some = take(portion)
        found += some
        if len(some) < portion:
            break
        sizes = [size_of(one) for one in some]
        left_bytes, largest = left_bytes - sum(sizes), max(largest, *sizes)
        portion = min(wanted - len(found), left_bytes // largest)
    return found


def peeked(take: Callable[[int, int], Sequence[S]], wanted: int, offset: int, most_bytes: int) -> Sequence[S]:
    """The same where what follows is told by how much came before."""

    def more(count: int) -> Sequence[S]:
        nonlocal offset
        found = take(count, offset)
        offset += len(found)
        return found

    return portioned(more, wanted, most_bytes)


def paged(take: Callable[[str | None, int], Page], after: str | None, wanted: int, most_bytes: int) -> Page:
    """The same of pages: the next one begins where the answer is full."""
    last: Page | None = None

    def more(count: int) -> Sequence[_Sized]:
        nonlocal last
        if last is not None and last.next is None:
            return ()
        last = take(after if last is None else last.next, count)
        return last.items

    found = portioned(more, wanted, most_bytes)
    return Page(list(found), last and last.next)  # type: ignore[arg-type]  # Messages, as in each of the pages.
