"""penstock backends: what is installed, what is configured, what answers, and what each can do."""

from __future__ import annotations

from collections.abc import Callable

import typer

from penstock.capabilities import MEANING, Capabilities
from penstock.cli.columns import field
from penstock.cli.command import command
from penstock.cli.exits import Exit
from penstock.cli.rows import Row, row
from penstock.cli.session import Session
from penstock.cli.tables import Column

app = typer.Typer(add_completion=False)


def _answer(found: Row) -> str:
    if found["answers"] is None:
        return "no store yet"
    return "yes" if found["answers"] else "no"


def _latency(found: Row) -> str:
    return "" if found["latency_s"] is None else f"{found['latency_s'] * 1000:.1f} ms"


def _remarks(found: Row) -> str:
    return "; ".join(filter(None, [found["problem"], *found["warnings"]]))


def _flags(name: str) -> Callable[[Row], str]:
    return lambda found: "" if found[name] is None else ", ".join(found[name])


_COLOURS = {True: "green", False: "red", None: "dim"}
_KNOWN = (
    Column("backend", field("scheme"), style="bold"),
    Column("installed", lambda found: "yes" if found["installed"] else found["hint"], fold_chars=60),
    Column("can", _flags("can"), fold_chars=200),
    Column("cannot", _flags("cannot"), style="dim", fold_chars=200, drop=1),
)
_CONFIGURED = (
    Column("name", field("name"), style="bold"),
    Column("place", field("place"), fold_chars=80),
    Column("answers", _answer, style=lambda found: _COLOURS[found["answers"]]),
    Column("server", field("server")),
    Column("latency", _latency, right=True),
    Column("remarks", _remarks, fold_chars=200),
)


@command(app, "backends")
def backends(session: Session) -> Exit:
    """List the backends that there are; ask those configured.

    What is not installed says what to install. Nothing is created.

    Exit code 3: one that is configured does not answer.
    """
    from penstock.backends.discovery import configured_backends, known_backends

    known = [_row("known", one, one.capabilities) for one in known_backends()]
    configured = [_row("configured", one, one.capabilities) for one in configured_backends(session.config())]
    session.out.rows(known, _KNOWN)
    session.out.say("")
    session.out.rows(configured, _CONFIGURED)
    silent = any(one["answers"] is False for one in configured)
    return Exit.UNAVAILABLE if silent else Exit.DONE


def _row(kind: str, one: object, flags: Capabilities | None) -> Row:
    found: Row = {"is": kind, **row(one)}  # type: ignore[arg-type]  # structs, both of them
    del found["capabilities"]
    found["can"] = flags.names() if flags else None
    found["cannot"] = [name for name in MEANING if not getattr(flags, name)] if flags else None
    return found
