"""Journal frames in columns, many at a time: each step is taken for all of their runs at once."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence

import numpy as np

from penstock.backends.bulk import Span
from penstock.backends.embedded import keys
from penstock.backends.embedded.tables.damage import Damages
from penstock.backends.tables.columns import Array, Bytes, Joined, Mask, Numbers, chosen, pa
from penstock.backends.tables.damage import Unreadable, missing
from penstock.codec.frame import (
    CHECKSUM,
    COUNTED_VERSION,
    FRAME_VERSION,
    HEAD,
    MOST_COUNTED,
    RUN,
    Stored,
    decode_runs,
)
from penstock.errors import StorageCorrupt
from penstock.event import KINDS_BY_CODE
from penstock.kv.base import Chunk, Store

#: What a chunk of frames has at most: a thousand events of one operation are a frame of 16 KB.
CHUNK_FRAMES, CHUNK_BYTES = 4096, 512 * 1024
#: Events that are looked at together; of a bulk write a frame of a hundred bytes has thousands.
CHUNK_EVENTS = 65_536

_COLUMNS_AT, _ROWS_AT, _TIME_AT, _ATTEMPT_AT, _DUE_AT, _TEXTS_AT = 1, 2, 6, 14, 18, 26


class Runs:
    """The runs of some frames, in order: one value each, and where their rows are."""

    def __init__(self, frames: Joined, at: Numbers, first_seqs: Numbers, rows: Numbers) -> None:
        self.frames = frames
        self._at = at
        self.first_seqs = first_seqs
        self.rows = rows
        self.columns = frames.numbers(at + _COLUMNS_AT, "u1")

    @property
    def kinds(self) -> Numbers:
        """As the numbers that are stored."""
        return self.frames.numbers(self._at, "u1")

    @property
    def at_ns(self) -> Numbers:
        return self.frames.numbers(self._at + _TIME_AT, "<u8")

    def only(self, wanted: Mask) -> Runs:
        return Runs(self.frames, self._at[wanted], self.first_seqs[wanted], self.rows[wanted])

    # -- where the parts of a run are

    @property
    def ids_at(self) -> Numbers:
        return self._at + RUN.size

    @property
    def attempts_at(self) -> Numbers:
        return self.ids_at + 16 * self.stored_ids

    @property
    def stored_ids(self) -> Numbers:
        """How many: all of them, or the first."""
        return np.where(self.stores(Stored.FIRST_ID), 1, self.rows)

    @property
    def dues_at(self) -> Numbers:
        return self.attempts_at + 4 * self.rows * self.stores(Stored.ATTEMPTS)

    def text_at(self, which: int) -> tuple[Numbers, Numbers]:
        """Where the consumers (0), reasons (1) or extras (2) of each run are, and how many bytes."""
        at = self.dues_at + 8 * self.rows * self.stores(Stored.DUE)
        for before in range(which):
            at = at + self._text_bytes(before)
        return at, self._text_bytes(which)

    def _text_bytes(self, which: int) -> Numbers:
        return self.frames.numbers(self._at + _TEXTS_AT + 4 * which, "<u4")

    def stores(self, column: Stored) -> Mask:
        """Whether a run has a value for each row, and not one for all of them."""
        stored: Mask = (self.columns & column) != 0
        return stored

    def shared_attempts(self) -> Numbers:
        return self.frames.numbers(self._at + _ATTEMPT_AT, "<u4")

    def shared_dues(self) -> Numbers:
        return self.frames.numbers(self._at + _DUE_AT, "<u8")


class Events:
    """The rows of runs: each knows its run and its place in it."""

    def __init__(self, runs: Runs, low: int, high: int) -> None:
        """Those whose seq is from `low` up to, not including, `high`."""
        self.runs = runs
        starts = np.cumsum(runs.rows) - runs.rows
        run: Numbers = np.repeat(np.arange(len(runs.rows)), runs.rows)
        place: Numbers = np.arange(len(run)) - starts[run]
        seqs = runs.first_seqs[run] + place
        if len(seqs) and not (low <= seqs[0] and seqs[-1] < high):
            inside = (seqs >= low) & (seqs < high)
            run, place, seqs = run[inside], place[inside], seqs[inside]
        self.run, self.place, self.seqs = run, place, seqs

    @property
    def count(self) -> int:
        return len(self.run)

    def ids(self) -> Bytes:
        runs = self.runs
        counted = runs.stores(Stored.FIRST_ID)[self.run]
        ids = runs.frames.ids(runs.ids_at[self.run] + 16 * np.where(counted, 0, self.place))
        if counted.any():
            numbers = ids.view(">u8")[:, 1]
            numbers[counted] += self.place[counted].astype(np.uint64)
        return ids

    def attempts(self) -> Numbers:
        runs = self.runs
        return self._numbers(runs.stores(Stored.ATTEMPTS), runs.shared_attempts(), runs.attempts_at, "<u4")

    def dues_ns(self) -> Numbers:
        runs = self.runs
        return self._numbers(runs.stores(Stored.DUE), runs.shared_dues(), runs.dues_at, "<u8")

    def _numbers(self, stored: Mask, shared: Numbers, at: Numbers, kind: str) -> Numbers:
        values = shared[self.run]
        each = stored[self.run]
        if each.any():
            own = self.run[each]
            values[each] = self.runs.frames.numbers(
                at[own] + np.dtype(kind).itemsize * self.place[each], kind
            )
        return values

    def texts(self, which: int) -> Array:
        """Consumers (0), reasons (1) or extras (2)."""
        runs, blob = self.runs, self.runs.frames.blob
        at, size = runs.text_at(which)
        each = runs.stores((Stored.CONSUMER, Stored.REASON, Stored.EXTRA)[which])
        if not size.any():
            return pa.repeat(pa.scalar("", pa.string()), self.count)
        found: list[bytes] = []
        first: Numbers = np.empty(len(at), np.int64)
        for run, (start, length, rows, by_row) in enumerate(
            zip(at.tolist(), size.tolist(), runs.rows.tolist(), each.tolist(), strict=True)
        ):
            first[run] = len(found)
            if not by_row:
                found.append(blob[start : start + length])
            elif rows == 1:  # By far the most frequent, and its length is that of the column.
                found.append(blob[start + 4 : start + length])
            else:
                found += _own_texts(blob[start : start + length], rows)
        chosen = first[self.run] + np.where(each[self.run], self.place, 0)
        # The cast refuses what is not UTF-8.
        return pa.array(found, pa.binary()).cast(pa.string()).take(pa.array(chosen))


def _own_texts(column: bytes, rows: int) -> Iterator[bytes]:
    lengths = np.frombuffer(column, "<u4", rows).astype(np.int64)
    ends = 4 * rows + np.cumsum(lengths)
    return (column[end - length : end] for end, length in zip(ends.tolist(), lengths.tolist(), strict=True))


def runs_of(last_seqs: Numbers, values: Sequence[bytes]) -> Runs:
    """The runs of whole frames. `Unreadable` names those that fail their checksum or do not decode."""
    frames = Joined(values)
    counts = frames.numbers(frames.starts + 1, "<u4")
    first_seqs = frames.numbers(frames.starts + 5, "<u8")
    bad = _unsound(values, frames) | (first_seqs + counts - 1 != last_seqs)
    found, at, run_rows, bad_runs = _walked(frames, np.flatnonzero(~bad))
    bad |= bad_runs
    bad |= np.bincount(found, run_rows, minlength=frames.count).astype(np.int64) != counts
    if bad.any():
        raise Unreadable({at: _error(values[at]) for at in np.flatnonzero(bad).tolist()})
    # In its frame, a run starts behind the rows of those before it.
    passed = np.cumsum(run_rows) - run_rows
    start_of_frame = np.cumsum(counts) - counts
    return Runs(frames, at, first_seqs[found] + passed - start_of_frame[found], run_rows)


def _unsound(values: Sequence[bytes], frames: Joined) -> Mask:
    versions = frames.numbers(frames.starts, "u1")
    ends = frames.starts + frames.lengths
    sums: Numbers = np.fromiter((zlib.crc32(raw[:-4]) for raw in values), np.int64, frames.count)
    sound: Mask = (
        np.isin(versions, (FRAME_VERSION, COUNTED_VERSION))
        & (frames.lengths >= HEAD.size + CHECKSUM.size)
        & (frames.numbers(np.maximum(ends - CHECKSUM.size, 0), "<u4") == sums)
    )
    return ~sound


def _walked(frames: Joined, active: Numbers) -> tuple[Numbers, Numbers, Numbers, Mask]:
    """Of each run: its frame, its offset and its rows, in order; and frames that a run does not fit into."""
    ends = frames.starts + frames.lengths - CHECKSUM.size
    at = frames.starts + HEAD.size
    bad: Mask = np.zeros(frames.count, bool)
    steps: list[tuple[Numbers, Numbers, Numbers]] = []
    while len(active):
        here = at[active]
        rows = frames.numbers(here + _ROWS_AT, "<u4")
        columns = frames.numbers(here + _COLUMNS_AT, "u1")
        counted = (columns & Stored.FIRST_ID) != 0
        ids = np.where(counted, 1, rows)
        wide = 4 * ((columns & Stored.ATTEMPTS) != 0) + 8 * ((columns & Stored.DUE) != 0)
        texts = sum(frames.numbers(here + _TEXTS_AT + 4 * which, "<u4") for which in range(3))
        behind = here + RUN.size + 16 * ids + rows * wide + texts
        known = np.isin(frames.numbers(here, "u1"), list(KINDS_BY_CODE))
        fits = (here + RUN.size <= ends[active]) & (behind <= ends[active]) & known
        fits &= ~counted | (rows <= MOST_COUNTED)
        bad[active[~fits]] = True
        active, here, rows, behind = active[fits], here[fits], rows[fits], behind[fits]
        steps.append((active, here, rows))
        at[active] = behind
        active = active[behind < ends[active]]
    if not steps:
        none: Numbers = np.zeros(0, np.int64)
        return none, none, none, bad
    frame, start, rows = (np.concatenate(parts) for parts in zip(*steps, strict=True))
    order = np.argsort(frame, kind="stable")
    return frame[order], start[order], rows[order], bad


def _error(raw: bytes) -> StorageCorrupt:
    """What is wrong with a frame, in the words of the one who reads it alone."""
    try:
        for _ in decode_runs(raw):
            pass
    except StorageCorrupt as error:
        return error
    return StorageCorrupt("journal frame ends with another event than its key says")


def frame_runs(kv: Store, number: int, span: Span, damages: Damages) -> Iterator[Runs]:
    """The runs of a journal that have events of a span, without a gap, or what is missing is told."""
    low, high = int.from_bytes(span.lower, "big"), int.from_bytes(span.upper, "big")
    expected = low
    bounds = keys.journal(number, low), keys.u32(number + 1)
    for chunk in damages.chunks(kv, "journal", bounds, max_rows=CHUNK_FRAMES, max_bytes=CHUNK_BYTES):
        runs = _sifted(chunk, damages)
        if runs is None or not len(runs.rows):
            continue
        for first, end in _gaps(runs, expected, high):
            missing(damages, "events", first, end)
        expected = int(runs.first_seqs[-1] + runs.rows[-1])
        yield from _parts(runs)
        if expected >= high:
            return
    missing(damages, "events", expected, high)


def _parts(runs: Runs) -> Iterator[Runs]:
    """By so many events, for however many there are, memory is not to go up with them."""
    parts = (np.cumsum(runs.rows) - 1) // CHUNK_EVENTS
    for part in np.unique(parts):
        yield runs.only(parts == part)


def _gaps(runs: Runs, expected: int, high: int) -> list[tuple[int, int]]:
    """What is missing before each of the runs, up to `high`."""
    ends = np.concatenate(([expected], runs.first_seqs + runs.rows))
    before = np.flatnonzero(runs.first_seqs > ends[:-1])
    return [(int(ends[at]), min(int(runs.first_seqs[at]), high)) for at in before if ends[at] < high]


def _sifted(chunk: Chunk, damages: Damages) -> Runs | None:
    """The runs of those frames that are sound."""
    raw_keys, values = chunk
    seqs: Numbers = np.frombuffer(b"".join(key[4:] for key in raw_keys), ">u8").astype(np.int64)
    while values:
        try:
            return runs_of(seqs, values)
        except Unreadable as unreadable:
            sound = np.ones(len(values), bool)
            for at, error in unreadable.errors.items():
                damages.found(f"the frame that ends with seq {seqs[at]}", error, rows=0)
                sound[at] = False
            seqs, values = seqs[sound], chosen(values, sound)
    return None
