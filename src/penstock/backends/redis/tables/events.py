"""The table `events`: journals as Arrow, from frames as they are stored."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from penstock.backends.bulk import BATCH_ROWS, BulkRequest, Span
from penstock.backends.redis.records import ATTEMPTS, DIGITS, DUE, HEAD, RUN, TEXTS, decode_head, split_texts
from penstock.backends.redis.records import verify as verify_frame
from penstock.backends.redis.tables.view import QueueView, View
from penstock.backends.tables import columns
from penstock.backends.tables.columns import Array, Batch, Bytes, Numbers, pa
from penstock.backends.tables.damage import Damages, missing
from penstock.errors import HistoryTruncated, StorageCorrupt
from penstock.event import KIND_CODES, KINDS_BY_CODE, Kind
from penstock.tables import arrow_schema

#: Frames that are read at a time: so many at first, and up to so many where they are small.
FRAMES, MOST_FRAMES, LEAST_BYTES = 50, 2000, 1 << 20

#: The name of each kind at the place of its number.
_KIND_NAMES = pa.array([str(KINDS_BY_CODE.get(code, "")) for code in range(max(KINDS_BY_CODE) + 1)])


class Run(NamedTuple):
    """Events of one kind that happened together, and where they are in their frame."""

    first_seq: int
    rows: int
    kind: int
    at_us: int
    ids: bytes
    attempts: Numbers
    dues_us: Numbers
    #: Consumers, reasons and extras: one for all, or one each.
    texts: tuple[list[bytes], list[bytes], list[bytes]]


def runs_of(raw: bytes) -> Iterator[Run]:
    """Raises `StorageCorrupt` for a frame that is not whole."""
    verify_frame(raw)
    head = decode_head(raw)
    seq, at, end = head.first_seq, HEAD.size, len(raw) - DIGITS
    try:
        while at < end:
            kind, stored, rows, at_us, attempt, due_us, *lengths = RUN.unpack_from(raw, at)
            at += RUN.size
            ids = raw[at : at + 16 * rows]
            at += 16 * rows
            attempts: Numbers = np.full(rows, attempt, np.int64)
            if stored & ATTEMPTS:
                attempts = np.frombuffer(raw, ">u4", rows, at).astype(np.int64)
                at += 4 * rows
            dues: Numbers = np.full(rows, due_us, np.int64)
            if stored & DUE:
                dues = np.frombuffer(raw, ">u8", rows, at).astype(np.int64)
                at += 8 * rows
            texts = []
            for length, flag in zip(lengths, TEXTS, strict=True):
                blob = raw[at : at + length]
                texts.append(split_texts(blob, rows) if stored & flag else [blob])
                at += length
            if len(ids) != 16 * rows or kind not in KINDS_BY_CODE:
                raise StorageCorrupt(f"journal frame at seq {head.first_seq} does not decode")
            yield Run(seq, rows, kind, at_us, ids, attempts, dues, (texts[0], texts[1], texts[2]))
            seq += rows
    except (struct.error, ValueError) as error:
        raise StorageCorrupt(f"journal frame at seq {head.first_seq} does not decode: {error}") from error
    if seq != head.first_seq + head.count or at != end:
        raise StorageCorrupt(f"journal frame at seq {head.first_seq} has {seq - head.first_seq} events")


class Events:
    """The rows of some runs, from seq `low` up to, not including, `high`."""

    def __init__(self, runs: list[Run], low: int, high: int) -> None:
        self._runs = runs
        rows = [run.rows for run in runs]
        seqs: Numbers = np.concatenate([np.arange(run.first_seq, run.first_seq + run.rows) for run in runs])
        self._inside = (seqs >= low) & (seqs < high)
        self.seqs = seqs[self._inside]
        self._rows = np.array(rows, np.int64)

    @property
    def count(self) -> int:
        return len(self.seqs)

    def _of_run(self, values: list[int]) -> Numbers:
        spread: Numbers = np.repeat(np.array(values, np.int64), self._rows)[self._inside]
        return spread

    def kinds(self) -> Numbers:
        return self._of_run([run.kind for run in self._runs])

    def at_ns(self) -> Numbers:
        return self._of_run([run.at_us for run in self._runs]) * 1000

    def ids(self) -> Bytes:
        joined = np.frombuffer(b"".join(run.ids for run in self._runs), np.uint8).reshape(-1, 16)
        return np.ascontiguousarray(joined[self._inside])

    def attempts(self) -> Numbers:
        found: Numbers = np.concatenate([run.attempts for run in self._runs])[self._inside]
        return found

    def dues_ns(self) -> Numbers:
        found: Numbers = np.concatenate([run.dues_us for run in self._runs])[self._inside] * 1000
        return found

    def texts(self, which: int) -> list[bytes] | None:
        """Consumers (0), reasons (1) or extras (2), as they are stored; None if all are empty."""
        if all(run.texts[which] == [b""] for run in self._runs):
            return None
        found: list[bytes] = []
        for run in self._runs:
            own = run.texts[which]
            found += own * run.rows if len(own) == 1 else own
        return [one for one, inside in zip(found, self._inside.tolist(), strict=True) if inside]


def frame_runs(
    view: View, queue: QueueView, request: BulkRequest, span: Span, damages: Damages
) -> Iterator[list[Run]]:
    """The runs of a journal that have events of a span, without a gap, or what is missing is told."""
    low, high = int.from_bytes(span.lower, "big"), int.from_bytes(span.upper, "big")
    expected, frames = low, FRAMES
    while expected < high:
        _, _, base, last_seqs, raws = view.call("frames", queue.known, expected, frames)
        if base >= expected:
            if request.on_truncated == "fail":
                raise HistoryTruncated(f"the read of queue {queue.name!r}", expected - 1, base + 1)
            expected = base + 1
            continue
        runs: list[Run] = []
        for last_seq, raw in zip(last_seqs, raws, strict=True):
            try:
                found = list(runs_of(raw))
            except StorageCorrupt as error:
                damages.found(f"the frame that ends with seq {last_seq}", error, rows=0)
                continue
            missing(damages, "events", expected, min(found[0].first_seq, high))
            runs += found
            expected = found[-1].first_seq + found[-1].rows
            if expected >= high:
                break
        if not raws:
            break
        expected = max(expected, int(last_seqs[-1]) + 1) if expected < high else expected
        if runs:
            yield runs
        if sum(map(len, raws)) < LEAST_BYTES:
            frames = min(2 * frames, MOST_FRAMES)
    missing(damages, "events", expected, high)


def wanted_runs(runs: list[Run], request: BulkRequest, kinds: tuple[Kind, ...] | None = None) -> list[Run]:
    """Those of the kinds and times that are asked for."""
    named = kinds if kinds is not None else request.kinds
    codes = None if named is None else {KIND_CODES[Kind(kind)] for kind in named}
    timed = request.table == "events"
    since_ns = request.since_ns if timed else None
    until_ns = request.until_ns if timed else None
    return [
        run
        for run in runs
        if (codes is None or run.kind in codes)
        and (since_ns is None or run.at_us * 1000 >= since_ns)
        and (until_ns is None or run.at_us * 1000 < until_ns)
    ]


def _dues(events: Events) -> Array:
    due_ns = events.dues_ns()
    return columns.times(due_ns, due_ns != 0)


_COLUMNS: dict[str, Callable[[Events], Array]] = {
    "seq": lambda e: columns.longs(e.seqs),
    "at": lambda e: columns.times(e.at_ns()),
    "at_ns": lambda e: columns.longs(e.at_ns()),
    "kind": lambda e: _KIND_NAMES.take(pa.array(e.kinds())),
    "message_id": lambda e: columns.id_texts(e.ids()),
    "attempt": lambda e: columns.ints(e.attempts()),
    "due_at": _dues,
    "due_ns": lambda e: columns.longs(e.dues_ns()),
}
_TEXTS = ("consumer", "reason", "extra")


def read_events(
    view: View, queue: QueueView, request: BulkRequest, span: Span, damages: Damages
) -> Iterator[Batch]:
    schema = arrow_schema("events", request.columns)
    low, high = int.from_bytes(span.lower, "big"), int.from_bytes(span.upper, "big")
    for runs in frame_runs(view, queue, request, span, damages):
        kept = wanted_runs(runs, request)
        events = Events(kept, low, high) if kept else None
        if events is None or not events.count:
            continue
        made: list[Array] = []
        bad: set[int] = set()
        for name in schema.names:
            if name == "queue":
                made.append(columns.constant(queue.name, events.count))
            elif name in _TEXTS:
                made.append(_texts(view, queue, events, _TEXTS.index(name), damages, bad))
            else:
                made.append(_COLUMNS[name](events))
        batch = pa.RecordBatch.from_arrays(made, schema=schema)
        if bad:
            batch = batch.filter(pa.array([row not in bad for row in range(events.count)]))
        for start in range(0, batch.num_rows, BATCH_ROWS):
            yield batch.slice(start, BATCH_ROWS)


def _texts(
    view: View, queue: QueueView, events: Events, which: int, damages: Damages, bad: set[int]
) -> Array:
    raws = events.texts(which)
    if raws is None:
        return columns.constant("", events.count)
    ids = events.ids() if _TEXTS[which] == "reason" else None
    read = view.engine.opened_reason
    found: list[str] = []
    for row, raw in enumerate(raws):
        try:
            if ids is None or not raw:
                found.append(raw.decode())
            else:
                found.append(read(queue.known, ids[row].tobytes(), raw))
        except (StorageCorrupt, UnicodeDecodeError) as error:
            found.append("")
            if row not in bad:
                bad.add(row)
                what = StorageCorrupt(f"texts of an event do not decode: {error}")
                damages.found(f"seq {events.seqs[row]}", what)
    return columns.strings(found)
