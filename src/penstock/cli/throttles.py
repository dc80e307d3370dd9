"""penstock throttles: token buckets by throttle key."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.command import Group, command
from penstock.cli.session import Session

app = typer.Typer(cls=Group, no_args_is_help=True, add_completion=False, help="Limits by throttle key.")

Key = Annotated[str, typer.Argument(metavar="KEY", help="The throttle key.")]


@command(app, "set")
def set_(
    session: Session,
    key: Key,
    rate_per_s: Annotated[float, typer.Option("--rate", min=0, help="Deliveries a second.")],
    burst: Annotated[float, typer.Option("--burst", min=0, help="Deliveries at once.")] = 1.0,
) -> None:
    """Limit how often messages with a throttle key are delivered."""
    with session.open() as ps:
        ps.throttles.set(key, rate_per_s, burst)
    if session.out.as_json:
        session.out.object({"key": key, "rate_per_s": rate_per_s, "burst": burst})
    session.out.say(f"throttle {key!r} set")


@command(app, "get")
def get(session: Session, key: Key) -> None:
    """Show a limit."""
    with session.open() as ps:
        ps.throttles.get(key)


@command(app, "delete")
def delete(session: Session, key: Key) -> None:
    """Remove a limit."""
    with session.open() as ps:
        ps.throttles.delete(key)
    if session.out.as_json:
        session.out.object({"key": key, "deleted": True})
    session.out.say(f"throttle {key!r} deleted")
