"""penstock init, info, health: the store as a whole."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.columns import field, listed, pairs
from penstock.cli.command import command
from penstock.cli.exits import Exit
from penstock.cli.rows import Row, row
from penstock.cli.session import Session, checked
from penstock.cli.tables import Column

app = typer.Typer(add_completion=False)

_BACKEND = (
    Column("backend", field("name"), style="bold"),
    Column("engine", field("engine")),
    Column("path", field("path")),
    Column("durability", field("durability")),
    Column("format", field("format_version")),
    Column(
        "attached to", lambda found: f"process {found['attached_to']}" if found.get("attached_to") else ""
    ),
    Column("encrypted", lambda found: f"key {found['sealed_with']}" if found.get("sealed_with") else "no"),
    Column(
        "to rekey", lambda found: ", ".join(f"key {key}" if key else "plain" for key in found["rekey_from"])
    ),
    Column("can", listed("can")),
    Column("cannot", listed("cannot"), style="dim"),
)
_HEALTH = {"healthy": Exit.DONE, "degraded": Exit.NOTHING, "unhealthy": Exit.UNAVAILABLE}
_COLOURS = {"healthy": "bold green", "degraded": "bold yellow", "unhealthy": "bold red"}


@command(app, "init")
def init(
    session: Session,
    queues: Annotated[
        list[str] | None,
        typer.Option("--queue", "-q", metavar="NAME", help="Create this queue too; repeatable."),
    ] = None,
) -> None:
    """Create a store; one that is there already is left as it is.

    Without --store: what PENSTOCK_STORE or ./penstock.yaml name, else the folder ./penstock-data.
    """
    from penstock.backends.registry import missing_stores
    from penstock.config import StorageSettings

    config = session.config()
    if isinstance(config.default, StorageSettings) and config.default.engine == "memory":
        raise typer.BadParameter("a store in memory ends with the command; name a folder")
    checked(config)
    created = missing_stores(config)
    with session.create(config) as ps:
        there = {queue.name for queue in ps.queues()}
        made = [name for name in dict.fromkeys(queues or ()) if name not in there]
        for name in made:
            ps.create_queue(name)
        path = ps.info().default.path or ps.info().source
    if session.out.as_json:
        session.out.object({"store": path, "created": bool(created), "queues_created": made})
    what = "created" if created else "is there already"
    session.out.say(f"store {path} {what}" + (f"; queues created: {', '.join(made)}" if made else ""))


@command(app, "info")
def info(session: Session) -> None:
    """Show what is open: version, place, engine, durability, capabilities."""
    with session.open() as ps:
        found = ps.info()
    backends = [{"name": name, **row(backend)} for name, backend in found.backends.items()]
    if session.out.as_json:
        session.out.object({"version": found.version, "source": found.source, "backends": backends})
        return
    session.out.say(f"Penstock {found.version}, store {found.source}")
    for backend in backends:
        flags: dict[str, bool] = backend["capabilities"]
        backend["can"] = [name for name, on in flags.items() if on]
        backend["cannot"] = [name for name, on in flags.items() if not on]
        session.out.record(backend, _BACKEND)


@command(app, "health")
def health(session: Session) -> Exit:
    """Say whether the store is well: exit code 0 healthy, 1 degraded, 3 unhealthy."""
    with session.open() as ps:
        found = ps.health()
    columns = (
        Column("status", field("status"), style=_COLOURS.get(found.status, "")),
        Column("reasons", pairs("shown")),
    )
    answer: Row = {"status": found.status, "reasons": found.reasons}
    if not session.out.as_json:
        answer["shown"] = {name: "; ".join(reasons) for name, reasons in found.reasons.items()}
    session.out.record(answer, columns)
    return _HEALTH.get(found.status, Exit.UNAVAILABLE)
