"""What the commands that run on Spark share: their options, the session, and its progress on the terminal."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.options import queue_names
from penstock.cli.progress import Bar, waiting
from penstock.cli.session import Session
from penstock.errors import InvalidConfig, QueueNotFound

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock import Penstock
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


#: Of files in stores and archives: a million events or so, compressed.
LITTLE_BYTES = 64 * 1024 * 1024


def installed() -> None:
    """Refuse by the name of what is missing, first of all: what checks the rest may need it."""
    from penstock.spark.session import check_installed

    check_installed()


def started(master: str | None, *places: Store | str | None) -> SparkSession:
    """The session that runs, or a new one, which takes some seconds; fewer where the places hold little."""
    from penstock.spark import session
    from penstock.spark.session import QUICK, is_running

    conf = QUICK if master is None and not is_running() and _is_little(places) else {}
    with waiting("starting Spark, which takes some seconds"):
        return session(master=master, **conf)


def _is_little(places: Sequence[Store | str | None]) -> bool:
    """By the size of their files; what cannot be looked at here is taken for much."""
    total_bytes = 0
    for place in places:
        path = place if place is None or isinstance(place, str) else place.standing().path
        if place is not None and (path is None or "://" in path):
            return False
        for folder, _, names in os.walk(path or ""):
            for name in names:
                with suppress(OSError):  # Merged away just now.
                    total_bytes += os.stat(os.path.join(folder, name)).st_size
                if total_bytes > LITTLE_BYTES:
                    return False
    return True


@contextmanager
def working(spark: SparkSession, what: str) -> Iterator[Watch]:
    """Progress while Spark works; what workers raise is raised here as what it was."""
    from penstock.spark.failures import translated
    from penstock.spark.jobs.watch import Watch

    with translated(), Bar(counts=False) as bar, Watch(spark, bar, what) as watch:
        yield watch


def store_of(
    session: Session, queues: Sequence[str] | None, check: Callable[[Penstock], None] = lambda _: None
) -> Store:
    """The store, which is there and has these queues: found out before Spark takes its time to start."""
    from penstock.spark.store import Store

    with session.open(declare=False) as ps:
        for name in queues or ():
            ps.queue(name)
        check(ps)
    return Store(str(session.target))


def archive_of(folder: str, queues: Sequence[str] | None = None) -> str:
    """Refuse a folder without an archive, or without one of these queues, before Spark takes its time."""
    from penstock.spark.archive.log import ArchiveLog

    log = ArchiveLog(folder)
    if not log.exists():
        raise InvalidConfig(f"there is no archive in {folder}; make one: penstock pipeline archive {folder}")
    known = log.read().queues
    for name in queues or ():
        if name not in known:
            raise QueueNotFound(name)
    return folder


def target_of(place: str) -> Store:
    """A store that need not be there yet; what cannot be one is refused."""
    from penstock.spark.store import Store

    store = Store(place)
    store.check()
    return store


def absolute(place: str) -> str:
    """A path as Spark needs it, which may have been started elsewhere; a URL as it is."""
    return place if "://" in place else os.path.abspath(place)
