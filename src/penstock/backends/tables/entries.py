"""Entries of worlds in columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain

import numpy as np

from penstock.backends.bulk import BATCH_ROWS, BulkRequest
from penstock.backends.tables import columns
from penstock.backends.tables.columns import Array, Batch, Mask, Numbers, Schema, pa
from penstock.codec.entry import EntryFrame
from penstock.tables import arrow_type


class Entries:
    """The entries of some frames of a world."""

    def __init__(self, world: str, frames: list[EntryFrame]) -> None:
        self.world = world
        self._frames = frames
        self._counts = np.array([len(frame.names) for frame in frames])
        self.count = int(self._counts.sum())

    def seqs(self) -> Numbers:
        return np.concatenate(
            [np.arange(frame.first_seq, frame.first_seq + len(frame.names)) for frame in self._frames]
        )

    def at_ns(self) -> Numbers:
        return np.repeat(np.array([frame.at_ns for frame in self._frames]), self._counts)

    def ids(self) -> Array:
        joined = b"".join(frame.ids for frame in self._frames)
        return columns.id_texts(np.frombuffer(joined, np.uint8).reshape(-1, 16))

    def kinds(self) -> list[str]:
        return [kind for frame in self._frames for kind, _, _ in frame.names]

    def labels(self) -> Array:
        return columns.lists_of_strings([labels for frame in self._frames for _, labels, _ in frame.names])

    def flags(self) -> Array:
        return columns.lists_of_strings([flags for frame in self._frames for _, _, flags in frame.names])

    def bodies(self) -> Array:
        ends = _ends([frame.lengths for frame in self._frames])
        joined = b"".join(frame.bodies for frame in self._frames)
        return pa.Array.from_buffers(
            pa.binary(), self.count, [None, pa.py_buffer(ends), pa.py_buffer(joined)]
        )

    def vectors(self) -> Array:
        ends = _ends([frame.dims for frame in self._frames])
        joined = b"".join(frame.vectors for frame in self._frames)
        numbers = pa.array(np.frombuffer(joined, "<f8"))
        none = pa.array(ends[1:] == ends[:-1])
        return pa.ListArray.from_arrays(pa.array(ends), numbers, type=arrow_type("doubles"), mask=none)


def _ends(sizes: list[tuple[int, ...]]) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    flat = np.fromiter(chain.from_iterable(sizes), np.int32)
    ends = np.zeros(len(flat) + 1, np.int32)
    np.cumsum(flat, out=ends[1:])
    return ends


_COLUMNS: dict[str, Callable[[Entries], Array]] = {
    "world": lambda e: columns.constant(e.world, e.count),
    "id": Entries.ids,
    "seq": lambda e: columns.longs(e.seqs()),
    "at": lambda e: columns.times(e.at_ns()),
    "at_ns": lambda e: columns.longs(e.at_ns()),
    "kind": lambda e: columns.strings(e.kinds()),
    "body": Entries.bodies,
    "labels": Entries.labels,
    "flags": Entries.flags,
    "vector": Entries.vectors,
}


def batches_of(
    world: str, frames: list[EntryFrame], schema: Schema, request: BulkRequest, low: int, high: int
) -> Iterator[Batch]:
    """Those of some frames that are asked for, from seq `low` up to, not including, `high`."""
    entries = Entries(world, in_time(frames, request))
    if entries.count:
        made = [_COLUMNS[name](entries) for name in schema.names]
        batch = pa.RecordBatch.from_arrays(made, schema=schema)
        yield from wanted(batch, entries, request, low, high)


def in_time(frames: list[EntryFrame], request: BulkRequest) -> list[EntryFrame]:
    since_ns, until_ns = request.since_ns, request.until_ns
    return [
        frame
        for frame in frames
        if (since_ns is None or frame.at_ns >= since_ns) and (until_ns is None or frame.at_ns < until_ns)
    ]


def wanted(
    batch: pa.RecordBatch, entries: Entries, request: BulkRequest, low: int, high: int
) -> Iterator[Batch]:
    seqs = entries.seqs()
    kept: Mask = (seqs >= low) & (seqs < high)
    if request.kinds is not None:
        kinds = set(request.kinds)
        kept &= np.fromiter((kind in kinds for kind in entries.kinds()), np.bool_, entries.count)
    if not kept.all():
        batch = batch.filter(pa.array(kept))
    for start in range(0, batch.num_rows, BATCH_ROWS):
        yield batch.slice(start, BATCH_ROWS)
