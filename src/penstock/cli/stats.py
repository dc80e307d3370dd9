"""penstock stats: the numbers of every queue, once or as they change."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from penstock.cli.columns import KEYS, STATS, STATS_OF_ONE
from penstock.cli.command import command
from penstock.cli.exits import Exit, next_step
from penstock.cli.options import Every, Limit, OfGroup, line_of, queue_names
from penstock.cli.rows import Row, row
from penstock.cli.session import Session
from penstock.cli.tables import Column, rich_table
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
    keys: Annotated[
        bool, typer.Option("--keys", "-k", help="Show the fairness keys with most waiting instead.")
    ] = False,
    limit: Limit = 100,
    group: OfGroup = None,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Show them again and again, until Ctrl-C.")
    ] = False,
    every_s: Every = 1.0,
) -> Exit:
    """Show the numbers of the queues: depth by state, ages, rates.

    Rates are of the last minute, since the store was opened. With --keys, what was served and the share of it
    count from then on too.
    """
    if keys and queue is None:
        raise typer.BadParameter("--keys is about one queue; name it: penstock stats QUEUE --keys")
    if group is not None and queue is None:
        raise typer.BadParameter("--group is about one queue; name it: penstock stats QUEUE --group GROUP")
    with session.open() as ps:
        if keys and queue is not None:
            look = _of_keys(ps, queue, limit, group)
        else:
            look = _of_queues(ps, queue, group)
        if watch:
            _watch(session, look, every_s)
        found = look.rows()
        if keys:
            session.out.rows(found, KEYS, f"queue {queue!r} has nothing waiting")
        elif queue is not None:
            session.out.record(found[0], STATS_OF_ONE)
        else:
            session.out.rows(
                found,
                STATS,
                f"no queues yet; create one: {next_step(session.given, 'queues', 'create', 'NAME')}",
            )
    return Exit.DONE


class _Look(NamedTuple):
    """What to show, as it is when it is called, and how."""

    rows: Callable[[], list[Row]]
    columns: Sequence[Column]


def _of_queues(ps: Penstock, queue: str | None, group: str | None) -> _Look:
    def rows() -> list[Row]:
        names = [settings.name for settings in ps.queues()] if queue is None else [queue]
        return [{"queue": name, **row(line_of(ps, name, group).stats())} for name in names]

    return _Look(rows, STATS)


def _of_keys(ps: Penstock, queue: str, limit: int, group: str | None) -> _Look:
    q = line_of(ps, queue, group)
    return _Look(lambda: [{"queue": queue, **row(one)} for one in q.key_stats(limit)], KEYS)


def _watch(session: Session, look: _Look, every_s: float) -> None:
    """A live table on a terminal; elsewhere, the numbers again and again with their time."""
    clock, pause = SystemClock(), threading.Event()
    if not session.out.is_terminal or session.out.as_json:
        while True:
            at_ns = clock.now_ns()
            session.out.say(iso(at_ns) or "")
            found = [{"at_ns": at_ns, "at": iso(at_ns), **numbers} for numbers in look.rows()]
            session.out.rows(found, look.columns)
            pause.wait(every_s)
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    def screen() -> Group:
        shown = f"{iso(clock.now_ns())}   every {every_s:g} s, Ctrl-C ends"
        return Group(rich_table(look.rows(), look.columns), Text(shown, "dim"))

    with Live(screen(), console=session.out.console(), auto_refresh=False) as live:
        while True:
            pause.wait(every_s)
            live.update(screen(), refresh=True)
