"""penstock pipeline rebuild, copy, verify: queues into other stores, and whether they are the same there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli import values
from penstock.cli.columns import field
from penstock.cli.exits import Exit
from penstock.cli.rows import row
from penstock.cli.session import Session
from penstock.cli.spark import Master, Queues, archive_of, installed, started, store_of, target_of, working
from penstock.cli.tables import Column
from penstock.message import STORED_STATES

if TYPE_CHECKING:
    from penstock.spark.jobs.verify import Verified

Moment = Annotated[
    int | None,
    typer.Option(
        "--until",
        metavar="TIME",
        parser=values.moment,
        help="As it was at this time: ISO 8601, or 15m for 15 minutes ago.",
    ),
]
MomentSeq = Annotated[
    int | None,
    typer.Option("--until-seq", metavar="N", min=0, help="As it was after this event; of one queue."),
]

_DIFFERENCES = (
    Column("queue", field("queue"), style="bold", flexible=True),
    Column("message", field("id")),
    Column("what", field("what"), style="bold red"),
    Column("columns", lambda found: ", ".join(found["columns"]), fold_chars=200),
)


def rebuild(
    session: Session,
    archive: Annotated[str, typer.Argument(metavar="ARCHIVE", help="The archive.", show_default=False)],
    into: Annotated[
        str,
        typer.Argument(metavar="STORE", help="The new store: a folder, a URL or a YAML.", show_default=False),
    ],
    queues: Queues = None,
    until: Moment = None,
    until_seq: MomentSeq = None,
    master: Master = None,
) -> Exit:
    """Make queues anew from an archive, as they were at the end or at any moment: every message, every state.

    Messages that were leased become ready. Killed, the same command goes on. Exit code 1: some messages could
    not be brought back, for their bodies were never archived.
    """
    _check_seq(queues, until_seq)
    installed()
    from penstock.spark.jobs import rebuild as job
    from penstock.spark.jobs.history import Until

    target = target_of(into)
    spark = started(master, archive_of(archive, queues))
    wanted = None if queues is None else tuple(queues)
    with working(spark, "rebuild") as watch:
        done = job.rebuild(spark, archive, target, wanted, Until(until_seq, until), watch)
    if session.out.as_json:
        session.out.object(row(done))
    if done.again:
        session.out.say(f"{into} was rebuilt from the same before; nothing was done")
        return Exit.DONE
    for name in done.dead_letters_dropped:
        session.out.note(f"queue {name!r} has no dead-letter queue: it is not among those that were rebuilt")
    if done.bodies_newer:
        session.out.note(f"{done.bodies_newer:,} messages have a body that replaced theirs later")
    if done.bodies_missing:
        session.out.note(f"{done.bodies_missing:,} messages were left out: their bodies were never archived")
    session.out.say(
        f"{done.queues:,} queues: {_states(done.restored)}; {done.existing:,} were there; "
        f"{done.leases_ended:,} leases ended"
    )
    return Exit.NOTHING if done.bodies_missing else Exit.DONE


def copy(
    session: Session,
    into: Annotated[
        str,
        typer.Argument(metavar="STORE", help="Where to: a folder, a URL or a YAML.", show_default=False),
    ],
    queues: Queues = None,
    verify_too: Annotated[bool, typer.Option("--verify", help="Compare the two afterwards.")] = False,
    unencrypted: Annotated[
        bool, typer.Option("--unencrypted", help="Copy an encrypted store into one that is not.")
    ] = False,
    master: Master = None,
) -> Exit:
    """Copy queues of the store into another one: settings, messages, states.

    Messages that are leased are ready in the copy. Those that the copy has are left alone: killed, the same
    command goes on. Exit code 4: with --verify, they differ.
    """
    installed()
    from penstock.spark.jobs import copy as job
    from penstock.spark.jobs import verify as verifying
    from penstock.spark.jobs.sides import Side

    store, target = store_of(session, queues), target_of(into)
    spark = started(master, store)
    wanted = None if queues is None else tuple(queues)
    with working(spark, "copy") as watch:
        done = job.copy(spark, store, target, wanted, watch, unencrypted=unencrypted)
        found = None
        if verify_too:
            left, right = Side(place=store.url, store=store), Side(place=into, store=target)
            found = verifying.verify(spark, left, right, wanted)
    if session.out.as_json:
        session.out.object({**row(done), **({} if found is None else {"same": found.same})})
    for name in done.dead_letters_dropped:
        session.out.note(f"queue {name!r} has no dead-letter queue in the copy: copy that one too")
    session.out.say(
        f"{done.queues:,} queues: {_states(done.restored)}; {done.existing:,} were there; "
        f"{done.leases_ended:,} leases ended"
    )
    return Exit.DONE if found is None else _told(session, found)


def verify(
    session: Session,
    left: Annotated[str, typer.Argument(metavar="LEFT", help="A store or an archive.", show_default=False)],
    right: Annotated[str, typer.Argument(metavar="RIGHT", help="The other.", show_default=False)],
    queues: Queues = None,
    until: Moment = None,
    until_seq: MomentSeq = None,
    master: Master = None,
) -> Exit:
    """Compare the messages of two places: states, attempts, payloads, headers and all else that is stored.

    --until is for LEFT, which then is an archive. A leased message counts as ready. Exit code 4: they differ.
    """
    _check_seq(queues, until_seq)
    installed()
    from penstock.spark.jobs import verify as job
    from penstock.spark.jobs.history import Until
    from penstock.spark.jobs.sides import check_there, side

    wanted = None if queues is None else tuple(queues)
    sides = side(left, Until(until_seq, until)), side(right)
    for one in sides:
        check_there(one, wanted)
    spark = started(master, *(one.store or one.place for one in sides))
    with working(spark, "verify"):
        found = job.verify(spark, *sides, wanted)
    if session.out.as_json:
        session.out.object({"same": found.same, **row(found)})
    return _told(session, found)


def _told(session: Session, found: Verified) -> Exit:
    if not session.out.as_json:
        session.out.rows([row(one) for one in found.differences], _DIFFERENCES)
    if found.same:
        session.out.say(f"{found.left:,} messages: no difference")
        return Exit.DONE
    queues = f"; {found.queues_differing:,} queues differ" if found.queues_differing else ""
    session.out.say(
        f"{found.left:,} and {found.right:,} messages: {found.missing_right:,} only left, "
        f"{found.missing_left:,} only right, {found.differing:,} differ{queues}"
    )
    return Exit.DAMAGED


def _check_seq(queues: list[str] | None, until_seq: int | None) -> None:
    if until_seq is not None and (queues is None or len(queues) != 1):
        raise typer.BadParameter("--until-seq is the number of an event of one queue: name it with --queue")


def _states(counts: dict[str, int]) -> str:
    found = [(counts.get(state, 0), state) for state in STORED_STATES]
    return ", ".join(f"{count:,} {state}" for count, state in found if count) or "no messages"
