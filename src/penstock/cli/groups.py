"""penstock groups: the consumer groups of a queue, each of which sees every message."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.columns import GROUPS
from penstock.cli.command import Group, command
from penstock.cli.exits import Exit
from penstock.cli.options import QueueName, Yes, confirmed
from penstock.cli.progress import waiting
from penstock.cli.rows import Row, row
from penstock.cli.session import Session

if TYPE_CHECKING:
    from penstock import Queue

app = typer.Typer(
    cls=Group,
    no_args_is_help=True,
    add_completion=False,
    help="Consumer groups of a queue: who sees every message, and how far it is.",
)

Name = Annotated[str, typer.Argument(metavar="GROUP", help="The group.")]


@command(app, "list")
def list_(session: Session, queue: QueueName) -> Exit:
    """List the groups of a queue: what waits for each, is leased in it, and is dead in it."""
    with session.open() as ps:
        shown = session.out.rows(_rows(ps.queue(queue)), GROUPS, f"queue {queue!r} has no groups yet")
    return Exit.DONE if shown else Exit.NOTHING


@command(app, "create")
def create(session: Session, queue: QueueName, name: Name) -> None:
    """Make a group, as its first lease would; one that is there stays."""
    with session.open() as ps, waiting(f"making {name!r}"):
        ps.queue(queue).create_group(name)
    if session.out.as_json:
        session.out.object({"queue": queue, "name": name, "created": True})
    session.out.say(f"queue {queue!r} has the group {name!r}")


@command(app, "drop")
def drop(session: Session, queue: QueueName, name: Name, yes: Yes = False) -> None:
    """Drop a group, with what it alone has not processed."""
    with session.open() as ps:
        q = ps.queue(queue)
        numbers = q.group(name).stats()
        held = numbers.delayed + numbers.ready + numbers.leased + numbers.dead
        confirmed(f"Drop group {name!r} of queue {queue!r}, which has {held:,} messages?", yes)
        with waiting(f"dropping {name!r}"):
            q.drop_group(name)
    if session.out.as_json:
        session.out.object({"queue": queue, "name": name, "dropped": True, "messages": held})
    session.out.say(f"group {name!r} of queue {queue!r} dropped, with {held:,} messages")


def _rows(queue: Queue) -> list[Row]:
    return [
        {"queue": queue.name, **row(one), "dead": queue.group(one.name).stats().dead}
        for one in queue.groups()
    ]
