"""The table `bodies`: those of messages that are there, and those kept for cursors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from penstock.backends.bulk import BATCH_BYTES, BATCH_ROWS, BulkRequest, Span
from penstock.backends.embedded import keys
from penstock.backends.embedded.tables.damage import Damages
from penstock.backends.embedded.tables.events import wanted_runs
from penstock.backends.embedded.tables.frames import Events, frame_runs
from penstock.backends.embedded.tables.view import View
from penstock.backends.tables import columns
from penstock.backends.tables.bodies import BODY_COLUMNS, BRINGING, Bodies, batches, taken
from penstock.backends.tables.columns import Array, Batch, Bytes, Mask, Numbers, pa
from penstock.tables import arrow_schema


class _Stored(NamedTuple):
    """Bodies, each with the event that it was found by, where it was."""

    ids: Bytes
    values: Sequence[bytes]
    seqs: Numbers | None

    def only(self, wanted: Mask | slice) -> _Stored:
        seqs = None if self.seqs is None else self.seqs[wanted]
        return _Stored(self.ids[wanted], taken(self.values, wanted), seqs)

    def made(self, queue: str) -> _Found:
        return _Found(queue, self.ids, self.values, self.seqs)


class _Found(Bodies):
    def __init__(self, queue: str, ids: Bytes, values: Sequence[bytes], seqs: Numbers | None) -> None:
        super().__init__(queue, ids, values)
        self._seqs = seqs

    def seqs(self) -> Array:
        return pa.nulls(self.count, pa.int64()) if self._seqs is None else columns.longs(self._seqs)


_COLUMNS: dict[str, Callable[[Any], Array]] = {
    **BODY_COLUMNS,
    "seq": _Found.seqs,
    "visible_at": lambda b: columns.times(b.visible_ns),
    "visible_at_ns": lambda b: columns.longs(b.visible_ns),
    "expires_at": lambda b: columns.times(b.expiries_ns, b.expiries_ns != 0),
    "expires_at_ns": lambda b: columns.longs(b.expiries_ns, b.expiries_ns != 0),
    "order_ns": lambda b: columns.longs(b.orders_ns),
}


def read_bodies(
    view: View, number: int, request: BulkRequest, span: Span, damages: Damages
) -> Iterator[Batch]:
    schema = arrow_schema("bodies", request.columns)
    chunks = _by_seq if span.name in request.seqs else _by_id
    for chunk in chunks(view, number, request, span, damages):
        yield from batches(schema, _COLUMNS, request, damages, chunk)


def _by_id(view: View, number: int, request: BulkRequest, span: Span, damages: Damages) -> Iterator[_Stored]:
    prefix = keys.u32(number)
    for found, values in damages.chunks(view.kv, "messages", (prefix + span.lower, prefix + span.upper)):
        yield _Stored(columns.ids_of_keys(found), values, None)


def _by_seq(view: View, number: int, request: BulkRequest, span: Span, damages: Damages) -> Iterator[_Stored]:
    """What the events of the span brought: a body that has gone since is not there."""
    low, high = int.from_bytes(span.lower, "big"), int.from_bytes(span.upper, "big")
    for runs in frame_runs(view.kv, number, span, damages):
        events = Events(wanted_runs(runs, request, BRINGING), low, high)
        ids = events.ids()
        for at, values in looked_up(view, number, ids):
            yield _Stored(ids[at], values, events.seqs[at])


def looked_up(view: View, number: int, ids: Bytes) -> Iterator[tuple[Numbers, list[bytes]]]:
    """Bodies by their ids, in batches; each with its places among the ids. What is not there is left out."""
    prefix, space = keys.u32(number), view.kv.space("messages")
    places: list[int] = []
    found: list[bytes] = []
    size_bytes = 0
    for at, one in enumerate(ids):
        value = view.kv.get(prefix + one.tobytes(), space)  # One by one: nobody knows how large they are.
        if value is None:
            continue
        places.append(at)
        found.append(value)
        size_bytes += len(value)
        if size_bytes >= BATCH_BYTES or len(found) >= BATCH_ROWS:
            yield np.array(places, np.int64), found
            places, found, size_bytes = [], [], 0
    if found:
        yield np.array(places, np.int64), found
