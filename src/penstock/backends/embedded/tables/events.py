"""The table `events`: journals as Arrow."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from penstock.backends.bulk import BATCH_ROWS, BulkRequest, Span
from penstock.backends.embedded.tables.damage import Damages
from penstock.backends.embedded.tables.frames import Events, Runs, frame_runs
from penstock.backends.embedded.tables.view import View
from penstock.backends.tables import columns
from penstock.backends.tables.columns import Array, Batch, Numbers, Schema, pa
from penstock.errors import StorageCorrupt
from penstock.event import KIND_CODES, KINDS_BY_CODE, Kind
from penstock.tables import arrow_schema

#: The name of each kind at the place of its number.
_KIND_NAMES = pa.array([str(KINDS_BY_CODE.get(code, "")) for code in range(max(KINDS_BY_CODE) + 1)])


def _of_run(events: Events, values: Numbers) -> Numbers:
    return values[events.run]


def _dues(events: Events) -> Array:
    due_ns = events.dues_ns()
    return columns.times(due_ns, due_ns != 0)


_COLUMNS: dict[str, Callable[[Events], Array]] = {
    "seq": lambda e: columns.longs(e.seqs),
    "at": lambda e: columns.times(_of_run(e, e.runs.at_ns)),
    "at_ns": lambda e: columns.longs(_of_run(e, e.runs.at_ns)),
    "kind": lambda e: _KIND_NAMES.take(pa.array(_of_run(e, e.runs.kinds))),
    "message_id": lambda e: columns.id_texts(e.ids()),
    "attempt": lambda e: columns.ints(e.attempts()),
    "due_at": _dues,
    "due_ns": lambda e: columns.longs(e.dues_ns()),
    "consumer": lambda e: e.texts(0),
    "reason": lambda e: e.texts(1),
    "extra": lambda e: e.texts(2),
}


def read_events(
    view: View, number: int, request: BulkRequest, span: Span, damages: Damages
) -> Iterator[Batch]:
    schema = arrow_schema("events", request.columns)
    low, high = int.from_bytes(span.lower, "big"), int.from_bytes(span.upper, "big")
    for runs in frame_runs(view.kv, number, span, damages):
        for events, made in _made(wanted_runs(runs, request), (low, high), schema, damages):
            batch = pa.RecordBatch.from_arrays(made, schema=schema)
            for start in range(0, events.count, BATCH_ROWS):
                yield batch.slice(start, BATCH_ROWS)


def _made(
    runs: Runs, bounds: tuple[int, int], schema: Schema, damages: Damages
) -> Iterator[tuple[Events, list[Array]]]:
    """Columns of the events of these runs, but for runs whose texts do not decode."""
    events = Events(runs, *bounds)
    if not events.count:
        return
    try:
        made = [
            columns.constant(damages.name, events.count) if name == "queue" else _COLUMNS[name](events)
            for name in schema.names
        ]
    except ValueError as error:  # Texts that are not UTF-8, or not as long as they say.
        if len(runs.rows) == 1:
            where = f"seq {events.seqs[0]} to {events.seqs[-1]}"
            what = StorageCorrupt(f"texts of events do not decode: {error}")
            damages.found(where, what, events.count)
            return
        # It does not say which. By halves: of those that decode, all are read.
        first = np.arange(len(runs.rows)) < len(runs.rows) // 2
        for half in (first, ~first):
            yield from _made(runs.only(half), bounds, schema, damages)
        return
    yield events, made


def wanted_runs(runs: Runs, request: BulkRequest, kinds: tuple[Kind, ...] | None = None) -> Runs:
    """Those of the kinds and times that are asked for."""
    wanted = np.ones(len(runs.rows), bool)
    named = kinds if kinds is not None else request.kinds
    if named is not None:
        wanted &= np.isin(runs.kinds, [KIND_CODES[Kind(kind)] for kind in named])
    if request.table == "events":
        if request.since_ns is not None:
            wanted &= runs.at_ns >= request.since_ns
        if request.until_ns is not None:
            wanted &= runs.at_ns < request.until_ns
    return runs if wanted.all() else runs.only(wanted)
