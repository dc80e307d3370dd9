"""penstock pipeline report: what happened in queues, as a page to look at and as tables for programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.exits import Exit
from penstock.cli.options import Since, Until
from penstock.cli.session import Session
from penstock.cli.spark import Archive, Master, Queues, archive_of, installed, started, store_of, working

DEFAULT_FILE = Path("penstock-report.html")


def report(
    session: Session,
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="The page; the tables go beside it, with .json at the end of the name."
        ),
    ] = DEFAULT_FILE,
    archive: Archive = None,
    queues: Queues = None,
    since: Since = None,
    until: Until = None,
    master: Master = None,
) -> Exit:
    """Measure what happened in the queues, and write it as one HTML page, and as JSON beside it.

    Of a store or, with --archive, of an archive, which also knows fairness keys of messages that are done.
    The page needs nothing else and can be sent to anybody: names and reasons are in it, payloads are not.
    Exit code 1: nothing has happened.
    """
    if file.suffix.lower() == ".json":
        raise typer.BadParameter("FILE is the page, such as report.html; the tables go beside it as .json")
    if since is not None and until is not None and since >= until:
        raise typer.BadParameter("--since is not before --until: there is no time between them")
    installed()
    from penstock.spark.jobs.reporting.run import Wanted, check_place, run, write

    check_place(file)
    if archive is not None:
        archive_of(archive, queues)
    store = store_of(session, queues) if archive is None else None
    spark = started(master, store, archive)
    with working(spark, "report") as watch:
        facts = run(spark, Wanted(store, archive, queues, since, until), watch)
    tables = write(facts, file)
    if session.out.as_json:
        session.out.object(
            {
                "page": str(file),
                "tables": str(tables),
                "events": facts.events,
                "queues": facts.queue_count,
                "whole": facts.whole,
                "deliveries": facts.deliveries,
                "deliveries_with_key": facts.deliveries_with_key,
            }
        )
    session.out.say(f"{facts.queue_count:,} queues, {facts.events:,} events: {file}, {tables}")
    return Exit.DONE if facts.events else Exit.NOTHING
