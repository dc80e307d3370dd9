"""penstock throttles: token buckets by throttle key."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli import values
from penstock.cli.columns import THROTTLES
from penstock.cli.command import Group, command
from penstock.cli.exits import Exit
from penstock.cli.rows import row
from penstock.cli.session import Session

app = typer.Typer(cls=Group, no_args_is_help=True, add_completion=False, help="Limits by throttle key.")

Key = Annotated[str, typer.Argument(metavar="KEY", help="The throttle key.")]


@command(app, "set")
def set_(
    session: Session,
    key: Key,
    rate_per_s: Annotated[
        float,
        typer.Option(
            "--rate",
            metavar="RATE",
            parser=values.rate,
            help="Deliveries a second, or 100/m, 5000/h, 10/d; 0 stops them.",
        ),
    ],
    burst: Annotated[
        int, typer.Option("--burst", min=0, help="Deliveries at once after a pause; 0 stops them all.")
    ] = 1,
) -> None:
    """Limit how often messages with a throttle key are delivered, in all queues together."""
    with session.open() as ps:
        ps.throttles.set(key, rate_per_s, burst)
        found = ps.throttles.get(key)
    if found is not None and session.out.as_json:
        session.out.object(row(found))
    session.out.say(f"throttle {key!r} set")


@command(app, "get")
def get(session: Session, key: Key) -> Exit:
    """Show a limit, and how many deliveries are left of it just now."""
    with session.open() as ps:
        found = ps.throttles.get(key)
    if found is None:
        session.out.note(f"throttle {key!r} is not set; set it: penstock throttles set")
        return Exit.NOTHING
    session.out.record(row(found), THROTTLES)
    return Exit.DONE


@command(app, "list")
def list_(session: Session) -> Exit:
    """List the limits, and how many deliveries are left of each."""
    with session.open() as ps:
        found = ps.throttles.list()
    shown = session.out.rows(
        map(row, found), THROTTLES, "no throttles; set one: penstock throttles set KEY --rate 10"
    )
    return Exit.DONE if shown else Exit.NOTHING


@command(app, "delete")
def delete(session: Session, key: Key) -> Exit:
    """Remove a limit: what waited for it may go."""
    with session.open() as ps:
        there = ps.throttles.get(key) is not None
        ps.throttles.delete(key)
    if session.out.as_json:
        session.out.object({"key": key, "deleted": there})
    session.out.say(f"throttle {key!r} deleted" if there else f"throttle {key!r} is not set")
    return Exit.DONE if there else Exit.NOTHING
