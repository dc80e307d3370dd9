"""What the commands that run on Spark share: their options, the session, and its progress on the terminal."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.options import queue_names
from penstock.cli.progress import Bar, waiting
from penstock.cli.session import Session
from penstock.errors import InvalidConfig

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.spark.jobs.watch import Watch
    from penstock.spark.store import Store

Master = Annotated[
    str | None,
    typer.Option(
        "--master",
        metavar="URL",
        help="Where Spark runs, such as spark://host:7077. Without it: here, on all cores.",
    ),
]
Queues = Annotated[
    list[str] | None,
    typer.Option(
        "--queue", "-q", metavar="NAME", help="Only this queue; repeatable.", autocompletion=queue_names
    ),
]
Archive = Annotated[
    str | None,
    typer.Option("--archive", metavar="FOLDER", help="An archive, as penstock pipeline archive makes it."),
]


def started(master: str | None) -> SparkSession:
    """The session that runs, or a new one, which takes some seconds."""
    from penstock.spark import session

    with waiting("starting Spark"):
        return session(master=master)


@contextmanager
def working(spark: SparkSession, what: str) -> Iterator[Watch]:
    """Progress while Spark works; what workers raise is raised here as what it was."""
    from penstock.spark.failures import translated
    from penstock.spark.jobs.watch import Watch

    with translated(), Bar(counts=False) as bar, Watch(spark, bar, what) as watch:
        yield watch


def store_of(session: Session, queues: Sequence[str] | None) -> Store:
    """The store, which is there and has these queues: found out before Spark takes its time to start."""
    from penstock.spark.store import Store

    with session.open(declare=False) as ps:
        for name in queues or ():
            ps.queue(name)
    return Store(str(session.target))


def archive_of(folder: str) -> None:
    """Refuse a folder without an archive, before Spark takes its time to start."""
    from penstock.spark.archive.log import ArchiveLog

    if not ArchiveLog(folder).exists():
        raise InvalidConfig(f"there is no archive in {folder}; make one: penstock pipeline archive {folder}")


def absolute(place: str) -> str:
    """A path as Spark needs it, which may have been started elsewhere; a URL as it is."""
    return place if "://" in place else os.path.abspath(place)
