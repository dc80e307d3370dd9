"""penstock check, reindex: prove that a store is right, and mend what is not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.columns import field
from penstock.cli.command import command
from penstock.cli.exits import Exit, next_step
from penstock.cli.progress import Bar
from penstock.cli.rows import Row, row
from penstock.cli.session import Session
from penstock.cli.tables import Column

if TYPE_CHECKING:
    from penstock.backends.base import CheckReport

app = typer.Typer(add_completion=False)

_SEVERITIES = {"damage": "bold red", "orphan": "yellow", "index": "yellow"}
_PROBLEMS = (
    Column("how bad", field("severity"), style=lambda found: _SEVERITIES.get(found["severity"], "")),
    Column("queue", field("queue"), style="bold", flexible=True),
    Column("where", field("where"), fold_chars=400),
    Column("what", field("what"), fold_chars=400),
)
_MENDED = (*_PROBLEMS, Column("what was done", field("action"), style="green", fold_chars=400))


@command(app, "check")
def check(
    session: Session,
    repair: Annotated[
        bool, typer.Option("--repair", help="Mend what can be mended, and move the rest to quarantine.")
    ] = False,
) -> Exit:
    """Read the whole store and prove every invariant.

    Each problem is damage (content or history is not what it was), index (derived, can be rebuilt without
    loss) or orphan (a row that belongs to nothing). A repair deletes nothing silently: it says what it did,
    and what it takes out is in quarantine. Exit code 4: there are problems, or a repair left some.
    """
    with session.open(declare=False) as ps, Bar() as bar:
        report = ps.check(repair, bar)
    return _answer(session, report, repair=repair)


@command(app, "reindex")
def reindex(session: Session) -> Exit:
    """Rebuild every index from bodies and journals.

    The store answers nothing else meanwhile. Exit code 4: something could not be used.
    """
    with session.open() as ps, Bar() as bar:
        report = ps.reindex(bar)
    return _answer(session, report, repair=True)


def _answer(session: Session, report: CheckReport, *, repair: bool) -> Exit:
    found: Row = {**row(report), "ok": report.ok}
    if session.out.as_json:
        session.out.object(found)
    else:
        session.out.rows(found["problems"], _MENDED if repair else _PROBLEMS)
        session.out.say(_summary(report, repair, session.given))
    return Exit.DONE if report.ok else Exit.DAMAGED


def _summary(report: CheckReport, repair: bool, store: str | None) -> str:
    problems = max(len(report.problems), sum(report.counts.values()))
    looked = f"{report.queues:,} queues, {report.messages:,} messages, {report.events:,} events: "
    if not problems:
        return looked + "everything fits"
    listed = f" ({len(report.problems):,} of them listed)" if problems > len(report.problems) else ""
    if not repair:
        mend = next_step(store, "check", "--repair")
        return f"{looked}{problems:,} problems{listed}; to mend what can be mended: {mend}"
    left = f"{report.remaining:,} left: run it again" if report.remaining else "0 left"
    return f"{looked}{problems:,} problems{listed}, {left}"
