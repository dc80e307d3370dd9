"""penstock stats: the numbers of every queue, once or as they change."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.columns import STATS, STATS_OF_ONE
from penstock.cli.command import command
from penstock.cli.exits import Exit, next_step
from penstock.cli.options import Every, queue_names
from penstock.cli.rows import Row, row
from penstock.cli.session import Session
from penstock.cli.tables import rich_table
from penstock.cli.text import iso
from penstock.clock import SystemClock

if TYPE_CHECKING:
    from penstock import Penstock

app = typer.Typer(add_completion=False)


@command(app, "stats")
def stats(
    session: Session,
    queue: Annotated[
        str | None,
        typer.Argument(
            metavar="[QUEUE]", help="One queue, in detail; all without it.", autocompletion=queue_names
        ),
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Show them again and again, until Ctrl-C.")
    ] = False,
    every_s: Every = 1.0,
) -> Exit:
    """Show the numbers of the queues: depth by state, ages, rates.

    Rates are of the last minute, since the store was opened.
    """
    with session.open() as ps:
        if watch:
            _watch(session, ps, queue, every_s)
        found = _numbers(ps, queue)
        if queue is not None:
            session.out.record(found[0], STATS_OF_ONE)
        else:
            session.out.rows(
                found,
                STATS,
                f"no queues yet; create one: {next_step(session.given, 'queues', 'create', 'NAME')}",
            )
    return Exit.DONE


def _numbers(ps: Penstock, queue: str | None) -> list[Row]:
    names = [settings.name for settings in ps.queues()] if queue is None else [queue]
    return [{"queue": name, **row(ps.queue(name).stats())} for name in names]


def _watch(session: Session, ps: Penstock, queue: str | None, every_s: float) -> None:
    """A live table on a terminal; elsewhere, the numbers again and again with their time."""
    clock, pause = SystemClock(), threading.Event()
    if not session.out.is_terminal or session.out.as_json:
        while True:
            at_ns = clock.now_ns()
            session.out.say(iso(at_ns) or "")
            found = [{"at_ns": at_ns, "at": iso(at_ns), **numbers} for numbers in _numbers(ps, queue)]
            session.out.rows(found, STATS)
            pause.wait(every_s)
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    def screen() -> Group:
        shown = f"{iso(clock.now_ns())}   every {every_s:g} s, Ctrl-C ends"
        return Group(rich_table(_numbers(ps, queue), STATS), Text(shown, "dim"))

    with Live(screen(), console=session.out.console(), auto_refresh=False) as live:
        while True:
            pause.wait(every_s)
            live.update(screen(), refresh=True)
