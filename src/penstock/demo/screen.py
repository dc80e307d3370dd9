"""What one sees: a live picture in a terminal, a line every few seconds anywhere else."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
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
#: From here on there is room to say what each process is like.
WIDE_CHARS = 100
_OWNS = Text("owns the store", style="green")


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
        self._began = time.perf_counter()

    @contextmanager
    def shown(self) -> Iterator[None]:
        if not self._console.is_terminal:
            yield
            return
        with Live(console=self._console, refresh_per_second=8, transient=True) as self._live:
            yield

    def update(self, accepted: Counter[str], stats: QueueStats, finished: int) -> None:
        self._updates += 1
        took_s = time.perf_counter() - self._began
        rates = f"{accepted.total() / took_s:,.0f}/s in, {finished / took_s:,.0f}/s out"
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
            "",
            Padding.indent(self._shops(accepted), 2),
            "",
            Padding.indent(self._workers(), 2),
            Panel(
                Text("\n".join(happenings)),
                title="happenings",
                border_style="dim",
                width=min(WIDE_CHARS, self._console.width),
            ),
        )

    def _shops(self, accepted: Counter[str]) -> Table:
        table = _table()
        for name in ("shop", "finished", "of"):
            table.add_column(name, justify="left" if name == "shop" else "right")
        table.add_column("they take turns, however much each sends")
        for shop in SHOPS:
            sent, done = accepted[shop], self._crew.acked[shop]
            bar = ProgressBar(total=max(sent, 1), completed=done, width=44)
            table.add_row(shop, f"{done:,}", f"{sent:,}", bar)
        return table

    def _workers(self) -> Table:
        owner = self._crew.owner()
        table, wide = _table(), self._console.width >= WIDE_CHARS
        table.add_column("process")
        for name in ("acked", "failed", "too late", "deaths"):
            table.add_column(name, justify="right")
        table.add_column("")
        table.add_column("")
        for member in self._crew.members:
            table.add_row(
                f"{member.name} {member.pid}",
                f"{member.acked:,}",
                f"{member.failed:,}",
                f"{member.late:,}",
                Text(f"{member.deaths:,}", style="bold red" if member.deaths else ""),
                _OWNS if member.pid == owner else "",
                self._crew.describe(member) if wide else "",
            )
        mine = _OWNS if owner == os.getpid() else ""
        about = "enqueues, and watches" if wide else ""
        table.add_row(f"shops {os.getpid()}", "", "", "", "", mine, about)
        return table


def _table() -> Table:
    return Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")


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
