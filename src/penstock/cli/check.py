"""penstock check, reindex, quarantine: prove that a store is right, and mend what is not."""

from __future__ import annotations

import typer

from penstock.cli.columns import field
from penstock.cli.command import command
from penstock.cli.exits import Exit
from penstock.cli.output import Column
from penstock.cli.rows import Row, row
from penstock.cli.session import Session

app = typer.Typer()

_PROBLEMS = (
    Column("queue", field("queue"), style="bold", flexible=True),
    Column("where", field("where"), flexible=True),
    Column("what", field("what"), style="red", flexible=True),
)


@command(app, "check")
def check(session: Session) -> Exit:
    """Read the whole store and prove every invariant. Exit code 4: problems were found."""
    with session.open() as ps:
        report = ps.check()
    found: Row = {**row(report), "ok": report.ok}
    if session.out.as_json:
        session.out.object(found)
        return Exit.DONE if report.ok else Exit.DAMAGED
    session.out.rows(found["problems"], _PROBLEMS)
    session.out.say(
        f"{report.queues:,} queues, {report.messages:,} messages, {report.events:,} events: "
        + ("everything fits" if report.ok else f"{len(report.problems):,} problems")
    )
    return Exit.DONE if report.ok else Exit.DAMAGED
