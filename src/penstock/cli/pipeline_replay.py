"""penstock pipeline replay: past messages, enqueued again."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli import values
from penstock.cli.exits import Exit
from penstock.cli.options import QueueName, Since, Until
from penstock.cli.rows import row
from penstock.cli.session import Session
from penstock.cli.spark import Archive, Master, archive_of, installed, started, store_of, working


def replay(
    session: Session,
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Of this replay: each counts once.", show_default=False)
    ],
    queue: QueueName,
    archive: Archive = None,
    kinds: Annotated[
        list[str] | None,
        typer.Option("--kind", metavar="KIND", help="With such an event; repeatable. Without: enqueued."),
    ] = None,
    since: Since = None,
    until: Until = None,
    header: Annotated[
        list[str] | None,
        typer.Option("--header", "-H", metavar="NAME=VALUE", help="With this header; repeatable."),
    ] = None,
    fairness_keys: Annotated[
        list[str] | None,
        typer.Option("--fairness-key", metavar="KEY", help="Of this fairness key; repeatable."),
    ] = None,
    ids: Annotated[
        list[str] | None, typer.Option("--id", metavar="ID", help="This message; repeatable.")
    ] = None,
    into: Annotated[
        str | None, typer.Option("--into", metavar="QUEUE", help="Into this queue instead of the same.")
    ] = None,
    master: Master = None,
) -> Exit:
    """Enqueue past messages again, chosen by what happened to them, each once for the name of the replay.

    From what the store still has or, with --archive, from an archive. --since and --until are compared with
    the time of the event. Killed and run again, it is done once; the same name later does nothing. The new
    messages have ids of their own, and a header replay-of. Exit code 1: there was nothing to enqueue.
    """
    if since is not None and until is not None and since >= until:
        raise typer.BadParameter("--since is not before --until: there is no time between them")
    headers = values.headers(header or [])
    installed()
    from penstock.spark.jobs import replay as job
    from penstock.spark.jobs.choosing import Choice
    from penstock.spark.jobs.sides import Side

    choice = Choice(
        kinds=tuple(kinds or ("enqueued",)),
        since_ns=since,
        until_ns=until,
        headers=headers,
        fairness_keys=None if fairness_keys is None else tuple(fairness_keys),
        ids=None if ids is None else tuple(ids),
    )
    job.check(name, choice)
    store = store_of(session, [into or queue] if archive else [queue, into or queue])
    source = Side(place=store.url, store=store)
    if archive is not None:
        source = Side(place=archive_of(archive, [queue]))
    spark = started(master, store, archive)
    with working(spark, "replay") as watch:
        done = job.replay(spark, name, source, queue, choice, store, into, watch)
    if session.out.as_json:
        session.out.object(row(done))
    if done.bodies_missing:
        session.out.note(_missing(done.bodies_missing, bool(headers or fairness_keys)))
    if done.again:
        session.out.say(f"replay {name!r} was done before: {done.enqueued:,} messages; nothing was done now")
    else:
        session.out.say(f"{done.enqueued:,} messages enqueued into {done.queue}")
    return Exit.DONE if done.enqueued else Exit.NOTHING


def _missing(count: int, by_body: bool) -> str:
    """Headers and keys are gone with the body: who was chosen by them too cannot be told any more."""
    if not by_body:
        return f"{count:,} messages were left out: there is no body of theirs any more"
    return (
        f"{count:,} messages with such an event have no body any more, and were left out: which of them had "
        "the headers and keys that were asked for, nobody knows, for those are gone with it"
    )
