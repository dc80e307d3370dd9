"""penstock cursors: named positions in a queue's journal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.columns import CURSORS, EVENTS
from penstock.cli.command import Group, command
from penstock.cli.exits import Exit, next_step
from penstock.cli.options import Limit, QueueName
from penstock.cli.rows import Row, row
from penstock.cli.session import Session
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock import Cursor, Queue

app = typer.Typer(
    cls=Group, no_args_is_help=True, add_completion=False, help="Named positions in a queue's journal."
)

Name = Annotated[str, typer.Argument(metavar="CURSOR", help="The cursor.")]


@command(app, "list")
def list_(session: Session, queue: QueueName) -> Exit:
    """List the cursors of a queue, where each stands and what it has not read."""
    with session.open() as ps:
        shown = session.out.rows(_rows(ps.queue(queue)), CURSORS, f"queue {queue!r} has no cursors")
    return Exit.DONE if shown else Exit.NOTHING


@command(app, "open")
def open_(
    session: Session,
    queue: QueueName,
    name: Name,
    required: Annotated[
        bool,
        typer.Option(
            "--required", help="Keep what it has not read: events, and bodies of finished messages."
        ),
    ] = False,
) -> None:
    """Create a cursor at the beginning of the journal, or find the one that is there."""
    with session.open() as ps:
        q = ps.queue(queue)
        q.cursor(name, required=required)
        _show(session, q, name)


@command(app, "read")
def read(
    session: Session,
    queue: QueueName,
    name: Name,
    limit: Limit = 1000,
    commit: Annotated[
        bool, typer.Option("--commit", help="Count them as read once they are written out.")
    ] = False,
) -> Exit:
    """Show the events that a cursor has not read."""
    with session.open() as ps:
        cursor = _existing(session, ps.queue(queue), name)
        events = cursor.read(limit)
        session.out.rows((row(event) for event in events), EVENTS, f"cursor {name!r} has read everything")
        if commit and events:
            cursor.commit(events[-1].seq)
    return Exit.DONE if events else Exit.NOTHING


@command(app, "commit")
def commit(
    session: Session,
    queue: QueueName,
    name: Name,
    seq: Annotated[
        int,
        typer.Argument(metavar="SEQ", min=0, help="The last event that is read; an earlier one goes back."),
    ],
) -> None:
    """Set a cursor's position."""
    with session.open() as ps:
        q = ps.queue(queue)
        _existing(session, q, name).commit(seq)
        _show(session, q, name)


@command(app, "drop")
def drop(session: Session, queue: QueueName, name: Name) -> None:
    """Forget a cursor; it holds nothing back any more."""
    with session.open() as ps:
        _existing(session, ps.queue(queue), name).drop()
    if session.out.as_json:
        session.out.object({"queue": queue, "name": name, "dropped": True})
    session.out.say(f"cursor {name!r} of queue {queue!r} dropped")


def _rows(queue: Queue) -> list[Row]:
    last_seq = queue.stats().last_seq
    return [{**row(cursor), "unread": last_seq - cursor.position} for cursor in queue.cursors()]


def _show(session: Session, queue: Queue, name: str) -> None:
    for found in _rows(queue):
        if found["name"] == name:
            session.out.record({"queue": queue.name, **found}, CURSORS)


def _existing(session: Session, queue: Queue, name: str) -> Cursor:
    """A mistyped name is an error, not a new cursor."""
    known = [cursor.name for cursor in queue.cursors()]
    if name not in known:
        raise PenstockError(
            f"queue {queue.name!r} has no cursor {name!r}; it has: {', '.join(map(repr, known)) or 'none'}; "
            f"create it: {next_step(session.given, 'cursors', 'open', queue.name, name)}"
        )
    return queue.cursor(name)
