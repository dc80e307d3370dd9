"""Messages into a store as they stood elsewhere, by the tasks of a job: the end of `rebuild` and `copy`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql import functions as fn

from penstock.backends.bulk import StoredMessage
from penstock.errors import InvalidMessage
from penstock.penstock import Penstock
from penstock.settings import QueueSettings
from penstock.spark.jobs.as_stored import STORED
from penstock.spark.store import Store

if TYPE_CHECKING:
    import pyarrow

#: Messages, or bytes of payload, that are one write.
BATCH_MESSAGES = 500
BATCH_BYTES = 4 * 1024 * 1024
#: Ids that are told of messages that could not be carried over as they were.
MOST_IDS = 100

_TOLD = "counts string"


class Restored(msgspec.Struct, kw_only=True):
    """What became of rows. `restored` is by state; `existing` were there already, and left alone.

    Of both, `leased` were in flight, and are ready. `missing` have no body and are left out; `newer` have one
    that replaced theirs later.
    """

    restored: dict[str, int] = {}
    existing: int = 0
    leased: int = 0
    missing: int = 0
    newer: int = 0
    missing_ids: list[str] = []
    newer_ids: list[str] = []

    def add(self, other: Restored) -> None:
        for state, count in other.restored.items():
            self.restored[state] = self.restored.get(state, 0) + count
        self.existing += other.existing
        self.leased += other.leased
        self.missing += other.missing
        self.newer += other.newer
        self.missing_ids = sorted([*self.missing_ids, *other.missing_ids])[:MOST_IDS]
        self.newer_ids = sorted([*self.newer_ids, *other.newer_ids])[:MOST_IDS]


def restore(rows: DataFrame, ps: Penstock, target: Store) -> Restored:
    """Rows of `STORED` columns into the queues that they name, each id once, however often it is tried.

    With `missing` and `newer`, which say what is wrong with a row, if they know. `ps` is the target, which is
    open meanwhile: every task attaches to whoever owns it.
    """
    flags = [
        (fn.col(name) if name in rows.columns else fn.lit(False)).alias(name) for name in ("missing", "newer")
    ]
    told = rows.select(*STORED, *flags).mapInArrow(_task(target.reached()), _TOLD)
    done = Restored()
    for row in told.collect():
        done.add(msgspec.json.decode(row.counts, type=Restored))
    return done


def _task(target: Store) -> Any:
    def run(batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        import pyarrow as pa

        with target.open() as ps:
            counts = _restored(ps, batches)
        yield pa.RecordBatch.from_pydict({"counts": [msgspec.json.encode(counts).decode()]})

    return run


class _Row(msgspec.Struct):
    """A message on its way, and what is known of it besides."""

    queue: str
    message: StoredMessage
    leased: bool


def _restored(ps: Penstock, batches: Iterable[pyarrow.RecordBatch]) -> Restored:
    counts = Restored()
    for some in _written_together(_whole(batches, counts)):
        results = ps.restore(some[0].queue, [row.message for row in some])
        for row, result in zip(some, results, strict=True):
            if result.error is not None:
                raise InvalidMessage(f"message {row.message.id} of queue {row.queue!r}: {result.error}")
            if result.duplicate:
                counts.existing += 1
            else:
                state = row.message.state
                counts.restored[state] = counts.restored.get(state, 0) + 1
            counts.leased += row.leased
    return counts


def _whole(batches: Iterable[pyarrow.RecordBatch], counts: Restored) -> Iterator[_Row]:
    """Rows that can be restored; the others are counted."""
    for values in (values for batch in batches for values in batch.to_pylist()):
        message_id, queue, leased = values["id"], values.pop("queue"), values.pop("leased")
        missing, newer = values.pop("missing"), values.pop("newer")
        if missing:
            counts.add(Restored(missing=1, missing_ids=[message_id]))
            continue
        if newer:
            counts.add(Restored(newer=1, newer_ids=[message_id]))
        values["headers"] = dict(values["headers"])
        values["expires_at_ns"] = values["expires_at_ns"] or None
        yield _Row(queue, StoredMessage(**values), leased)


def _written_together(rows: Iterable[_Row]) -> Iterator[list[_Row]]:
    """Messages of one queue, so many that one write is worth its while and holds nobody up."""
    some: list[_Row] = []
    size_bytes = 0
    for row in rows:
        full = len(some) >= BATCH_MESSAGES or size_bytes >= BATCH_BYTES
        if some and (full or row.queue != some[0].queue):
            yield some
            some, size_bytes = [], 0
        some.append(row)
        size_bytes += len(row.message.payload)
    if some:
        yield some


def make_queue(ps: Penstock, settings: QueueSettings) -> None:
    """As it was elsewhere, but for its dead-letter queue, which may not be there yet."""
    values = {name: getattr(settings, name) for name in QueueSettings.__struct_fields__[1:]}
    ps.create_queue(settings.name, **{**values, "dead_letter": None})


def name_dead_letters(ps: Penstock, queues: list[QueueSettings]) -> list[str]:
    """When all are made; those whose dead-letter queue is not among them go without, and are told."""
    there = {settings.name for settings in ps.queues()}
    for settings in queues:
        if settings.dead_letter in there:
            ps.update_queue(settings.name, dead_letter=settings.dead_letter)
    return [one.name for one in queues if one.dead_letter is not None and one.dead_letter not in there]
