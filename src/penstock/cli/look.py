"""penstock peek, get, list, due: look without touching."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.columns import DUE, MESSAGE, MESSAGES
from penstock.cli.command import command
from penstock.cli.consume import given
from penstock.cli.exits import Exit, wording
from penstock.cli.options import Limit, QueueName, Raw, Since, StateName, Until
from penstock.cli.rows import Row, row
from penstock.cli.session import Session
from penstock.clock import NS_PER_S, SystemClock
from penstock.errors import MessageNotFound

if TYPE_CHECKING:
    from penstock import Message, Penstock, Queue

app = typer.Typer()

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
    raw: Raw = False,
) -> Exit:
    """Show messages by id, in full."""
    wanted, missing, shown = list(given(ids, "id")), 0, 0
    with session.open() as ps:
        q = ps.queue(queue)
        for message_id in wanted:
            try:
                message = q.get(message_id)
            except MessageNotFound as error:
                session.out.note(wording(error))
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
    raw: Raw = False,
) -> Exit:
    """List the messages of one state."""
    with session.open() as ps:
        found = _listed(session, ps.queue(queue), state.value, key, after, None if everything else limit)
        return _messages(session, found, state.value, raw, f"nothing is {state.value} in queue {queue!r}")


def _listed(
    session: Session, queue: Queue, state: str, key: str | None, after: str | None, limit: int | None
) -> Iterator[Message]:
    """Page by page; where the limit ends it, how to go on is told."""
    left = limit
    while True:
        page = queue.list(
            state, fairness_key=key, after=after, limit=_PAGE if left is None else min(_PAGE, left)
        )
        yield from page.items
        after = page.next
        if left is not None:
            left -= len(page.items)
        if after is None:
            return
        if left == 0:
            if queue.list(state, fairness_key=key, after=after, limit=1).items:
                session.out.note(f"there are more: --after {after}, or --all")
            return


def _messages(session: Session, found: Iterator[Message], state: str, raw: bool, empty: str) -> Exit:
    if raw:
        shown = session.out.raw(message.payload for message in found)
    else:
        shown = session.out.rows((row(message) for message in found), MESSAGES[state], empty)
    return Exit.DONE if shown else Exit.NOTHING


@command(app, "due")
def due(
    session: Session,
    since: Since = None,
    until: Until = None,
    limit: Limit = 100,
    after: Annotated[
        str | None, typer.Option("--after", metavar="POSITION", help="Go on after this item's position.")
    ] = None,
) -> Exit:
    """Show what falls due across all queues, earliest first: leases, delays, ttls, retention, dedup."""
    with session.open() as ps:
        shown = session.out.rows(_due(ps, since, until, limit, after), DUE, "nothing falls due")
    return Exit.DONE if shown else Exit.NOTHING


def _due(ps: Penstock, since: int | None, until: int | None, limit: int, after: str | None) -> Iterator[Row]:
    now_ns = SystemClock().now_ns()
    for item in ps.due(since, until, limit, after):
        yield {**row(item), "in_s": (item.at_ns - now_ns) / NS_PER_S}
