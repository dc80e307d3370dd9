"""penstock init, info, health: the store as a whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer

from penstock.cli.columns import field, listed, pairs
from penstock.cli.command import command
from penstock.cli.exits import Exit
from penstock.cli.rows import Row, row
from penstock.cli.session import Session, checked
from penstock.cli.tables import Column
from penstock.cli.text import count, rate, size, span

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


def _colour(found: Row) -> str:
    return _COLOURS.get(found["status"], "")


def _told(name: str, show: Callable[[Any], str]) -> Callable[[Row], str]:
    """Nothing for what a backend does not have, or does not say."""
    return lambda found: "" if found.get(name) is None else show(found[name])


def _pool(found: Row) -> str:
    return "" if found.get("pool_size") is None else f"{found['pool_in_use']}/{found['pool_size']}"


_WELL = (
    Column("status", field("status"), style=_colour),
    Column("reasons", pairs("reasons")),
    Column("warnings", pairs("warnings")),
)
_NUMBERS = (
    Column("backend", field("backend"), style="bold"),
    Column("status", field("status"), style=_colour),
    Column("p50 ms", _told("latency_p50_ms", "{:.2f}".format), right=True, drop=2),
    Column("p99 ms", _told("latency_p99_ms", "{:.2f}".format), right=True),
    Column("errors", _told("error_rate", "{:.1%}".format), right=True),
    Column("depth", _told("depth", count), right=True),
    Column("leased", _told("leased", count), right=True),
    Column("oldest", _told("oldest_ready_age_s", span), right=True),
    Column("in/s", _told("enqueue_rate_per_s", rate), right=True, drop=3),
    Column("out/s", _told("ack_rate_per_s", rate), right=True, drop=3),
    Column("fail/s", _told("fail_rate_per_s", rate), right=True, drop=3),
    Column("memory", _told("memory_bytes", size), right=True, drop=1),
    Column("pool", _pool, right=True, drop=4),
    Column("stream", _told("stream_length", count), right=True, drop=6),
    Column("lag", _told("consumer_lag", count), right=True, drop=5),
    Column("shards", _told("shards", count), right=True, drop=6),
)


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
    backends = {
        name: {"status": status, **(row(found.numbers[name]) if name in found.numbers else {})}
        for name, status in found.backends.items()
    }
    answer: Row = {"status": found.status, "reasons": found.reasons, "warnings": found.warnings}
    if session.out.as_json:
        session.out.object({**answer, "backends": backends})
        return _HEALTH.get(found.status, Exit.UNAVAILABLE)
    for what in ("reasons", "warnings"):
        answer[what] = {name: "; ".join(sentences) for name, sentences in answer[what].items()}
    session.out.record(answer, _WELL)
    session.out.say("")
    session.out.rows([{"backend": name, **numbers} for name, numbers in backends.items()], _NUMBERS)
    return _HEALTH.get(found.status, Exit.UNAVAILABLE)
