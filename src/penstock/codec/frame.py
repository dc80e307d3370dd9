"""Journal frames: the events of one atomic write, in columns, under one checksum.

A frame is a head (with the queue's counters after it), then runs. A run is what one operation did to
many messages: its ids lie side by side, and a column that is the same for every row is stored once.
A bulk reader takes whole columns by slicing; sealed segments can later replace runs of frames.
"""

from __future__ import annotations

import enum
import struct
import sys
import zlib
from collections.abc import Iterator, Sequence

import msgspec

from penstock.codec.sealed import refuse_sealed
from penstock.errors import StorageCorrupt
from penstock.event import KIND_CODES, KINDS_BY_CODE, Event, Kind

FRAME_VERSION = 1
#: The same, but there are runs in it that have their first id alone.
COUNTED_VERSION = 2

#: version, events, first seq, time of the last run, then the counts after the frame: delayed, ready,
#: leased, done, dead.
HEAD = struct.Struct("<BIQQ5Q")
#: kind, columns that are stored per row, rows, time, attempt, due_ns, bytes of consumer, reason, extra.
RUN = struct.Struct("<BBIQIQIII")
CHECKSUM = struct.Struct("<I")
#: Ids of a run that has the first alone: nobody writes more, and a wrong number is not to fill the memory.
MOST_COUNTED = 65_536


class Stored(enum.IntFlag):
    """Columns of a run that have a value for each row."""

    ATTEMPTS = 1
    DUE = 2
    CONSUMER = 4
    REASON = 8
    EXTRA = 16
    #: The other way round: of the ids there is only the first.
    FIRST_ID = 32


# Plain numbers: a flag's own operators are slow.
_ATTEMPTS, _DUE, _CONSUMER, _REASON, _EXTRA, _FIRST_ID = (int(column) for column in Stored)
_TEXTS = (_CONSUMER, _REASON, _EXTRA)
_UNREADABLE = (struct.error, UnicodeDecodeError, KeyError, IndexError, ValueError, OverflowError)


class FrameHead(msgspec.Struct, frozen=True, gc=False):
    """What a frame says before its events."""

    count: int
    first_seq: int
    at_ns: int
    counts: tuple[int, ...]

    @property
    def last_seq(self) -> int:
        return self.first_seq + self.count - 1


class Counted(msgspec.Struct, frozen=True, gc=False):
    """So many ids, of which the number in the last eight bytes goes up by one each time."""

    first: bytes
    rows: int

    def __len__(self) -> int:
        return self.rows

    def some(self, start: int, stop: int) -> list[bytes]:
        prefix, number = self.first[:8], int.from_bytes(self.first[8:], "big")
        return [prefix + one.to_bytes(8, "big") for one in range(number + start, number + stop)]

    def part(self, start: int, stop: int) -> Counted:
        return Counted(self.some(start, start + 1)[0], stop - start)


Ids = Sequence[bytes] | bytes | Counted
Column = int | Sequence[int]
Text = str | Sequence[str]


def encode_run(
    kind: Kind,
    at_ns: int,
    ids: Ids,
    attempts: Column = 0,
    due_ns: Column = 0,
    consumer: Text = "",
    reason: Text = "",
    extra: Text = "",
) -> bytes:
    """One operation's events; a column is one value for all rows or one value a row. Ids may be joined."""
    columns, rows = 0, len(ids)
    if isinstance(ids, bytes):
        ids, rows = (ids,), len(ids) // 16
    elif isinstance(ids, Counted):
        ids, columns = (ids.first,), _FIRST_ID
    attempt_0, due_0, arrays = attempts, due_ns, b""
    if not isinstance(attempts, int):
        attempt_0, columns, arrays = 0, columns | _ATTEMPTS, struct.pack(f"<{rows}I", *attempts)
    if not isinstance(due_ns, int):
        due_0, columns, arrays = 0, columns | _DUE, arrays + struct.pack(f"<{rows}Q", *due_ns)
    texts = []
    for text, flag in zip((consumer, reason, extra), _TEXTS, strict=True):
        if isinstance(text, str):
            texts.append(text.encode() if text else b"")
        else:
            columns |= flag
            texts.append(_encode_texts(text))
    head = RUN.pack(
        KIND_CODES[kind],
        columns,
        rows,
        at_ns,
        attempt_0,
        due_0,
        len(texts[0]),
        len(texts[1]),
        len(texts[2]),
    )
    return b"".join((head, *ids, arrays, *texts))


def _encode_texts(texts: Sequence[str]) -> bytes:
    raw = [text.encode() for text in texts]
    return struct.pack(f"<{len(raw)}I", *map(len, raw)) + b"".join(raw)


def _decode_texts(blob: bytes, rows: int, start: int, stop: int) -> list[str]:
    lengths = struct.unpack_from(f"<{rows}I", blob)
    out, at = [], 4 * rows + sum(lengths[:start])
    for length in lengths[start:stop]:
        out.append(blob[at : at + length].decode())
        at += length
    return out


def encode_frame(first_seq: int, count: int, at_ns: int, counts: Sequence[int], runs: list[bytes]) -> bytes:
    version = COUNTED_VERSION if any(run[1] & _FIRST_ID for run in runs) else FRAME_VERSION
    raw = HEAD.pack(version, count, first_seq, at_ns, *counts) + b"".join(runs)
    return raw + CHECKSUM.pack(zlib.crc32(raw))


def decode_head(raw: bytes) -> FrameHead:
    """The head alone, unchecked: for callers that only look for a position."""
    refuse_sealed(raw, "journal frame")
    try:
        version, count, first_seq, at_ns, *counts = HEAD.unpack_from(raw)
    except struct.error as error:
        raise StorageCorrupt(f"journal frame of {len(raw)} bytes has no head") from error
    if version not in (FRAME_VERSION, COUNTED_VERSION):
        raise StorageCorrupt(
            f"journal frame has version {version}; this Penstock reads {FRAME_VERSION} to {COUNTED_VERSION}"
        )
    return FrameHead(count, first_seq, at_ns, tuple(counts))


def verify(raw: bytes) -> None:
    """Raise `StorageCorrupt` unless the checksum fits."""
    refuse_sealed(raw, "journal frame")
    if len(raw) < CHECKSUM.size or CHECKSUM.unpack_from(raw, len(raw) - 4)[0] != zlib.crc32(raw[:-4]):
        raise StorageCorrupt(f"journal frame of {len(raw)} bytes fails its checksum")


class Run(msgspec.Struct, frozen=True, gc=False):
    """The events of one operation, in columns. `uniform`: due time and extra are the same for all."""

    seq: int
    at_ns: int
    kind: Kind
    ids: list[bytes]
    attempts: Sequence[int]
    due_ns: Sequence[int]
    consumers: list[str]
    reasons: list[str]
    extras: list[str]
    uniform: bool

    def event(self, row: int) -> Event:
        return Event(
            self.seq + row,
            self.at_ns,
            self.kind,
            self.ids[row],
            self.attempts[row],
            self.due_ns[row],
            self.consumers[row],
            self.reasons[row],
            self.extras[row],
        )


def decode_events(raw: bytes, after: int = 0, limit: int | None = None) -> Iterator[Event]:
    """Events of a frame, in order, after verifying its checksum: up to `limit` of those after a seq.

    What is before or behind them is not decoded.
    """
    for run in decode_runs(raw, after, limit):
        yield from map(run.event, range(len(run.ids)))


def decode_runs(raw: bytes, after: int = 0, limit: int | None = None) -> Iterator[Run]:
    """The same by operation, for those who look at very many events."""
    verify(raw)
    head = decode_head(raw)
    seq, at, end = head.first_seq, HEAD.size, len(raw) - CHECKSUM.size
    left = sys.maxsize if limit is None else limit
    try:
        while at < end and left > 0:
            rows = RUN.unpack_from(raw, at)[2]
            skipped = min(rows, max(0, after + 1 - seq))
            taken = min(rows - skipped, left)
            if taken:
                yield _decode_run(raw, at, seq, skipped, skipped + taken)
            left -= taken
            seq += rows
            at += _run_bytes(raw, at)
    except _UNREADABLE as error:
        raise StorageCorrupt(f"journal frame at seq {head.first_seq} does not decode: {error}") from error
    if left and seq != head.first_seq + head.count:
        raise StorageCorrupt(f"journal frame at seq {head.first_seq} has {seq - head.first_seq} events")


def _run_bytes(raw: bytes, at: int) -> int:
    _, columns, rows, _, _, _, consumer, reason, extra = RUN.unpack_from(raw, at)
    ids = 1 if columns & _FIRST_ID else rows
    wide = (4 if columns & _ATTEMPTS else 0) + (8 if columns & _DUE else 0)
    return int(RUN.size + 16 * ids + rows * wide + consumer + reason + extra)


def _decode_run(raw: bytes, at: int, seq: int, start: int, stop: int) -> Run:
    """The rows from `start` to `stop` of a run whose first one is `seq`."""
    code, columns, rows, at_ns, attempt, due, *lengths = RUN.unpack_from(raw, at)
    if at + _run_bytes(raw, at) > len(raw) - CHECKSUM.size:
        raise ValueError(f"a run of {rows} events is longer than its frame")
    count = stop - start
    at += RUN.size
    if columns & _FIRST_ID:
        if rows > MOST_COUNTED:
            raise ValueError(f"a run of {rows} events has one id")
        ids = Counted(raw[at : at + 16], rows).some(start, stop)
        at += 16
    else:
        ids = [raw[i : i + 16] for i in range(at + 16 * start, at + 16 * stop, 16)]
        at += 16 * rows
    attempts: Sequence[int] = [attempt] * count
    if columns & _ATTEMPTS:
        attempts = struct.unpack_from(f"<{count}I", raw, at + 4 * start)
        at += 4 * rows
    dues: Sequence[int] = [due] * count
    if columns & _DUE:
        dues = struct.unpack_from(f"<{count}Q", raw, at + 8 * start)
        at += 8 * rows
    texts = []
    for length, flag in zip(lengths, _TEXTS, strict=True):
        blob = raw[at : at + length]
        texts.append(_decode_texts(blob, rows, start, stop) if columns & flag else [blob.decode()] * count)
        at += length
    uniform = not columns & (_DUE | _EXTRA)
    consumers, reasons, extras = texts
    return Run(
        seq + start, at_ns, KINDS_BY_CODE[code], ids, attempts, dues, consumers, reasons, extras, uniform
    )
