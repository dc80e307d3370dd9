"""penstock peek, get, list, due: look without touching."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli import values
from penstock.cli.columns import DUE, MESSAGE, MESSAGES
from penstock.cli.command import command
from penstock.cli.consume import given
from penstock.cli.exits import Exit, wording
from penstock.cli.options import Limit, OfGroup, QueueName, Raw, StateName, line_of
from penstock.cli.rows import Row, row
from penstock.cli.session import Session
from penstock.clock import NS_PER_S, SystemClock
from penstock.errors import InvalidMessage, MessageNotFound

if TYPE_CHECKING:
    from penstock import Message, Penstock, Queue

app = typer.Typer(add_completion=False)

_PAGE = 500


@command(app, "peek")
def peek(
    session: Session,
    queue: QueueName,
    limit: Limit = 10,
    offset: Annotated[int, typer.Option("--offset", min=0, help="Pass over so many first.")] = 0,
    raw: Raw = False,
) -> Exit:
    """Show ready messages, without leasing them."""
    with session.open() as ps:
        found = ps.queue(queue).peek(limit, offset)
    return _messages(session, iter(found), "ready", raw, f"nothing is ready in queue {queue!r}")


@command(app, "get")
def get(
    session: Session,
    queue: QueueName,
    ids: Annotated[
        list[str], typer.Argument(metavar="ID...", help="Message ids; - reads them from standard input.")
    ],
    group: OfGroup = None,
    raw: Raw = False,
) -> Exit:
    """Show messages by id, in full."""
    wanted, missing, shown = list(given(ids, "id")), 0, 0
    with session.open() as ps:
        q = line_of(ps, queue, group)
        for message_id in wanted:
            try:
                message = q.get(message_id)
            except (MessageNotFound, InvalidMessage) as error:
                session.out.note(wording(error, session.given))
                missing += 1
                continue
            if raw:
                session.out.raw([message.payload])
                continue
            if shown and not session.out.as_json:
                session.out.say("")
            session.out.record(row(message), MESSAGE)
            shown += 1
    return Exit.NOTHING if missing or not wanted else Exit.DONE


@command(app, "list")
def list_(
    session: Session,
    queue: QueueName,
    state: Annotated[StateName, typer.Option("--state", "-s", help="The state to list.")] = StateName.ready,
    key: Annotated[str | None, typer.Option("--key", "-k", help="Only this fairness key.")] = None,
    limit: Limit = 100,
    after: Annotated[
        str | None, typer.Option("--after", metavar="POSITION", help="Go on where an earlier list ended.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All of them, without a limit.")] = False,
    group: OfGroup = None,
    raw: Raw = False,
) -> Exit:
    """List the messages of one state."""
    with session.open() as ps:
        listing = Listing(line_of(ps, queue, group), state.value, key, after, None if everything else limit)
        exit_code = _messages(
            session, iter(listing), state.value, raw, f"nothing is {state.value} in queue {queue!r}"
        )
    if listing.next is not None:
        session.out.note(f"there are more: --after {listing.next}, or --all")
    return exit_code


class Listing:
    """Messages page by page; `next` is where the limit ended it, if there are more."""

    def __init__(
        self, queue: Queue, state: str, key: str | None, after: str | None, limit: int | None
    ) -> None:
        self._page = functools.partial(queue.list, state, key)
        self._after = after
        self._left = limit
        self.next: str | None = None

    def __iter__(self) -> Iterator[Message]:
        while self._left is None or self._left > 0:
            page = self._page(
                after=self._after, limit=_PAGE if self._left is None else min(_PAGE, self._left)
            )
            yield from page.items
            self._after = page.next
            if page.next is None:
                return
            if self._left is not None:
                self._left -= len(page.items)
        if self._page(after=self._after, limit=1).items:
            self.next = self._after


def _messages(session: Session, found: Iterator[Message], state: str, raw: bool, empty: str) -> Exit:
    if raw:
        shown = session.out.raw(message.payload for message in found)
    else:
        shown = session.out.rows((row(message) for message in found), MESSAGES[state], empty)
    return Exit.DONE if shown else Exit.NOTHING


@command(app, "due")
def due(
    session: Session,
    since: Annotated[
        int | None,
        typer.Option(
            "--since",
            metavar="TIME",
            parser=values.moment_ahead,
            help="From this time on: ISO 8601, or 15m for in 15 minutes.",
        ),
    ] = None,
    until: Annotated[
        int | None,
        typer.Option(
            "--until",
            metavar="TIME",
            parser=values.moment_ahead,
            help="Before this time, in the same forms.",
        ),
    ] = None,
    limit: Limit = 100,
    after: Annotated[
        str | None, typer.Option("--after", metavar="POSITION", help="Go on after this item's position.")
    ] = None,
) -> Exit:
    """Show what falls due across all queues, earliest first: leases, delays, ttls, retention, dedup.

    Unlike elsewhere, a duration counts forward: --until 1h is what falls due within the hour.
    """
    with session.open() as ps:
        shown = session.out.rows(_due(ps, since, until, limit, after), DUE, "nothing falls due")
    return Exit.DONE if shown else Exit.NOTHING


def _due(ps: Penstock, since: int | None, until: int | None, limit: int, after: str | None) -> Iterator[Row]:
    now_ns = SystemClock().now_ns()
    for item in ps.due(since, until, limit, after):
        yield {**row(item), "in_s": (item.at_ns - now_ns) / NS_PER_S}
