"""penstock rekey: encrypt a store, change its key, or make it plain again."""

from __future__ import annotations

import typer

from penstock.cli.command import command
from penstock.cli.exits import Exit
from penstock.cli.progress import Bar
from penstock.cli.rows import row
from penstock.cli.session import Session

app = typer.Typer(add_completion=False)


@command(app, "rekey")
def rekey(session: Session) -> Exit:
    """Encrypt what is stored with the key that is set, or decrypt it.

    It is decrypted where encryption is off. Others may use the store meanwhile; interrupted, it goes on when
    the store is next used. Exit code 1: there was nothing to do; 4: some records do not open, and were left.
    """
    with session.open() as ps, Bar(counts=False) as bar:
        report = ps.rekey(bar)
        keys = {name: info.sealed_with for name, info in ps.info().backends.items()}
    if session.out.as_json:
        session.out.object({**row(report), "sealed_with": keys})
    else:
        session.out.say(_summary(report.rewritten, report.unreadable, keys))
    if report.unreadable:
        return Exit.DAMAGED
    return Exit.DONE if report.records else Exit.NOTHING


def _summary(rewritten: int, unreadable: int, keys: dict[str, str | None]) -> str:
    left = f"; {unreadable:,} do not open and were left: penstock check" if unreadable else ""
    ends = [
        (f"{name} " if len(keys) > 1 else "the store ")
        + (f"is now encrypted with key {key!r}" if key else "is now plain")
        for name, key in keys.items()
    ]
    return f"{rewritten:,} records rewritten{left}; {', '.join(ends)}"
