"""From options, filters and a snapshot to partitions; and a partition's rows in the form that Spark wants."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import msgspec
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from penstock.backends.bulk import BulkPartition, BulkReader, BulkRequest, Extent, SeqRange
from penstock.errors import InvalidConfig
from penstock.message import MAX_COUNT
from penstock.spark.filters import Pushed
from penstock.spark.options import JOURNALS, Place, Places, ReadOptions
from penstock.spark.rejects import Rejects
from penstock.spark.schema import conformed
from penstock.spark.store import KeySource, opened

if TYPE_CHECKING:
    import pyarrow


class Part(InputPartition):
    """What one task reads, where it finds keys, and where it sets aside what is damaged."""

    def __init__(self, value: BulkPartition, keys: KeySource, rejects: str | None) -> None:
        super().__init__(value)
        self.keys = keys
        self.rejects = rejects


def base_request(options: ReadOptions, columns: tuple[str, ...] | None = None) -> BulkRequest:
    """What the options say by themselves, whatever the snapshot holds."""
    return BulkRequest(
        table=options.table,
        names=options.names,
        pattern=options.pattern,
        columns=columns,
        partitions=options.partitions or os.cpu_count() or 1,
        on_truncated="fail" if options.fail_on_data_loss else "skip",
        on_damage="fail" if options.rejects is None else "skip",
    )


def batch_request(
    reader: BulkReader, options: ReadOptions, columns: tuple[str, ...], pushed: Pushed
) -> BulkRequest | None:
    """What a batch reads of a snapshot; None, if options and filters leave nothing over."""
    request = base_request(options, columns)
    if pushed.nothing_left:
        return None
    extents = reader.plan(msgspec.structs.replace(request, partitions=1)).extents
    check_named(options.starting, extents, "startingOffsets")
    check_named(options.ending, extents, "endingOffsets")
    ranges = {
        name: _seqs(name, extent, options, pushed) for name, extent in extents.items() if pushed.keeps(name)
    }
    kept = {name: seqs for name, seqs in ranges.items() if seqs.end is None or seqs.first < seqs.end}
    if not kept:
        return None
    if len(kept) < len(extents):
        request = msgspec.structs.replace(request, names=tuple(kept), pattern=None)
    return msgspec.structs.replace(
        request,
        states=pushed.states,
        kinds=pushed.kinds,
        seqs={name: seqs for name, seqs in kept.items() if seqs != SeqRange()},
        since_ns=pushed.times_ns.low or None,
        until_ns=pushed.times_ns.end if pushed.times_ns.end < MAX_COUNT else None,
    )


def parts(
    reader: BulkReader, request: BulkRequest, options: ReadOptions, keys: KeySource
) -> list[InputPartition]:
    """What each task is to read; what is damaged as a whole is set aside already."""
    plan = reader.plan(request)
    if options.rejects is not None:
        rejects = Rejects(options.rejects, plan.snapshot, request)
        for damage in plan.damage:
            rejects(damage)
        rejects.write()
    return [Part(partition, keys, options.rejects) for partition in plan.partitions]


def rows(part: InputPartition, schema: StructType) -> Iterator[pyarrow.RecordBatch]:
    """What a task reads; Spark calls for nothing in particular where there are no partitions."""
    if not isinstance(part, Part):
        return
    partition: BulkPartition = part.value
    expected = to_arrow_schema(schema, timezone="UTC")
    rejects = None
    if part.rejects is not None:
        rejects = Rejects(part.rejects, partition.snapshot, partition)
    with opened(partition.snapshot, part.keys) as reader:
        for batch in reader.read(partition, rejects):
            yield conformed(batch, expected)
    if rejects is not None:
        rejects.write()


def place_of(places: Places, name: str, default: Place) -> Place:
    """What is said of one queue."""
    return places.get(name, default) if isinstance(places, dict) else places


def check_named(places: Places | None, names: Mapping[str, object], option: str) -> None:
    """A queue in JSON that is not read is a mistake."""
    for name in places if isinstance(places, dict) else ():
        if name not in names:
            raise InvalidConfig(f"option {option} has queue {name!r:.60}, which is not read; check its name")


def _seqs(name: str, extent: Extent, options: ReadOptions, pushed: Pushed) -> SeqRange:
    """From first to end. What a filter leaves out nobody misses; what an offset names must be there."""
    if options.table not in JOURNALS:
        return SeqRange()
    start = place_of(options.starting or "earliest", name, "earliest")
    if isinstance(start, int):
        first = max(start + 1, pushed.seqs.low)
    else:
        first = max(pushed.seqs.low, extent.first_seq) if pushed.seqs.low else 0
    last = place_of(options.ending, name, "latest")
    end = pushed.seqs.end
    if isinstance(last, int):
        end = min(end, last + 1)
        if last > extent.last_seq and options.fail_on_data_loss:
            raise InvalidConfig(
                f"option endingOffsets: queue {name!r} ends at {extent.last_seq}, before {last}; "
                "failOnDataLoss=false reads what there is"
            )
    return SeqRange(first, end if end < MAX_COUNT else None)
