"""`penstock pipeline rebuild`: queues of an archive, as they were at a moment, in a new store."""

from __future__ import annotations

import msgspec
from pyspark.sql import SparkSession
from pyspark.sql import functions as fn

from penstock.errors import InvalidConfig
from penstock.penstock import Penstock
from penstock.spark.archive.layout import folder_name
from penstock.spark.jobs.history import History, Until
from penstock.spark.jobs.restore import make_queue, name_dead_letters, restore
from penstock.spark.jobs.watch import Progress
from penstock.spark.store import Store

#: What a store notes of a queue that is rebuilt, under this and the queue's name as a folder has it.
MARK = "penstock/rebuild/"


class Rebuilt(msgspec.Struct, kw_only=True):
    """What a run has done, and what could not be carried over.

    `leases_ended`: messages that were in flight are ready. `bodies_missing`: messages of which only events
    were archived, left out. `bodies_newer`: replaced by `upsert` after the moment, and before they were
    archived; they come with the later body. `dead_letters_dropped`: queues whose dead-letter queue is not
    there. `again`: it was done before, and nothing was touched.
    """

    queues: int = 0
    restored: dict[str, int] = {}
    existing: int = 0
    leases_ended: int = 0
    bodies_missing: int = 0
    bodies_newer: int = 0
    dead_letters_dropped: list[str] = []
    again: bool = False
    #: Ids, the first of them, of messages that were left out or came with a later body.
    missing_ids: list[str] = []
    newer_ids: list[str] = []


def rebuild(
    spark: SparkSession,
    folder: str,
    target: Store,
    queues: tuple[str, ...] | None = None,
    until: Until | None = None,
    told: Progress | None = None,
) -> Rebuilt:
    """Killed and run again with the same arguments, it goes on, up to where the archive was at its beginning.

    Queues that are over are left alone. Messages that are there are, too.
    """
    tell = told or (lambda *_: None)
    tell("reading the archive", 0, 2)
    history = History(spark, folder, queues, until)
    with target.open_or_make() as ps:  # Owned, or attached to, for as long as it takes.
        marks = _to_do(ps, history)
        done = Rebuilt(queues=len(marks), again=bool(history.settings) and not marks)
        if done.again:
            return done
        done.dead_letters_dropped = _make_queues(ps, history, marks)
        ends = {name: mark.end_seq for name, mark in marks.items()}
        messages = history.messages(ends).withColumn("missing", fn.col("body_seq").isNull())
        tell("writing messages", 1, 2)
        written = restore(messages, ps, target)
        for name, mark in marks.items():
            _note(ps, name, msgspec.structs.replace(mark, done=True))
    done.restored, done.existing, done.leases_ended = written.restored, written.existing, written.leased
    done.bodies_missing, done.missing_ids = written.missing, written.missing_ids
    done.bodies_newer, done.newer_ids = written.newer, written.newer_ids
    return done


# -- queues -------------------------------------------------------------------------------------


class _Mark(msgspec.Struct, frozen=True, kw_only=True):
    """What a store notes of a queue that is rebuilt: from what, and up to which event of those there were."""

    archive_id: str
    generation: int
    until: Until
    end_seq: int
    done: bool = False


def _to_do(ps: Penstock, history: History) -> dict[str, _Mark]:
    """Queues that are not over, with how they were begun. One that is there must be this rebuild's own."""
    there = {settings.name for settings in ps.queues()}
    found = {}
    for name in history.settings:
        wanted = known = _begun(history, name)
        if name in there:
            known = _noted(ps, name)
            if msgspec.structs.replace(known, end_seq=wanted.end_seq, done=False) != wanted:
                raise InvalidConfig(
                    f"queue {name!r} exists in the store, and not from a rebuild with the same arguments; "
                    "name a folder without a store, or delete the queue"
                )
        if not known.done:
            found[name] = known
        elif known.end_seq != wanted.end_seq:
            raise InvalidConfig(
                f"queue {name!r} was rebuilt up to event {known.end_seq}, where the archive ended then, and "
                f"it goes on to {wanted.end_seq} now; name a folder without a store, or delete the queue"
            )
    return found


def _begun(history: History, name: str) -> _Mark:
    return _Mark(
        archive_id=history.archive.state.archive_id,
        generation=history.positions[name].generation,
        until=history.until,
        end_seq=history.ends[name],
    )


def _make_queues(ps: Penstock, history: History, marks: dict[str, _Mark]) -> list[str]:
    """With the settings of the moment; those that have no dead-letter queue now."""
    there = {settings.name for settings in ps.queues()}
    for name, mark in marks.items():
        _note(ps, name, mark)
        if name not in there:
            make_queue(ps, history.settings[name])
    return name_dead_letters(ps, [history.settings[name] for name in marks])


def _note(ps: Penstock, name: str, mark: _Mark) -> None:
    ps.state.put(MARK + folder_name(name), msgspec.json.encode(mark))


def _noted(ps: Penstock, name: str) -> _Mark:
    known = ps.state.get(MARK + folder_name(name))
    return _NO_MARK if known is None else msgspec.json.decode(known, type=_Mark)


_NO_MARK = _Mark(archive_id="", generation=0, until=Until(), end_seq=0)
