"""`penstock pipeline replay`: past messages, enqueued again, each at most once for the name of a replay.

All of a replay is one bulk write, and its name is the name of that write: the store commits it once, however
often it is tried. Notes in the store remember for good that it was begun, and that it is over: the store
itself knows which writes it has done for some weeks only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from penstock.backends.bulk import Staged, Txn, WriteTicket
from penstock.backends.registry import open_writer
from penstock.clock import to_ns
from penstock.errors import InvalidConfig, InvalidMessage
from penstock.event import Kind
from penstock.keyring import configured_keys
from penstock.message import checked_name
from penstock.penstock import Penstock
from penstock.spark.archive.reading import Archive
from penstock.spark.jobs.choosing import (
    BODY_COLUMNS,
    EVENT_COLUMNS,
    REPLAY_OF,
    Choice,
    chosen,
    repeated,
)
from penstock.spark.jobs.inputs import Columns, of_store
from penstock.spark.jobs.sides import Side
from penstock.spark.jobs.watch import Progress
from penstock.spark.store import KeySource, Store

if TYPE_CHECKING:
    import pyarrow

#: What the store notes of a replay whose commit was begun, under this and its name.
MARK = "penstock/replay/"
#: So long the store surely knows whether a replay that was begun has been committed.
KNOWN_S = 29 * 86_400.0


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


class _Note(Replayed, kw_only=True):
    """What a store has noted. With `begun_ns`, it is not known whether `ticket` was committed."""

    begun_ns: int = 0
    ticket: str = ""


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
        known = _noted(ps, done)
        if known is not None and not known.begun_ns:
            return _again(known)
        ps.queue(done.queue)
        # For any queue: such a job counts once in the whole store, and not once for each queue.
        ticket = ps.begin_write(None)
        if known is not None:
            _check_known(known, ticket)
    tell("choosing messages", 0, 2)
    with _history(spark, source, queue) as (events, bodies):
        keys = chosen(events, bodies, choice).persist()
        try:
            done.bodies_missing = keys.where(fn.col("brought").isNull()).count()
            tell("writing messages", 1, 2)
            txn = Txn(MARK + name, 1)
            again = repeated(keys, bodies, name)
            staged = _staged(again.withColumn("queue", fn.lit(done.queue)), ticket, txn, target)
        finally:
            keys.unpersist()
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


def _noted(ps: Penstock, done: Replayed) -> _Note | None:
    """What is known of the name; it is that of one queue."""
    raw = ps.state.get(MARK + done.name)
    if raw is None:
        return None
    known = msgspec.json.decode(raw, type=_Note)
    if known.queue != done.queue:
        was = "begun" if known.begun_ns else "done"
        raise InvalidConfig(
            f"replay {done.name!r} was {was} into queue {known.queue!r}; one into {done.queue!r} needs "
            "another name"
        )
    return known


def _note(ps: Penstock, done: Replayed, begun_ns: int = 0, ticket: str = "") -> None:
    values = msgspec.structs.asdict(done) | {"again": False}
    ps.state.put(MARK + done.name, msgspec.json.encode(_Note(**values, begun_ns=begun_ns, ticket=ticket)))


def _again(known: _Note) -> Replayed:
    values = {name: getattr(known, name) for name in Replayed.__struct_fields__}
    return Replayed(**values | {"again": True})


def _check_known(begun: _Note, ticket: WriteTicket) -> None:
    """Whether a commit that was begun long ago was made nobody knows any more; at most once is promised."""
    if ticket.at_ns - begun.begun_ns > to_ns(KNOWN_S):
        raise InvalidConfig(
            f"replay {begun.name!r} was begun on {_utc(begun.begun_ns)} and did not end; whether queue "
            f"{begun.queue!r} got its messages is not known any more: look for them by their header "
            f"{REPLAY_OF!r}, and take another name to replay what is missing"
        )


def _utc(at_ns: int) -> str:
    return datetime.fromtimestamp(at_ns // 10**9, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


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
    known = _noted(ps, done)  # Another of the same name may have come first.
    if known is None:
        _note(ps, done, ticket.at_ns, ticket.id)
    written = ps.commit_write(ticket, txn, staged)
    done.enqueued, done.again = written.enqueued, written.again
    _note(ps, done)
    return done
