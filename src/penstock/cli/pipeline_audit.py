"""penstock pipeline audit: prove, at any size, that nothing was lost, doubled or miscounted."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.columns import field
from penstock.cli.exits import Exit
from penstock.cli.rows import row
from penstock.cli.session import Session
from penstock.cli.spark import (
    Archive,
    Master,
    Queues,
    absolute,
    archive_of,
    installed,
    started,
    store_of,
    working,
)
from penstock.cli.tables import Column

if TYPE_CHECKING:
    from penstock.spark.jobs.audit import Audited

_FINDINGS = (
    Column("kind", field("kind"), style="bold red"),
    Column("queue", field("queue"), style="bold", flexible=True),
    Column("message", field("message_id")),
    Column("event", field("seq"), right=True),
    Column("what", field("what"), fold_chars=400),
)


def audit(
    session: Session,
    archive: Archive = None,
    against_store: Annotated[
        bool,
        typer.Option("--against-store", help="With --archive: compare the store with it, payloads included."),
    ] = False,
    queues: Queues = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="Show at most so many findings.")] = 100,
    out: Annotated[
        str | None,
        typer.Option("--out", metavar="FOLDER", help="Write all findings there, as JSON, one a line."),
    ] = None,
    master: Master = None,
) -> Exit:
    """Follow every message through its history, and compare it with what is stored.

    Of a store or, with --archive, of an archive alone, which may have history that its store has not any
    more. Reading disturbs nobody. Exit code 4: there are findings.
    """
    if against_store and archive is None:
        raise typer.BadParameter("--against-store needs --archive, which has the history to compare with")
    out = None if out is None else absolute(out)
    if out is not None and Path(out).exists():
        raise typer.BadParameter(f"--out: {out} exists already; name a folder that does not")
    installed()
    from penstock.spark.jobs.auditing.run import Wanted, run

    if archive is not None:
        archive_of(archive, queues)
    store = store_of(session, queues) if archive is None or against_store else None
    spark = started(master, store, archive)
    with working(spark, "audit") as watch:
        found = run(spark, Wanted(store, archive, queues, limit, out), watch)
    if session.out.as_json:
        session.out.object({"ok": found.ok, **row(found)})
    else:
        session.out.rows([row(one) for one in found.findings], _FINDINGS)
        session.out.say(_summary(found))
    return Exit.DONE if found.ok else Exit.DAMAGED


def _summary(found: Audited) -> str:
    messages = f", {found.messages:,} messages" if found.messages else ""
    partly = f" ({found.partly:,} from the middle of their history on)" if found.partly else ""
    looked = f"{found.queues:,} queues{partly}, {found.events:,} events{messages}: "
    if found.ok:
        return looked + "everything fits"
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in found.counts.items())
    total = sum(found.counts.values())
    listed = f" ({len(found.findings):,} of them listed)" if total > len(found.findings) else ""
    return f"{looked}{total:,} findings{listed}: {kinds}"
