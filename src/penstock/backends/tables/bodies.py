"""Bodies in columns, and the batches that are made of them."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Protocol, Self

import msgspec
import numpy as np

from penstock.backends.bulk import BATCH_BYTES, BulkRequest
from penstock.backends.tables import columns
from penstock.backends.tables.columns import Array, Batch, Bytes, Joined, Mask, Numbers, Schema, pa
from penstock.backends.tables.damage import Damages, Unreadable
from penstock.codec.body import (
    BODY_VERSION,
    COMPRESSED_VERSION,
    FIXED_BYTES,
    PLACED,
    Variable,
    decode_body,
    decode_variable,
    decode_variable_of,
    unpacked_payload,
    unpacked_size,
)
from penstock.errors import StorageCorrupt
from penstock.event import Kind
from penstock.message import MAX_PRIORITY, MAX_WEIGHT, format_id

#: Events that a body came, or came anew, into its queue by.
BRINGING = (Kind.ENQUEUED, Kind.UPDATED, Kind.REPAIRED)


class Bodies:
    """Bodies of one queue. Making it raises `Unreadable` where one does not decode; so may its columns."""

    def __init__(self, queue: str, ids: Bytes, values: Sequence[bytes]) -> None:
        self.queue = queue
        self.ids = ids
        self.values = values
        self.count = len(values)
        self._rows = Joined(values)
        self._versions = self._number(0, "u1")
        self.priorities, self.weights = self._number(2, "u1"), self._number(3, ">u2")
        self._ends = FIXED_BYTES + self._number(29, ">u4")
        known = (self._versions == BODY_VERSION) | (self._versions == COMPRESSED_VERSION)
        possible = (self.priorities <= MAX_PRIORITY) & (self.weights >= 1) & (self.weights <= MAX_WEIGHT)
        # A body shorter than its fixed part would take its numbers from its neighbour.
        fits = (self._rows.lengths >= FIXED_BYTES) & (self._ends <= self._rows.lengths)
        self.refuse(~(known & possible & fits), lambda at: decode_body(values[at]))

    def _number(self, offset: int, kind: str) -> Numbers:
        return self._rows.numbers(self._rows.starts + offset, kind)

    def refuse(self, bad: Mask, decode: Callable[[int], object]) -> None:
        """Say of each of these what is wrong with it, in the words of the one who decodes it alone."""
        errors: dict[int, StorageCorrupt] = {}
        for at in np.flatnonzero(bad).tolist():
            try:
                decode(at)
            except StorageCorrupt as error:
                errors[at] = error
        if errors:
            raise Unreadable(errors)

    @functools.cached_property
    def enqueued_ns(self) -> Numbers:
        return self._number(5, ">u8")

    @functools.cached_property
    def orders_ns(self) -> Numbers:
        return self._number(13, ">u8")

    @functools.cached_property
    def expiries_ns(self) -> Numbers:
        return self._number(21, ">u8")

    @functools.cached_property
    def visible_ns(self) -> Numbers:
        """When it first became visible in its queue."""
        placed = (self._number(1, "u1") & PLACED) != 0
        return np.where(placed, self.orders_ns, self.enqueued_ns)

    def _part(self, which: int) -> Array:
        """The fixed part (0), the variable part (1) or the payload (2) of each, cut from the joined rows."""
        offsets = np.empty(3 * self.count + 1, np.int32)
        offsets[0:-1:3] = self._rows.starts
        offsets[1::3] = self._rows.starts + FIXED_BYTES
        offsets[2::3] = self._rows.starts + self._ends
        offsets[-1] = self._rows.lengths.sum()
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(self._rows.blob)]
        parts = pa.Array.from_buffers(pa.binary(), 3 * self.count, buffers)
        return parts.take(pa.array(np.arange(which, 3 * self.count, 3)))

    @functools.cached_property
    def _variables(self) -> tuple[list[Variable], Array]:
        """The different variable parts, decoded, and which of them each row has: mostly there are few."""
        encoded = self._part(1).dictionary_encode()
        try:
            return [decode_variable(one) for one in encoded.dictionary.to_pylist()], encoded.indices
        except (msgspec.DecodeError, UnicodeDecodeError):
            self.refuse(np.ones(self.count, bool), lambda at: decode_variable_of(self.values[at]))
            raise

    def _of_variables(self, column: Callable[[list[Variable]], Array]) -> Array:
        found, chosen = self._variables
        return column(found).take(chosen)

    def fairness_keys(self) -> Array:
        return self._of_variables(lambda found: columns.strings([one[0] for one in found]))

    def headers(self) -> Array:
        return self._of_variables(lambda found: columns.maps([one[1] for one in found]))

    def throttle_keys(self) -> Array:
        return self._of_variables(lambda found: columns.lists_of_strings([one[2] for one in found]))

    def dedup_ids(self) -> Array:
        return self._of_variables(lambda found: columns.strings([one[3] for one in found]))

    @functools.cached_property
    def payloads(self) -> Array:
        packed = self._versions == COMPRESSED_VERSION
        if not packed.any():
            return self._part(2)
        found = self._part(2).to_pylist()
        errors: dict[int, StorageCorrupt] = {}
        for at in np.flatnonzero(packed).tolist():
            try:
                found[at] = unpacked_payload(found[at])
            except StorageCorrupt as error:
                errors[at] = error
        if errors:
            raise Unreadable(errors)
        return pa.array(found, pa.binary())

    def sizes_bytes(self) -> Array:
        """Of payloads as they were enqueued; none is decompressed for it."""
        sizes = self._rows.lengths - self._ends
        packed = self._versions == COMPRESSED_VERSION
        if packed.any():
            ends = self._ends.tolist()
            self.refuse(packed, lambda at: unpacked_size(self.values[at][ends[at] :]))
            for at in np.flatnonzero(packed).tolist():
                sizes[at] = unpacked_size(self.values[at][ends[at] :])
        return columns.longs(sizes)

    def portions(self) -> list[slice]:
        """Parts that are not too large for a batch when their payloads are decompressed."""
        packed = self._versions == COMPRESSED_VERSION
        if not packed.any():
            return [slice(0, self.count)]
        sizes = self._rows.lengths.copy()
        for at in np.flatnonzero(packed).tolist():
            with contextlib.suppress(StorageCorrupt):  # It is told where it is decompressed.
                sizes[at] = unpacked_size(self.values[at][int(self._ends[at]) :])
        # A part ends with the row that brings it to the limit.
        part = (np.cumsum(sizes) - sizes) // BATCH_BYTES
        starts = [0, *(np.flatnonzero(np.diff(part)) + 1).tolist(), self.count]
        return [slice(start, end) for start, end in pairwise(starts)]


#: Those that every table with bodies has.
BODY_COLUMNS: dict[str, Callable[..., Array]] = {
    "queue": lambda b: columns.constant(b.queue, b.count),
    "id": lambda b: columns.id_texts(b.ids),
    "payload": lambda b: b.payloads,
    "size_bytes": Bodies.sizes_bytes,
    "headers": Bodies.headers,
    "fairness_key": Bodies.fairness_keys,
    "weight": lambda b: columns.ints(b.weights),
    "throttle_keys": Bodies.throttle_keys,
    "priority": lambda b: columns.ints(b.priorities),
    "dedup_id": Bodies.dedup_ids,
    "enqueued_at": lambda b: columns.times(b.enqueued_ns),
    "enqueued_at_ns": lambda b: columns.longs(b.enqueued_ns),
}


class Chunk(Protocol):
    """What a batch is made of: rows that can be left out."""

    @property
    def ids(self) -> Bytes: ...

    def only(self, wanted: Mask | slice) -> Self: ...

    def made(self, queue: str) -> Bodies: ...


def batches(
    schema: Schema,
    table: dict[str, Callable[[Any], Array]],
    request: BulkRequest,
    damages: Damages,
    chunk: Chunk,
) -> Iterator[Batch]:
    """The rows of a chunk that are asked for and decode, as one batch, or several where they are large."""
    while len(chunk.ids):
        try:
            bodies = chunk.made(damages.name)
            wanted = _in_time(bodies, request)
            if not wanted.all():
                chunk = chunk.only(wanted)
                continue
            parts = bodies.portions() if "payload" in schema.names else []
            if len(parts) > 1:
                for part in parts:
                    yield from batches(schema, table, request, damages, chunk.only(part))
                return
            made = [table[name](bodies) for name in schema.names]
        except Unreadable as unreadable:
            chunk = chunk.only(_set_aside(unreadable, chunk.ids, damages))
            continue
        yield pa.RecordBatch.from_arrays(made, schema=schema)
        return


def _in_time(bodies: Bodies, request: BulkRequest) -> Mask:
    wanted = np.ones(bodies.count, bool)
    if request.since_ns is not None:
        wanted &= bodies.enqueued_ns >= request.since_ns
    if request.until_ns is not None:
        wanted &= bodies.enqueued_ns < request.until_ns
    return wanted


def _set_aside(unreadable: Unreadable, ids: Bytes, damages: Damages) -> Mask:
    """Tell of rows that do not decode; which of them all are left."""
    sound = np.ones(len(ids), bool)
    for at, error in unreadable.errors.items():
        damages.found(f"message {format_id(ids[at].tobytes())}", error)
        sound[at] = False
    return sound


def taken(values: Sequence[bytes], wanted: Mask | slice) -> Sequence[bytes]:
    return values[wanted] if isinstance(wanted, slice) else columns.chosen(values, wanted)
