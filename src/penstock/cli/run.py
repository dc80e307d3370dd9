"""penstock demo, metrics: what shows the system at work."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.command import command
from penstock.cli.exits import Exit
from penstock.cli.session import Session

if TYPE_CHECKING:
    from penstock import Penstock

app = typer.Typer(add_completion=False)


@command(app, "demo")
def demo(
    session: Session,
    messages: Annotated[int, typer.Option("--messages", "-n", min=1, help="How many.")] = 100_000,
    path: Annotated[
        Path | None,
        typer.Option("--path", metavar="FOLDER", help="Keep what it makes in this folder, a new one."),
    ] = None,
    no_spark: Annotated[
        bool, typer.Option("--no-spark", help="End without archive, audit and report.")
    ] = False,
) -> int:
    """Show what Penstock does, on a store of its own.

    Workers that fail, dawdle and are killed work through the messages of several shops; then the journal
    proves that nothing was lost. At the end all of it is archived, audited and made into a report, on Spark
    if that is installed. It takes about a minute. Exit code 4: something was.
    """
    from penstock.demo import main

    if session.given is not None:
        raise typer.BadParameter("it makes a store of its own; --path FOLDER keeps that one")
    if path is not None and path.exists():
        raise typer.BadParameter(f"{path} exists; name a folder that does not")
    arguments = ["--messages", str(messages)]
    arguments += ["--path", str(path)] if path else []
    arguments += ["--no-spark"] if no_spark else []
    return main([*arguments, *(["--json"] if session.out.as_json else [])])


@command(app, "metrics")
def metrics(
    session: Session,
    port: Annotated[
        int | None,
        typer.Option("--port", "-p", min=0, max=65_535, help="Serve them here until Ctrl-C; 0: a free one."),
    ] = None,
    address: Annotated[
        str, typer.Option("--address", help="Where to listen; 0.0.0.0 for everywhere.")
    ] = "127.0.0.1",
) -> Exit:
    """Show the metrics in the form of Prometheus, or serve them over HTTP."""
    with session.open() as ps:
        if port is not None:
            _serve(session, ps, port, address)
        elif session.out.as_json:
            from penstock.metrics import Collector

            for family in Collector(ps).collect():
                for sample in family.samples:
                    session.out.object({"name": sample.name, "labels": sample.labels, "value": sample.value})
        else:
            from penstock.metrics import render

            session.out.write(render(ps))
    return Exit.DONE


def _serve(session: Session, ps: Penstock, port: int, address: str) -> None:
    """Until somebody ends the process; the page is read anew for everyone who asks."""
    from penstock.metrics import serve

    server = serve(ps, port, address)
    if session.out.as_json:
        session.out.object({"address": address, "port": server.server_port})
    session.out.say(f"serving http://{address}:{server.server_port}/metrics, Ctrl-C ends")
    session.out.flush()
    try:
        threading.Event().wait()
    finally:
        server.shutdown()
        server.server_close()
