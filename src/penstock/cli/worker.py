"""penstock worker: run a function on the messages of queues, and watch it work."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli import values
from penstock.cli.columns import field, number
from penstock.cli.command import command
from penstock.cli.exits import Exit
from penstock.cli.options import Every, LeaseTime, queue_names
from penstock.cli.output import Output, PipeClosed
from penstock.cli.rows import Row, row
from penstock.cli.session import Session
from penstock.cli.tables import Column, rich_table
from penstock.cli.text import neutral, span

if TYPE_CHECKING:
    from rich.console import RenderableType

    from penstock import Worker

app = typer.Typer(add_completion=False)

_DOING = {"running": "green", "overdue": "red", "starting": "yellow", "idle": "dim"}
#: The screen shows so many slots; the line above them counts them all.
SLOTS_SHOWN = 20
_SLOTS = (
    Column("slot", number("slot"), right=True, style="dim"),
    Column("pid", field("pid"), right=True, style="dim", drop=5),
    Column("doing", field("doing"), style=lambda found: _DOING.get(found["doing"], "")),
    Column("for", lambda found: span(found["for_s"]) if found["message_id"] else "", right=True, drop=2),
    Column("queue", field("queue"), flexible=True, drop=3),
    Column("message", field("message_id"), drop=1),
    Column("att", lambda found: str(found["attempts"] or ""), right=True, drop=4),
)


@command(app, "worker")
def worker(
    session: Session,
    handler: Annotated[
        str,
        typer.Argument(metavar="MODULE:FUNCTION", help="What to call; the working folder is searched first."),
    ],
    queues: Annotated[
        list[str],
        typer.Option("--queue", "-q", help="A queue to work on; repeatable.", autocompletion=queue_names),
    ],
    concurrency: Annotated[int, typer.Option("--concurrency", "-c", help="Calls at the same time.")] = 1,
    mode: Annotated[
        str | None,
        typer.Option(
            "--mode", metavar="MODE", help="threads, processes or asyncio; else what the function needs."
        ),
    ] = None,
    batch_size: Annotated[
        int, typer.Option("--batch", help="Messages to a call; above 1 it gets lists.")
    ] = 1,
    lease_s: LeaseTime = None,
    time_limit_s: Annotated[
        float | None,
        typer.Option(
            "--time-limit",
            metavar="DURATION",
            parser=values.duration,
            help="A call that takes longer has failed.",
        ),
    ] = None,
    stop_timeout_s: Annotated[
        float,
        typer.Option(
            "--stop-timeout", metavar="DURATION", parser=values.duration, help="What a stop waits for calls."
        ),
    ] = 10.0,
    consumer: Annotated[
        str | None, typer.Option("--consumer", help="The name that the journal shows.")
    ] = None,
    group: Annotated[str | None, typer.Option("--group", help="The consumer group to take them in.")] = None,
    until_empty: Annotated[
        bool, typer.Option("--until-empty", help="End when nothing is ready any more.")
    ] = False,
    every_s: Every = 1.0,
) -> Exit:
    """Run a function on the messages of queues: returning acks, raising fails.

    Ctrl-C or SIGTERM ends it: calls that run are finished, what is left goes back at once; a second one
    waits for nothing. With --json the numbers are written again and again. Exit code 1: --until-empty found
    nothing.
    """
    from penstock import Worker

    # As `python -m` would: the function is the user's own, where the user stands.
    sys.path.insert(0, "")
    with session.open() as ps:
        running = Worker(
            ps,
            queues,
            handler,
            concurrency=concurrency,
            mode=mode,  # type: ignore[arg-type]  # Any text: it refuses what it does not know.
            batch_size=batch_size,
            lease_s=lease_s,
            time_limit_s=time_limit_s,
            stop_timeout_s=stop_timeout_s,
            consumer=consumer,
            group=group,
        )
        with _watched(session.out, running, every_s):
            stats = running.run(until_empty)
    if session.out.as_json:
        session.out.object(row(stats))
    session.out.say(_summary(row(stats)))
    return Exit.NOTHING if until_empty and not stats.started else Exit.DONE


@contextmanager
def _watched(out: Output, running: Worker, every_s: float) -> Iterator[None]:
    """While it runs: a live screen on a terminal, objects for programs; and its log on standard error."""
    with ExitStack() as stack:
        if out.as_json:
            stack.enter_context(_objects(out, running, every_s))
        elif out.is_terminal:
            from rich.live import Live

            # A thread of its own draws it; what handlers print goes above it.
            live = Live(
                get_renderable=lambda: screen(row(running.stats)), console=out.console(), transient=True
            )
            stack.enter_context(live)
        stack.enter_context(_logging())
        yield


@contextmanager
def _objects(out: Output, running: Worker, every_s: float) -> Iterator[None]:
    """Its numbers again and again; when nobody reads them any more, it ends."""
    ended = threading.Event()

    def write() -> None:
        try:
            while not ended.wait(every_s):
                out.object(row(running.stats))
                out.flush()
        except PipeClosed:
            running.stop()

    writer = threading.Thread(target=write, name="penstock-cli-worker", daemon=True)
    writer.start()
    try:
        yield
    finally:
        ended.set()
        writer.join()


@contextmanager
def _logging() -> Iterator[None]:
    """What the worker has to say, on standard error."""
    logger, said = logging.getLogger("penstock.worker"), logging.StreamHandler(sys.stderr)
    form = logging.Formatter("%(asctime)s.%(msecs)03dZ %(levelname)s %(message)s", "%Y-%m-%dT%H:%M:%S")
    form.converter = time.gmtime
    said.setFormatter(form)
    logger.addHandler(said)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(said)


def screen(stats: Row) -> RenderableType:
    """What a worker does now."""
    from rich.console import Group
    from rich.text import Text

    title = Text.assemble(
        (f"{neutral(', '.join(stats['queues']))}", "bold"),
        f"   {stats['mode']} × {stats['concurrency']}   {stats['state']} for {span(stats['uptime_s'])}   ",
        (f"{stats['rate_per_s']:,.0f}/s", "bold green"),
    )
    slots = stats["slots"][:SLOTS_SHOWN]
    more = len(stats["slots"]) - len(slots)
    parts: list[RenderableType] = [title, Text(_summary(stats), "dim"), Text(""), rich_table(slots, _SLOTS)]
    if more:
        parts.append(Text(f"and {more:,} more slots", "dim"))
    return Group(*parts)


def _summary(stats: Row) -> str:
    """Every count; those that call for a look only if there are any."""
    rare = ("timed_out", "returned", "lost", "dead", "replaced")
    counts = [f"{stats[name]:,} {name}" for name in ("succeeded", "failed")]
    counts += [f"{stats[name]:,} {name.replace('_', ' ')}" for name in rare if stats[name]]
    return f"{stats['started']:,} started: {', '.join(counts)}, in {span(stats['uptime_s'])}"
