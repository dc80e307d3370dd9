"""penstock demo: what runs until it is done or stopped."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.command import command
from penstock.cli.session import Session

app = typer.Typer()


@command(app, "demo", context_settings={"ignore_unknown_options": True})
def demo(
    session: Session,
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[OPTIONS...]", help="Options of the demonstration itself.")
    ] = None,
) -> int:
    """Show what Penstock does, on a store of its own."""
    from penstock.demo import main

    return main(arguments or [])
