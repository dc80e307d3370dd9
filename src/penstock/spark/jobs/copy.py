"""`penstock pipeline copy`: queues of a store, or of an archive, into another store, in parallel."""

from __future__ import annotations

import msgspec
from pyspark.sql import SparkSession

from penstock.errors import InvalidConfig, QueueNotFound
from penstock.penstock import Penstock
from penstock.settings import QueueSettings
from penstock.spark.archive.layout import folder_name
from penstock.spark.jobs.restore import make_queue, name_dead_letters, restore
from penstock.spark.jobs.sides import Side, standing
from penstock.spark.jobs.watch import Progress
from penstock.spark.store import Store

#: Noted in the target, with the queue's name as a folder has it, until its dead-letter queue is named.
MARK = "penstock/copy/"


class Copied(msgspec.Struct, kw_only=True):
    """What a run has done. `leases_ended`: messages that were in flight are ready in the copy."""

    queues: int = 0
    restored: dict[str, int] = {}
    existing: int = 0
    leases_ended: int = 0
    dead_letters_dropped: list[str] = []


def copy(
    spark: SparkSession,
    source: Store,
    target: Store,
    queues: tuple[str, ...] | None = None,
    told: Progress | None = None,
    *,
    unencrypted: bool = False,
) -> Copied:
    """Messages, states and settings as they are at this moment; the source is not touched.

    A message whose id the target has is left alone: killed and run again, it goes on. So nobody should take
    messages out of the copy before it is whole. What is encrypted is written to a store that is not encrypted
    only if `unencrypted` says that this is meant.
    """
    tell = told or (lambda *_: None)
    tell("reading the queues", 0, 2)
    with source.open() as ps:
        found = {settings.name: settings for settings in ps.queues()}
    for name in queues or ():
        if name not in found:
            raise QueueNotFound(name)
    wanted = [found[name] for name in queues or sorted(found)]
    done = Copied(queues=len(wanted))
    _check_other(source, target, unencrypted=unencrypted)
    with target.open_or_make() as ps:
        done.dead_letters_dropped = _make_queues(ps, wanted)
        tell("copying messages", 1, 2)
        names = tuple(settings.name for settings in wanted)
        with standing(spark, Side(place=source.url, store=source), names) as moment:
            written = restore(moment.messages, ps, target)
    done.restored, done.existing, done.leases_ended = written.restored, written.existing, written.leased
    return done


def _make_queues(ps: Penstock, wanted: list[QueueSettings]) -> list[str]:
    """Those that are not there, or that a killed run has made; the ones that lack their dead-letter queue."""
    there = {settings.name: settings for settings in ps.queues()}
    made = []
    for settings in wanted:
        mark = MARK + folder_name(settings.name)
        if settings.name not in there:
            ps.state.put(mark, b"")
            make_queue(ps, settings)
        elif ps.state.get(mark) is None:
            _check_kind(settings, there[settings.name])
            continue
        made.append(settings)
    dropped = name_dead_letters(ps, made)
    for settings in made:
        ps.state.delete(MARK + folder_name(settings.name))
    return dropped


def _check_other(source: Store, target: Store, *, unencrypted: bool) -> None:
    """Before anything is made of the target."""
    from_, to = source.standing(), target.standing()
    if from_.path is not None and from_.path == to.path:
        raise InvalidConfig(f"{source.url} and {target.url} are the same store; name another to copy to")
    if from_.sealed and not to.sealed and not unencrypted:
        raise InvalidConfig(
            f"{source.url} is encrypted, and {target.url} is not: name a penstock.yaml whose store is, or "
            "say --unencrypted if this is meant"
        )


def _check_kind(mine: QueueSettings, theirs: QueueSettings) -> None:
    if mine.fifo != theirs.fifo:
        kinds = {True: "fifo", False: "not fifo"}
        raise InvalidConfig(
            f"queue {mine.name!r} is {kinds[mine.fifo]}, and {kinds[theirs.fifo]} in the target; delete it "
            "there, or copy to another store"
        )
