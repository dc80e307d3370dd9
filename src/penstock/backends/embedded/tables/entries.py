"""The table `entries`: worlds as Arrow."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.backends.bulk import BulkRequest, Span
from penstock.backends.embedded import keys
from penstock.backends.embedded.tables.damage import Damages
from penstock.backends.embedded.tables.frames import CHUNK_FRAMES
from penstock.backends.embedded.tables.view import View
from penstock.backends.tables.columns import Batch
from penstock.backends.tables.damage import missing
from penstock.backends.tables.entries import batches_of
from penstock.codec.entry import EntryFrame, decode_entry_frame
from penstock.errors import StorageCorrupt
from penstock.kv.base import Chunk
from penstock.tables import arrow_schema


def read_entries(
    view: View, number: int, request: BulkRequest, span: Span, damages: Damages
) -> Iterator[Batch]:
    schema = arrow_schema("entries", request.columns)
    low, high = int.from_bytes(span.lower, "big"), int.from_bytes(span.upper, "big")
    expected = low
    # Up to the frame that has the last entry asked for: its key is not known, but what precedes it is.
    bounds = keys.journal(number, low), keys.u32(number + 1)
    for chunk in damages.chunks(view.kv, "journal", bounds, max_rows=CHUNK_FRAMES):
        frames = _sound(chunk, damages)
        for frame in frames:
            missing(damages, "entries", expected, min(frame.first_seq, high))
            expected = frame.first_seq + len(frame.names)
        yield from batches_of(damages.name, frames, schema, request, low, high)
        if expected >= high:
            return
    missing(damages, "entries", expected, high)


def _sound(chunk: Chunk, damages: Damages) -> list[EntryFrame]:
    frames = []
    for key, raw in zip(*chunk, strict=True):
        try:
            frames.append(decode_entry_frame(raw, damages.name))
        except StorageCorrupt as error:
            seq = int.from_bytes(key[4:], "big")
            damages.found(f"the frame that ends with seq {seq}", error, rows=0)
    return frames
