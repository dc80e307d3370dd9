"""penstock pipeline archive, compact: history into Parquet files, and those into fewer."""

from __future__ import annotations

import signal
import threading
from typing import Annotated

import typer

from penstock.cli import values
from penstock.cli.exits import Exit
from penstock.cli.options import Every, Follow
from penstock.cli.rows import row
from penstock.cli.session import Session
from penstock.cli.spark import Master, Queues, archive_of, installed, started, store_of, working

Folder = Annotated[str, typer.Argument(metavar="FOLDER", help="The archive.", show_default=False)]


def archive(
    session: Session,
    folder: Folder,
    queues: Queues = None,
    follow: Follow = False,
    every: Every = 10.0,
    cursor: Annotated[
        str,
        typer.Option("--cursor", metavar="NAME", help="The required cursor; an archive each needs its own."),
    ] = "archive",
    batch: Annotated[int, typer.Option("--batch", min=1, help="Events of one commit, at most.")] = 2_000_000,
    accept_gaps: Annotated[
        bool,
        typer.Option("--accept-gaps", help="Go on where events were removed before they were archived."),
    ] = False,
    other_store: Annotated[
        bool, typer.Option("--other-store", help="This store takes the place of the one that was archived.")
    ] = False,
    unencrypted: Annotated[
        bool, typer.Option("--unencrypted", help="Archive an encrypted store: the files will not be.")
    ] = False,
    master: Master = None,
) -> Exit:
    """Add what happened since the last time to an archive: events, bodies, worlds, settings, each once.

    The folder is made if it is not there. A required cursor keeps what is not archived yet, and lets go of it
    when the files are on disk. Killed at any moment, the next run goes on. Exit code 1: nothing was new.
    """
    installed()
    from penstock.spark.archive.log import ArchiveLog
    from penstock.spark.archive.moment import ArchiveOptions, check_before
    from penstock.spark.jobs import archive as job

    options = ArchiveOptions(
        names=None if queues is None else tuple(queues),
        cursor=cursor,
        events_per_commit=batch,
        accept_gaps=accept_gaps,
        unencrypted=unencrypted,
        other_store=other_store,
    )
    store = store_of(session, queues, lambda ps: check_before(ps, ArchiveLog(folder), options))
    spark = started(master, store)
    with working(spark, "archive") as watch:
        if follow:
            done = job.follow(spark, store, folder, options, watch, every_s=every, stop=_ended())
        else:
            done = job.archive(spark, store, folder, options, watch)
    if session.out.as_json:
        session.out.object(row(done))
    for name in done.anew:
        session.out.note(
            f"queue {name!r} is not as it was archived: it was made anew or put back from a copy, or events "
            "are missing in between; it has another history in the archive from here on"
        )
    if done.bodies_missing:
        session.out.note(
            f"{done.bodies_missing:,} bodies had left the store before they were archived: their messages "
            "were done before the archive was begun"
        )
    session.out.say(
        f"{done.events:,} events, {done.bodies:,} bodies, {done.entries:,} entries: "
        f"{done.commits:,} commits, {done.files:,} files, {done.size_bytes:,} bytes"
    )
    return Exit.DONE if done.commits else Exit.NOTHING


def _ended() -> threading.Event:
    """Set when somebody wants this process to end: the commit under way is finished first."""
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    return ended


def compact(
    session: Session,
    folder: Folder,
    target: Annotated[
        int,
        typer.Option("--target", metavar="SIZE", parser=values.size, help="About how large files become."),
    ] = 128 * 1024 * 1024,
    keep: Annotated[
        float,
        typer.Option(
            "--keep",
            metavar="DURATION",
            parser=values.duration,
            help="How long files that are not needed any more stay, for those who read them now.",
        ),
    ] = 86_400.0,
    master: Master = None,
) -> Exit:
    """Merge the small files of an archive, and delete what was merged, or left by killed runs, long ago.

    Others may read and archive meanwhile. Exit code 1: there was nothing to merge or delete.
    """
    installed()
    from penstock.spark.jobs import compact as job

    spark = started(master, archive_of(folder))

    with working(spark, "compact") as watch:
        done = job.compact(spark, folder, target_bytes=target, keep_s=keep, told=watch)
    if session.out.as_json:
        session.out.object(row(done))
    session.out.say(
        f"{done.merged:,} files merged into {done.into:,} of {done.size_bytes:,} bytes; "
        f"{done.deleted:,} deleted"
    )
    return Exit.DONE if done.merged or done.deleted else Exit.NOTHING
