"""`penstock pipeline replay`: past messages, enqueued again, each at most once for the name of a replay.

All of a replay is one bulk write, and its name is the name of that write: the store commits it once, however
often it is tried. A note in the store remembers it for good.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from penstock.backends.bulk import Staged, Txn, WriteTicket
from penstock.backends.registry import open_writer
from penstock.errors import InvalidConfig, InvalidMessage
from penstock.event import Kind
from penstock.keyring import configured_keys
from penstock.message import checked_name
from penstock.penstock import Penstock
from penstock.spark.archive.reading import Archive
from penstock.spark.jobs.choosing import BODY_COLUMNS, EVENT_COLUMNS, Choice, chosen, repeated
from penstock.spark.jobs.inputs import Columns, of_store
from penstock.spark.jobs.sides import Side
from penstock.spark.jobs.watch import Progress
from penstock.spark.store import KeySource, Store

if TYPE_CHECKING:
    import pyarrow

#: What the store notes of a replay that is over, under this and its name.
MARK = "penstock/replay/"


class Replayed(msgspec.Struct, kw_only=True):
    """What a replay has done. `again`: it was done before, and nothing was touched.

    `bodies_missing`: messages that were chosen by their events, times and ids, and of which there is nothing
    to enqueue. Headers and fairness keys are gone with the body: a choice by them leaves none of these out.
    """

    name: str
    queue: str
    enqueued: int = 0
    bodies_missing: int = 0
    again: bool = False


def replay(
    spark: SparkSession,
    name: str,
    source: Side,
    queue: str,
    choice: Choice,
    target: Store,
    into: str | None = None,
    told: Progress | None = None,
) -> Replayed:
    """Messages of a queue, from an archive or a store, into a queue of the target: the same, or `into`."""
    tell = told or (lambda *_: None)
    check(name, choice)
    done = Replayed(name=name, queue=into or queue)
    with target.open() as ps:
        known = ps.state.get(MARK + name)
        if known is not None:
            return _again(known, done)
        ps.queue(done.queue)
        # For any queue: such a job counts once in the whole store, and not once for each queue.
        ticket = ps.begin_write(None)
    tell("choosing messages", 0, 2)
    with _history(spark, source, queue) as (events, bodies):
        rows = chosen(events, bodies, choice).persist()
        try:
            done.bodies_missing = rows.where(fn.col("payload").isNull()).count()
            tell("writing messages", 1, 2)
            txn = Txn(MARK + name, 1)
            again = repeated(rows.where(fn.col("payload").isNotNull()), name)
            staged = _staged(again.withColumn("queue", fn.lit(done.queue)), ticket, txn, target)
        finally:
            rows.unpersist()
    with target.open() as ps:
        return _committed(ps, ticket, txn, staged, done)


def check(name: str, choice: Choice) -> None:
    """Refuse a name or a kind that cannot be; nothing else need be there yet."""
    try:
        checked_name(MARK + name, "the name of the replay")
    except InvalidMessage as error:
        raise InvalidConfig(str(error)) from None
    known = [str(kind) for kind in Kind]
    for kind in choice.kinds:
        if kind not in known:
            raise InvalidConfig(f"kind {kind!r:.40} is not known; accepted: {', '.join(known)}")


def _again(known: bytes, done: Replayed) -> Replayed:
    was = msgspec.json.decode(known, type=Replayed)
    if was.queue != done.queue:
        raise InvalidConfig(
            f"replay {done.name!r} was into queue {was.queue!r}; one into {done.queue!r} needs another name"
        )
    was.again = True
    return was


@contextmanager
def _history(spark: SparkSession, source: Side, queue: str) -> Iterator[tuple[DataFrame, DataFrame]]:
    """Events and bodies of a queue, from all of its histories."""
    if source.store is None:
        archive = Archive(spark, source.place)
        archive.check_queue(queue)
        events = archive.read("events", archive.files("events", (queue,)))
        bodies = archive.read("bodies", archive.files("bodies", (queue,)))
        base = archive.read("base", archive.files("base", (queue,))).withColumn("seq", fn.lit(0).cast("long"))
        wanted = ("generation", *BODY_COLUMNS)
        yield events, bodies.select(*wanted).union(base.select(*wanted))
        return
    columns: Columns = {"events": EVENT_COLUMNS, "bodies": BODY_COLUMNS}
    with of_store(spark, source.store, columns, (queue,)) as inputs:
        bodies = inputs.tables["bodies"].withColumn("seq", fn.coalesce("seq", fn.lit(0)))
        yield inputs.tables["events"], bodies.withColumn("generation", fn.lit(1))


def _staged(rows: DataFrame, ticket: WriteTicket, txn: Txn, target: Store) -> list[Staged]:
    """By the tasks, where only a commit finds it; of one that is tried again, what it told last counts."""
    keys = target.key_source()
    found = rows.mapInArrow(_task(ticket, txn, keys), "staged string").collect()
    return [msgspec.json.decode(row.staged, type=Staged) for row in found]


def _task(ticket: WriteTicket, txn: Txn, keys: KeySource) -> Any:
    def run(batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        import pyarrow as pa

        context = TaskContext.get()
        partition = 0 if context is None else context.partitionId()
        with open_writer(ticket, configured_keys(keys.file, keys.command)) as writer:
            staged = writer.stage(txn, partition, batches, lambda _: None)
        yield pa.RecordBatch.from_pydict({"staged": [msgspec.json.encode(staged).decode()]})

    return run


def _committed(ps: Penstock, ticket: WriteTicket, txn: Txn, staged: list[Staged], done: Replayed) -> Replayed:
    bad = [one for one in staged if one.rejected]
    if bad:
        ps.abort_write(ticket, txn)
        rows = sum(one.rejected for one in bad)
        raise InvalidMessage(
            f"{rows} messages cannot be enqueued into {done.queue!r}, so none was: {bad[0].reasons[0]}"
        )
    if not sum(one.rows for one in staged):  # Nothing was replayed: the name is as free as before.
        ps.abort_write(ticket, txn)
        return done
    written = ps.commit_write(ticket, txn, staged)
    done.enqueued, done.again = written.enqueued, written.again
    note = msgspec.structs.replace(done, again=False)
    ps.state.put(MARK + done.name, msgspec.json.encode(note))
    return done
