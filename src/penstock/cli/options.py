"""Arguments and options that commands share, and the completion of queue names."""

from __future__ import annotations

import enum
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli import values
from penstock.cli.output import Output
from penstock.cli.session import Session
from penstock.cli.text import neutral
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock import Penstock, Queue


def queue_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Queues whose names start so; none where the store cannot be asked."""
    store = ctx.params.get("store") or ctx.find_root().params.get("store")
    try:
        with Session(store, Output(as_json=False)).open() as ps:
            return [queue.name for queue in ps.queues() if queue.name.startswith(incomplete)]
    except (PenstockError, OSError):
        return []


def line_of(ps: Penstock, queue: str, group: str | None) -> Queue:
    """The queue, or what one of its consumer groups has of it."""
    found = ps.queue(queue)
    return found if group is None else found.group(group)


class StateName(enum.StrEnum):
    """The states that a message is kept in."""

    delayed = "delayed"
    ready = "ready"
    leased = "leased"
    done = "done"
    dead = "dead"


QueueName = Annotated[str, typer.Argument(metavar="QUEUE", help="The queue.", autocompletion=queue_names)]
OfGroup = Annotated[
    str | None,
    typer.Option("--group", help="As this consumer group has it, not as the queue's own line has."),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask; without a terminal this is needed.")]
Raw = Annotated[bool, typer.Option("--raw", help="Write the payload's bytes as they are, and nothing else.")]
Limit = Annotated[int, typer.Option("--limit", "-n", min=1, help="At most so many.")]
Since = Annotated[
    int | None,
    typer.Option(
        "--since",
        metavar="TIME",
        parser=values.moment,
        help="From this time on: ISO 8601, or 15m for 15 minutes ago.",
    ),
]
Until = Annotated[
    int | None,
    typer.Option(
        "--until", metavar="TIME", parser=values.moment, help="Before this time, in the same forms."
    ),
]
LeaseTime = Annotated[
    float | None,
    typer.Option("--lease", metavar="DURATION", parser=values.duration, help="How long, such as 30s or 5m."),
]
Follow = Annotated[bool, typer.Option("--follow", "-f", help="Go on with what comes, until Ctrl-C.")]
Every = Annotated[
    float,
    typer.Option("--every", metavar="DURATION", parser=values.interval, help="How often to look again."),
]


def confirmed(question: str, yes: bool) -> None:
    """Go on only if --yes was given or a person at a terminal says so."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise typer.BadParameter("this removes data, and there is no terminal to ask on; add --yes to do it")
    if not typer.confirm(neutral(question), err=True):
        raise typer.Exit(1)
