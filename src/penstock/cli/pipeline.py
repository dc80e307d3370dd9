"""penstock pipeline: the jobs that examine history in bulk, on Spark."""

from __future__ import annotations

import typer

from penstock.cli import (
    pipeline_archive,
    pipeline_audit,
    pipeline_rebuild,
    pipeline_replay,
    pipeline_report,
)
from penstock.cli.command import Group, command

app = typer.Typer(
    cls=Group,
    no_args_is_help=True,
    add_completion=False,
    help="Jobs on Spark over whole stores and archives.",
)


@app.callback()
def _group() -> None:
    """Jobs on Spark over whole stores and archives."""


command(app, "archive")(pipeline_archive.archive)
command(app, "compact")(pipeline_archive.compact)
command(app, "rebuild")(pipeline_rebuild.rebuild)
command(app, "copy")(pipeline_rebuild.copy)
command(app, "verify")(pipeline_rebuild.verify)
command(app, "replay")(pipeline_replay.replay)
command(app, "audit")(pipeline_audit.audit)
command(app, "report")(pipeline_report.report)
