"""penstock config: check a configuration, and show what counts and where it comes from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.columns import field
from penstock.cli.command import Group, command
from penstock.cli.rows import Row, row
from penstock.cli.session import Session, checked
from penstock.cli.tables import Column
from penstock.cli.text import size

if TYPE_CHECKING:
    from pathlib import Path

app = typer.Typer(
    cls=Group, no_args_is_help=True, add_completion=False, help="Check and show the configuration."
)

Target = Annotated[
    str | None,
    typer.Argument(
        metavar="[FILE]", help="A penstock.yaml, folder or URL; without it, what --store would be."
    ),
]
_ORIGINS = {"default": "dim", "environment": "yellow", "file": "cyan", "URL": "cyan", "folder": "cyan"}


def _value(found: Row) -> str:
    value = found["value"]
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    if found["key"].endswith(("cache_capacity", "memory_limit")):
        return size(value)
    return f"{value:g}" if isinstance(value, float) else str(value)


_COLUMNS = (
    Column("key", field("key"), style="bold", fold_chars=400),
    Column("value", _value, fold_chars=400),
    Column("from", field("origin"), style=lambda found: _ORIGINS.get(found["origin"], "")),
    Column("which", field("detail"), style="dim", flexible=True, drop=1),
)


@command(app, "check")
def check(session: Session, target: Target = None) -> None:
    """Say whether a configuration can be used, and explain every value. Nothing is opened.

    Exit code 2: it cannot be used; 3: a key of its encryption is not there.
    """
    from penstock.config import resolve

    name = target or session.target
    settings = _settings(name)
    notes = checked(resolve(name))
    if session.out.as_json:
        session.out.object({"source": str(name), "ok": True, "notes": notes, "settings": settings})
        return
    session.out.rows(settings, _COLUMNS)
    queues = len({found["key"].split(".")[1] for found in settings if found["key"].startswith("queues.")})
    for note in notes:
        session.out.say(note)
    session.out.say(f"{name} can be used; queues that it declares: {queues}")


@command(app, "show")
def show(session: Session, target: Target = None) -> None:
    """Show the effective configuration, one key a line, and where each value comes from."""
    session.out.rows(_settings(target or session.target), _COLUMNS)


def _settings(target: str | Path) -> list[Row]:
    from penstock.effective import explain

    return [row(setting) for setting in explain(target)]
