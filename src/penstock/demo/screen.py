"""What one sees: a live picture in a terminal, a line every few seconds anywhere else."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from penstock.backends.base import QueueStats
from penstock.demo.crew import HAPPENINGS_KEPT, Crew
from penstock.demo.shops import SHOPS

#: Where nothing can move, so often is enough.
LINE_EVERY = 25


class Screen:
    """The picture of a crew at work."""

    def __init__(self, console: Console, crew: Crew, total: int) -> None:
        self._console, self._crew, self._total = console, crew, total
        self._bars = Progress(
            TextColumn("  {task.description:<10}"),
            BarColumn(bar_width=44),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            console=console,
        )
        self._enqueued = self._bars.add_task("enqueued", total=total, note="")
        self._finished = self._bars.add_task("finished", total=total, note="")
        self._live: Live | None = None
        self._updates = 0

    @contextmanager
    def shown(self) -> Iterator[None]:
        if not self._console.is_terminal:
            yield
            return
        with Live(console=self._console, refresh_per_second=8, transient=True) as self._live:
            yield

    def update(self, accepted: Counter[str], stats: QueueStats, finished: int) -> None:
        self._updates += 1
        rates = f"{stats.enqueue_rate_per_s:,.0f}/s in, {stats.ack_rate_per_s:,.0f}/s out, last minute"
        self._bars.update(self._enqueued, completed=accepted.total())
        self._bars.update(self._finished, completed=finished, note=rates)
        if self._live is not None:
            self._live.update(self._picture(accepted, stats))
        elif self._updates % LINE_EVERY == 0:
            deaths = sum(member.deaths for member in self._crew.members)
            self._console.print(
                f"  {accepted.total():>7,} enqueued  {finished:>7,} finished  {stats.ready:>7,} ready  "
                f"{stats.leased:>5,} leased  {deaths} worker processes died",
                soft_wrap=True,
                highlight=False,
            )

    def _picture(self, accepted: Counter[str], stats: QueueStats) -> RenderableType:
        states = Text("  ")
        for state, style in (("ready", "cyan"), ("leased", "yellow"), ("delayed", "magenta")):
            states.append(f"{getattr(stats, state):>8,} ", style=f"bold {style}").append(f"{state}  ")
        happenings = [*self._crew.happenings]
        happenings += [""] * (HAPPENINGS_KEPT - len(happenings))
        return Group(
            self._bars,
            states,
            self._shops(accepted),
            self._workers(),
            Panel(Text("\n".join(happenings)), title="happenings", border_style="dim", width=100),
        )

    def _shops(self, accepted: Counter[str]) -> Table:
        table = Table(box=None, padding=(0, 2), header_style="dim")
        for name in ("shop", "finished", "of"):
            table.add_column(name, justify="left" if name == "shop" else "right")
        table.add_column("each shop gets an equal turn, however much it sends")
        for shop in SHOPS:
            sent, done = accepted[shop], self._crew.acked[shop]
            bar = ProgressBar(total=max(sent, 1), completed=done, width=44)
            table.add_row(shop, f"{done:,}", f"{sent:,}", bar)
        return table

    def _workers(self) -> Table:
        owner = self._crew.owner()
        table = Table(box=None, padding=(0, 2), header_style="dim")
        table.add_column("process")
        table.add_column("")
        for name in ("acked", "failed", "too late", "deaths"):
            table.add_column(name, justify="right")
        table.add_column("")
        for member in self._crew.members:
            table.add_row(
                f"{member.name} {member.pid}",
                self._crew.describe(member),
                f"{member.acked:,}",
                f"{member.failed:,}",
                f"{member.late:,}",
                Text(f"{member.deaths:,}", style="bold red" if member.deaths else ""),
                Text("owns the store", style="green") if member.pid == owner else "",
            )
        mine = Text("owns the store", style="green") if owner == os.getpid() else ""
        table.add_row(f"shops {os.getpid()}", "enqueues, and watches", "", "", "", "", mine)
        return table


@contextmanager
def progress_bar(console: Console) -> Iterator[Progress]:
    """A bar for what comes after the work."""
    with Progress(
        TextColumn("  {task.description:<10}"),
        BarColumn(bar_width=44),
        MofNCompleteColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as bars:
        yield bars
