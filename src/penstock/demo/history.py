"""What the pipeline makes of the demonstration: an archive, an audit against the store, a report."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from penstock import Penstock
from penstock.demo.screen import progress_bar
from penstock.demo.shops import DEAD_LETTERS, QUEUE

#: What `penstock pipeline archive` calls it too.
CURSOR = "archive"


class History(NamedTuple):
    """(what, how many, in words), whether the audit found nothing, and where the report is."""

    rows: list[tuple[str, int, str]]
    ok: bool
    page: Path


def keep(ps: Penstock) -> None:
    """Bodies of messages that are done stay until they are archived: a report by shop needs them."""
    for name in (QUEUE, DEAD_LETTERS):
        ps.queue(name).cursor(CURSOR, required=True)


def examine(folder: Path, console: Console) -> History:
    """Archive the store in `folder`, audit both, and write the report beside them."""
    from penstock.spark.session import QUICK, check_installed, session

    check_installed()
    from penstock.spark.jobs.archive import archive
    from penstock.spark.jobs.auditing import run as auditing
    from penstock.spark.jobs.reporting import run as reporting
    from penstock.spark.store import Store

    store, archived = Store(str(folder / "store")), str(folder / "archive")
    with progress_bar(console) as bars:
        steps = bars.add_task("history", total=4)
        spark = session("penstock-demo", **QUICK)
        try:
            bars.advance(steps)
            done = archive(spark, store, archived)
            bars.advance(steps)
            found = auditing.run(spark, auditing.Wanted(store, archived))
            bars.advance(steps)
            facts = reporting.run(spark, reporting.Wanted(archive=archived))
        finally:
            spark.stop()
    page = folder / "report.html"
    reporting.write(facts, page)
    findings = sum(found.counts.values())
    verdict = "findings: the archive against the store, every message followed through its events"
    rows = [
        ("archived", done.events, f"events, {done.bodies:,} messages, in {done.files} Parquet files"),
        ("audit", findings, verdict),
    ]
    return History(rows, found.ok, page)
