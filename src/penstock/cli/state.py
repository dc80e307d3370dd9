"""penstock state: small values by key, beside the queues."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.columns import content, field
from penstock.cli.command import Group, command
from penstock.cli.exits import Exit, next_step
from penstock.cli.feed import argument_bytes
from penstock.cli.options import Raw
from penstock.cli.rows import bytes_field
from penstock.cli.session import Session
from penstock.cli.tables import Column

app = typer.Typer(
    cls=Group, no_args_is_help=True, add_completion=False, help="Small values by key, beside the queues."
)

Key = Annotated[str, typer.Argument(metavar="KEY", help="The key.")]


@command(app, "put")
def put(
    session: Session,
    key: Key,
    value: Annotated[str, typer.Argument(metavar="[VALUE]", help="The value; - reads standard input.")] = "-",
) -> None:
    """Store a value under a key, in place of the one that is there."""
    raw = argument_bytes(value)
    with session.open() as ps:
        ps.state.put(key, raw)
    if session.out.as_json:
        session.out.object({"key": key, "bytes": len(raw)})
    session.out.say(f"{key!r}: {len(raw):,} bytes stored")


@command(app, "get")
def get(session: Session, key: Key, raw: Raw = False) -> Exit:
    """Show the value of a key."""
    with session.open() as ps:
        value = ps.state.get(key)
    if value is None:
        session.out.note(
            f"nothing is stored under {key!r}; store it: {next_step(session.given, 'state', 'put', key)}"
        )
        return Exit.NOTHING
    if raw:
        session.out.raw([value])
    else:
        found = {"key": key, **bytes_field("value", value)}
        session.out.record(
            found, (Column("key", field("key")), Column("value", content("value"), style="cyan"))
        )
    return Exit.DONE


@command(app, "delete")
def delete(session: Session, key: Key) -> Exit:
    """Forget the value of a key."""
    with session.open() as ps:
        there = ps.state.get(key) is not None
        ps.state.delete(key)
    if session.out.as_json:
        session.out.object({"key": key, "deleted": there})
    session.out.say(f"{key!r} deleted" if there else f"nothing is stored under {key!r}")
    return Exit.DONE if there else Exit.NOTHING
