"""penstock redrive, move, purge: many messages at once."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.columns import field
from penstock.cli.command import command
from penstock.cli.consume import given
from penstock.cli.exits import Exit, wording
from penstock.cli.options import OfGroup, QueueName, StateName, Yes, confirmed, line_of, queue_names
from penstock.cli.progress import Bar, waiting
from penstock.cli.session import Session
from penstock.cli.tables import Column

app = typer.Typer(add_completion=False)

_REDRIVE_SLICE = 1000
_MOVED = (
    Column("id", field("id")),
    Column(
        "outcome",
        lambda found: "ok" if found["ok"] else "refused",
        style=lambda r: "green" if r["ok"] else "red",
    ),
    Column("why", field("error"), fold_chars=400),
)


@command(app, "redrive")
def redrive(
    session: Session,
    queue: QueueName,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="At most so many.")] = 100,
    everything: Annotated[bool, typer.Option("--all", help="All of them, without a limit.")] = False,
    target: Annotated[
        str | None,
        typer.Option(
            "--to", metavar="QUEUE", help="Send them here, not to their origin.", autocompletion=queue_names
        ),
    ] = None,
    group: OfGroup = None,
) -> Exit:
    """Send dead messages back to where they came from.

    QUEUE is the one that holds them: a dead-letter queue, or the queue itself if it has none.
    """
    sent = 0
    with session.open() as ps, Bar() as bar:
        q = line_of(ps, queue, group)
        while everything or sent < limit:
            went = q.redrive(_REDRIVE_SLICE if everything else min(_REDRIVE_SLICE, limit - sent), target)
            sent += went
            bar("redrive", sent, 0 if everything else limit)
            if not went:
                break
    return _counted(session, "redriven", queue, sent, group)


@command(app, "move")
def move(
    session: Session,
    queue: QueueName,
    target: Annotated[
        str, typer.Argument(metavar="TARGET", help="The queue that they go to.", autocompletion=queue_names)
    ],
    ids: Annotated[
        list[str],
        typer.Argument(
            metavar="ID...", help="Message ids; - reads them, or list's JSON lines, from standard input."
        ),
    ],
) -> Exit:
    """Move waiting and dead messages to another queue."""
    wanted = list(given(ids, "id"))
    if not wanted:
        session.out.note("no ids were given")
        return Exit.NOTHING
    with session.open() as ps, waiting(f"moving to {target!r}"):
        outcomes = ps.queue(queue).move(wanted, target)
    session.out.rows(
        (
            {
                "id": message_id,
                "ok": outcome.ok,
                "error": wording(outcome.error, session.given) if outcome.error else None,
            }
            for message_id, outcome in zip(wanted, outcomes, strict=True)
        ),
        _MOVED,
    )
    return Exit.DONE if all(outcome.ok for outcome in outcomes) else Exit.NOTHING


@command(app, "purge")
def purge(
    session: Session,
    queue: QueueName,
    state: Annotated[
        StateName | None,
        typer.Option("--state", "-s", help="Only this state; else what waits: delayed and ready."),
    ] = None,
    group: OfGroup = None,
    yes: Yes = False,
) -> Exit:
    """Remove messages for good."""
    with session.open() as ps:
        q = line_of(ps, queue, group)
        numbers = q.stats()
        count = numbers.delayed + numbers.ready if state is None else getattr(numbers, state.value)
        what = "waiting" if state is None else state.value
        confirmed(f"Remove {count:,} {what} messages of {_named(queue, group)} for good?", yes)
        with waiting(f"purging {queue!r}"):
            removed = q.purge(None if state is None else state.value)
    return _counted(session, "purged", queue, removed, group)


def _named(queue: str, group: str | None) -> str:
    return f"queue {queue!r}" if group is None else f"group {group!r} of queue {queue!r}"


def _counted(session: Session, what: str, queue: str, number: int, group: str | None) -> Exit:
    if session.out.as_json:
        session.out.object({"queue": queue, what: number})
    session.out.say(f"{number:,} {what}, {_named(queue, group)}")
    return Exit.DONE if number else Exit.NOTHING
