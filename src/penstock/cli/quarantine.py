"""penstock quarantine: what repairs took out of a store."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.columns import content, field, when
from penstock.cli.command import Group, command
from penstock.cli.consume import given
from penstock.cli.exits import Exit
from penstock.cli.options import Limit, Raw, Yes, confirmed
from penstock.cli.rows import bytes_field, row
from penstock.cli.session import Session
from penstock.cli.tables import Column
from penstock.cli.text import size

app = typer.Typer(
    cls=Group, no_args_is_help=True, add_completion=False, help="What repairs took out of the store."
)

_ITEMS = (
    Column("id", field("id")),
    Column("at", when("at_ns"), style="dim", drop=3),
    Column("queue", field("queue"), style="bold", flexible=True),
    Column("rows of", field("space"), drop=1),
    Column("size", lambda found: size(found["size_bytes"]), right=True, drop=2),
    Column("why", field("reason"), style="red", fold_chars=400),
)


@command(app, "list")
def list_(
    session: Session,
    limit: Limit = 100,
    after: Annotated[str | None, typer.Option("--after", metavar="ID", help="Go on after this item.")] = None,
) -> Exit:
    """List what repairs took out, oldest first."""
    with session.open() as ps:
        found = ps.quarantine(limit, after)
    session.out.rows((row(item) for item in found), _ITEMS, "nothing is in quarantine")
    return Exit.DONE if found else Exit.NOTHING


@command(app, "get")
def get(
    session: Session,
    item_id: Annotated[str, typer.Argument(metavar="ID", help="The item.")],
    raw: Raw = False,
) -> None:
    """Show the bytes of an item, as they were in the store."""
    with session.open() as ps:
        value = ps.quarantine_get(item_id)
    if raw:
        session.out.raw([value])
    else:
        found = {"id": item_id, **bytes_field("value", value)}
        session.out.record(
            found, (Column("id", field("id")), Column("value", content("value"), style="cyan"))
        )


@command(app, "drop")
def drop(
    session: Session,
    ids: Annotated[
        list[str],
        typer.Argument(
            metavar="ID...", help="Items; - reads them, or list's JSON lines, from standard input."
        ),
    ],
    yes: Yes = False,
) -> Exit:
    """Delete items for good; the system journal keeps what they were."""
    wanted = list(given(ids, "id"))
    confirmed(f"Delete {len(wanted):,} items of the quarantine for good?", yes)
    with session.open() as ps:
        dropped = ps.quarantine_drop(wanted)
    if session.out.as_json:
        session.out.object({"dropped": dropped})
    session.out.say(f"{dropped:,} dropped")
    return Exit.DONE if dropped else Exit.NOTHING
