"""penstock queues: list, create, update, delete."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer

from penstock.cli import values
from penstock.cli.columns import QUEUES
from penstock.cli.command import Debug, Group, Json, Store, command, session_of
from penstock.cli.exits import Exit, next_step
from penstock.cli.options import QueueName, Yes, confirmed, queue_names
from penstock.cli.progress import waiting
from penstock.cli.rows import row
from penstock.cli.session import Session

app = typer.Typer(cls=Group, add_completion=False)

NewName = Annotated[
    str, typer.Argument(metavar="NAME", help="1 to 1,024 bytes of UTF-8; any character but NUL.")
]
Backend = Annotated[
    str, typer.Option("--backend", metavar="NAME", help="The backend of penstock.yaml that it lives on.")
]


def _whole(text: str) -> int:
    if not text.strip().isdecimal():
        raise typer.BadParameter(f"{text!r} is not a whole number")
    return int(text)


def _option(
    flag: str, metavar: str, parser: Callable[[str], Any], text: str, **more: Any
) -> tuple[Any, None]:
    option = typer.Option(flag, metavar=metavar, parser=parser, help=text, show_default=False, **more)
    return Annotated[Any, option], None


_DURATION, _OPTIONAL_DURATION = values.duration, values.or_none(values.duration)

#: setting -> its option, for `create` and `update` alike.
SETTINGS: dict[str, tuple[Any, Any]] = {
    "lease_s": _option("--lease", "DURATION", _DURATION, "How long a consumer holds a message. (30s)"),
    "max_attempts": _option(
        "--max-attempts", "N", _whole, "Deliveries before a failing message is dead. (5)"
    ),
    "retry": _option(
        "--retry",
        "POLICY",
        values.retry,
        "When a failed message comes back: fixed:5s, exponential:1s:10m, exponential:1s:10m:exact, "
        "list:5s,1m,1h. (fixed:0s)",
    ),
    "dead_letter": _option(
        "--dead-letter",
        "QUEUE",
        values.or_none(str),
        "Where dead messages go; none: they stay. (none)",
        autocompletion=queue_names,
    ),
    "delay_s": _option(
        "--delay", "DURATION", _DURATION, "Of a fifo queue: how long each message waits first. (0s)"
    ),
    "retention_s": _option(
        "--retention", "DURATION", _DURATION, "How long finished messages stay listed. (0s)"
    ),
    "dead_retention_s": _option(
        "--dead-retention",
        "DURATION",
        _OPTIONAL_DURATION,
        "How long dead messages stay; none: for ever. (none)",
    ),
    "dedup_window_s": _option(
        "--dedup-window", "DURATION", _DURATION, "How long a repeated dedup id is recognized. (5m)"
    ),
    "journal_retention_s": _option(
        "--journal-retention",
        "DURATION",
        _OPTIONAL_DURATION,
        "How long events are kept; none: for ever. (7d)",
    ),
    "journal_max_bytes": _option(
        "--journal-max-bytes", "SIZE", values.or_none(values.size), "The most that events take up. (none)"
    ),
    "max_leased": _option(
        "--max-leased", "N", values.or_none(_whole), "Messages leased at the same time. (none)"
    ),
    "max_leased_per_key": _option(
        "--max-leased-per-key", "N", values.or_none(_whole), "The same, for each fairness key. (none)"
    ),
    "compress_over_bytes": _option(
        "--compress-over", "SIZE", values.or_none(values.size), "Compress payloads larger than this. (none)"
    ),
    "on_enqueue": _option(
        "--on-enqueue", "FILE", values.or_none(values.script), "A Lua script for new messages. (none)"
    ),
    "on_failure": _option(
        "--on-failure", "FILE", values.or_none(values.script), "A Lua script for failures. (none)"
    ),
    "annotations": _option(
        "--annotations", "JSON", values.texts, 'What to note about the queue: {"team": "mail"}. ({})'
    ),
}


@app.callback(invoke_without_command=True)
def queues(ctx: typer.Context, store: Store = None, as_json: Json = False, debug: Debug = False) -> None:
    """List, create, update and delete queues. Without a command, they are listed."""
    if ctx.invoked_subcommand is None:
        list_(session_of(ctx, {"store": store, "as_json": as_json, "debug": debug}))


@command(app, "list")
def list_(session: Session) -> None:
    """List the queues and their settings."""
    with session.open() as ps:
        found = ps.queues()
    create = next_step(session.given, "queues", "create", "NAME")
    session.out.rows((row(queue) for queue in found), QUEUES, f"no queues yet; create one: {create}")


@command(app, "create", options=SETTINGS)
def create(
    session: Session,
    name: NewName,
    backend: Backend = "default",
    fifo: Annotated[
        bool, typer.Option("--fifo", help="Strict order, one message of a key at a time.")
    ] = False,
    **settings: Any,
) -> None:
    """Create a queue."""
    with session.open() as ps:
        ps.create_queue(name, backend=backend, fifo=fifo, **values.settled(settings))
        (made,) = [queue for queue in ps.queues() if queue.name == name]
    if session.out.as_json:
        session.out.object(row(made))
    session.out.say(f"queue {name!r} created")


@command(app, "update", options=SETTINGS)
def update(session: Session, queue: QueueName, **settings: Any) -> Exit:
    """Change some settings of a queue; the others stay."""
    changes = values.settled(settings)
    if not changes:
        raise typer.BadParameter("nothing to change; name a setting, such as --lease 60s")
    with session.open() as ps:
        ps.update_queue(queue, **changes)
        (made,) = [found for found in ps.queues() if found.name == queue]
    if session.out.as_json:
        session.out.object(row(made))
    session.out.say(f"queue {queue!r} updated: {', '.join(changes)}")
    return Exit.DONE


@command(app, "delete")
def delete(session: Session, queue: QueueName, yes: Yes = False) -> None:
    """Delete a queue and everything in it."""
    with session.open() as ps:
        stats = ps.queue(queue).stats()
        held = stats.delayed + stats.ready + stats.leased + stats.done + stats.dead
        confirmed(f"Delete queue {queue!r} with {held:,} messages and its journal?", yes)
        with waiting(f"deleting {queue!r}"):
            ps.delete_queue(queue)
    if session.out.as_json:
        session.out.object({"queue": queue, "deleted": True, "messages": held})
    session.out.say(f"queue {queue!r} deleted, with {held:,} messages")
