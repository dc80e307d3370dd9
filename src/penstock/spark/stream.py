"""`spark.readStream.format("penstock")`: the journals of queues as a stream of events."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, NoReturn

import msgspec
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from penstock.backends.bulk import BulkReader, BulkRequest, Extent, SeqRange, Snapshot
from penstock.backends.registry import release_snapshot
from penstock.errors import PenstockError, QueueNotFound, SnapshotNotFound
from penstock.spark.offsets import DataLost, Noted, advanced, initial, losses, noted, spans, unchanged
from penstock.spark.options import ReadOptions
from penstock.spark.plan import base_request, check_named, parts, rows
from penstock.spark.queues import Watched
from penstock.spark.schema import columns_in
from penstock.spark.store import KeySource, Store, opened

if TYPE_CHECKING:
    import pyarrow

log = logging.getLogger("penstock")

#: A snapshot has the store write out what it keeps in memory: a stream asks for one a second at most.
SNAPSHOT_EVERY_S = 1.0


_EVENTS = BulkRequest(table="events")


class JournalStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Lives as long as its query, in a process of the driver's; copies of it read on the workers."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._columns = columns_in(schema, options.table, options.columns)
        self._store = Store(options.url or "", KeySource(options.key_file, options.key_command))
        self._keys = KeySource()
        self._queues = Watched(self._store, options)
        self._snapshot: Snapshot | None = None
        #: What the snapshot has at least.
        self._held: dict[str, Extent] = {}
        self._not_before_s = 0.0
        self._told: set[str] = set()

    # -- offsets

    def initialOffset(self) -> Noted:  # noqa: N802  (Spark's name, as are those below)
        """Where a new query starts; one that is started again goes on where Spark has noted that it was."""
        options, extents = self._options, self._queues.look()
        self._queues.check_named({})
        check_named(options.starting, extents, "startingOffsets")
        if options.starting_ns is not None:
            start = noted(self._queues.before(options.starting_ns), extents)
        elif options.starting is None and options.cursor is not None:
            return noted(self._queues.cursor_positions(), extents)
        else:
            start = noted(initial(options.starting or "earliest", extents), extents)
        self._queues.move_cursors(start, back=True)
        return start

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        most = self._options.max_offsets
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def latestOffset(self, start: Noted, limit: ReadLimit) -> Noted:  # noqa: N802
        soon = monotonic() < self._not_before_s
        extents = self._queues.seen if soon else self._queues.look()
        self._queues.check_named(start)
        for loss in losses(start, extents):
            self._tell(loss)
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        end = noted(advanced(unchanged(start, extents), extents, most), extents)
        if end == start:
            self._let_go()  # What has read everything holds nothing.
        return end

    def reportLatestOffset(self) -> Noted | None:  # noqa: N802
        seen = self._queues.seen
        return noted({name: extent.last_seq for name, extent in seen.items()}, seen) or None

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._queues.look()
        self._queues.frozen = True

    def commit(self, end: Noted) -> None:
        """Spark has noted that all of this is done."""
        self._queues.move_cursors(end)

    # -- batches

    def partitions(self, start: Noted, end: Noted) -> Sequence[InputPartition]:
        """Also of a batch that was begun when the query was stopped, and is begun again."""
        wanted = spans(start, end)
        if not wanted:
            return []
        try:
            return self._planned(start, wanted)
        except SnapshotNotFound:  # It ran out: the query has stood still for long.
            self._let_go()
            return self._planned(start, wanted)

    def _planned(self, start: Noted, wanted: Noted) -> list[InputPartition]:
        with self._covering(wanted) as reader:
            extents = _extents(reader, list(wanted))
            for loss in losses({name: start[name] for name in wanted}, extents):
                self._tell(loss)
            ranges = {}
            for name, last in unchanged(wanted, extents).items():
                if extents[name].last_seq < last:
                    self._tell(
                        f"queue {name!r} ends at {extents[name].last_seq}; events up to {last} were there"
                    )
                ranges[name] = SeqRange(start[name][0] + 1, last + 1)
            request = msgspec.structs.replace(
                base_request(self._options, self._columns),
                names=tuple(ranges),
                pattern=None,
                kinds=self._options.kinds,
                seqs=ranges,
            )
            return parts(reader, request, self._options, self._keys) if ranges else []

    def _covering(self, wanted: Noted) -> BulkReader:
        """A snapshot with these events; one serves all batches up to what was seen when it was taken."""
        held = unchanged(wanted, self._held)
        short = len(held) < len(wanted) or any(self._held[name].last_seq < seq for name, seq in held.items())
        if self._snapshot is None or short:
            seen = self._queues.seen or self._queues.look()
            self._let_go()
            self._snapshot, self._keys = self._store.take_snapshot(), self._store.key_source()
            self._held = dict(seen)
            self._not_before_s = monotonic() + SNAPSHOT_EVERY_S
        return opened(self._snapshot, self._keys)

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        return rows(partition, self._schema)

    def stop(self) -> None:
        self._let_go()

    def _let_go(self) -> None:
        """No batch is under way: Spark asks for the next when the last is done."""
        if self._snapshot is not None:
            with suppress(PenstockError):  # It ends by itself, if it has not already.
                release_snapshot(self._snapshot)
        self._snapshot, self._held = None, {}

    def _tell(self, loss: str) -> None:
        if self._options.fail_on_data_loss:
            raise DataLost(loss)
        if loss not in self._told:
            self._told.add(loss)
            log.warning("data loss: %s", loss)


class RefusedStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One that cannot be, and says why at whatever it is first asked for.

    Spark does not tell when a source is loaded whether it is for a stream, and when the query is started it
    takes a reader for granted: it would show an error of its own below the reason why there is none.
    """

    def __init__(self, error: PenstockError) -> None:
        self._error = error

    def _refuse(self, *_: object) -> NoReturn:
        raise self._error

    # Spark's names, and never what they would give.
    initialOffset = latestOffset = partitions = read = _refuse  # type: ignore[assignment]  # noqa: N815
    getDefaultReadLimit = prepareForTriggerAvailableNow = _refuse  # noqa: N815

    def stop(self) -> None:
        """There is nothing to let go."""


def _extents(reader: BulkReader, names: list[str]) -> dict[str, Extent]:
    """Of the queues that the snapshot has."""
    while names:
        try:
            return reader.plan(msgspec.structs.replace(_EVENTS, names=tuple(names))).extents
        except QueueNotFound as error:
            names.remove(error.name)
    return {}
