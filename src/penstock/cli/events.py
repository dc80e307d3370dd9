"""penstock events: a queue's journal, and its tail as it grows."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.columns import EVENTS
from penstock.cli.command import command
from penstock.cli.exits import Exit
from penstock.cli.options import Every, Follow, OfGroup, QueueName, Since, Until, line_of
from penstock.cli.output import StreamedTable
from penstock.cli.rows import row
from penstock.cli.session import Session
from penstock.event import Kind

if TYPE_CHECKING:
    from penstock import Entry, Event

app = typer.Typer(add_completion=False)

PAGE = 1000


@command(app, "events")
def events(
    session: Session,
    queue: QueueName,
    after: Annotated[int, typer.Option("--after", min=0, metavar="SEQ", help="Only after this number.")] = 0,
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", min=1, help="At most so many; else all.")
    ] = None,
    tail: Annotated[int | None, typer.Option("--tail", min=0, help="Start so many before the end.")] = None,
    kinds: Annotated[
        list[Kind] | None, typer.Option("--kind", help="Only this kind; repeatable.", show_default=False)
    ] = None,
    message_id: Annotated[
        str | None, typer.Option("--message", metavar="ID", help="Only this message.")
    ] = None,
    since: Since = None,
    until: Until = None,
    group: OfGroup = None,
    follow: Follow = False,
    every_s: Every = 0.5,
) -> Exit:
    """Show what happened in a queue, in order."""
    with session.open() as ps:
        q = line_of(ps, queue, group)
        if tail is not None:
            after = max(after, q.stats().last_seq - tail)

        def page(after: int) -> tuple[Sequence[Event], int]:
            last_seq = q.stats().last_seq
            return q.events(after, PAGE, kinds=kinds or (), since=since, until=until), last_seq

        table = StreamedTable(session.out, EVENTS)
        shown = stream(
            table,
            page,
            after,
            limit,
            keep=lambda event: message_id is None or getattr(event, "message_id", "") == message_id,
            again_s=every_s if follow else None,
        )
    if not shown:
        session.out.note(f"no such events in queue {queue!r}")
    return Exit.DONE if shown else Exit.NOTHING


def stream(
    table: StreamedTable,
    page: Callable[[int], tuple[Sequence[Event | Entry], int]],
    after: int,
    limit: int | None,
    *,
    keep: Callable[[Event | Entry], bool] = lambda _: True,
    again_s: float | None,
) -> int:
    """Page after page into the table, and then again and again if asked; how many were shown.

    `page(after)` answers what fits and the last number that there was before it looked: a page that is
    not full has seen everything up to there, so the next one need not look at it again.
    """
    shown, pause = 0, threading.Event()
    while True:
        found, last_seq = page(after)
        for item in found:
            if keep(item):
                table.add(row(item))
                shown += 1
            if shown == limit:
                table.flush()
                return shown
        if len(found) == PAGE:
            after = found[-1].seq
            continue
        after = max([after, last_seq, *(item.seq for item in found[-1:])])
        table.flush()
        if again_s is None:
            return shown
        pause.wait(again_s)
