"""Columns out of joined bytes: numbers by their offsets, ids as text, times. Nothing goes row by row."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, compress
from typing import Any

import numpy as np
import pyarrow
from numpy.typing import NDArray

from penstock.tables import arrow_type

#: What there is of types for it does not know what numpy's arrays become: it is used as it is.
pa: Any = pyarrow
Array = Any
Batch = pyarrow.RecordBatch
Schema = pyarrow.Schema

Numbers = NDArray[np.int64]
Bytes = NDArray[np.uint8]
Mask = NDArray[np.bool_]

#: Behind the last row, so that a number that a damaged row places there can be looked at.
_PADDING = bytes(64)

#: Each byte as two hexadecimal digits.
_DIGITS = np.frombuffer(bytes(range(256)).hex().encode(), np.uint16)
#: Where the digits of a UUID's text are, and where its dashes.
_TEXT_BYTES = 36
_DASHES = (8, 13, 18, 23)
_PARTS = ((0, 8), (8, 12), (12, 16), (16, 20), (20, 32))


class Joined:
    """Values side by side: what columns are taken from."""

    def __init__(self, values: Sequence[bytes]) -> None:
        self.count = len(values)
        self.blob = b"".join((*values, _PADDING))
        self.lengths: Numbers = np.fromiter(map(len, values), np.int64, self.count)
        self.starts: Numbers = np.cumsum(self.lengths) - self.lengths

    def numbers(self, at: Numbers, kind: str) -> Numbers:
        """Numbers of a kind (`>u8`, say) at these offsets, whatever they are aligned to."""
        dtype = np.dtype(kind)
        room = len(self.blob) - dtype.itemsize + 1
        everywhere: NDArray[Any] = np.ndarray((room,), dtype, self.blob, 0, (1,))
        return everywhere[np.minimum(at, room - 1)].astype(np.int64)

    def ids(self, at: Numbers) -> Bytes:
        """Sixteen bytes from each offset."""
        room = len(self.blob) - 15
        everywhere: NDArray[Any] = np.ndarray((room, 2), np.uint64, self.blob, 0, (1, 8))
        return np.ascontiguousarray(everywhere[np.minimum(at, room - 1)]).view(np.uint8)


def ids_of_keys(keys: Sequence[bytes]) -> Bytes:
    """The last sixteen bytes of keys that are all of one length."""
    joined = np.frombuffer(b"".join(keys), np.uint8)
    return np.ascontiguousarray(joined.reshape(len(keys), -1)[:, -16:])


def sortable(ids: Bytes) -> NDArray[np.bytes_]:
    """Ids as values that numpy compares byte by byte."""
    return np.ascontiguousarray(ids).view("S16").reshape(-1)


def id_texts(ids: Bytes) -> Array:
    """Ids in the usual form of a UUID."""
    count = len(ids)
    digits = _DIGITS[ids].view(np.uint8)
    text = np.empty((count, _TEXT_BYTES), np.uint8)
    for shift, (start, end) in enumerate(_PARTS):
        text[:, start + shift : end + shift] = digits[:, start:end]
    text[:, _DASHES] = ord("-")
    offsets = np.arange(0, _TEXT_BYTES * (count + 1), _TEXT_BYTES, dtype=np.int32)
    return pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(text))


def chosen(values: Sequence[bytes], wanted: Mask) -> list[bytes]:
    return list(compress(values, wanted.tolist()))


def longs(numbers: Numbers, valid: Mask | None = None) -> Array:
    return pa.array(numbers, pa.int64(), mask=None if valid is None else ~valid)


def ints(numbers: Numbers) -> Array:
    return pa.array(numbers.astype(np.int32), pa.int32())


def times(at_ns: Numbers, valid: Mask | None = None) -> Array:
    """Nanoseconds as timestamps, which are in microseconds."""
    return longs(at_ns // 1000, valid).view(arrow_type("timestamp"))


def constant(text: str, count: int) -> Array:
    return pa.repeat(pa.scalar(text, pa.string()), count)


def strings(texts: Sequence[str | None]) -> Array:
    return pa.array(texts, pa.string())


def lists_of_strings(lists: Sequence[Sequence[str]]) -> Array:
    flat = strings(list(chain.from_iterable(lists)))
    return pa.ListArray.from_arrays(_offsets(lists), flat, type=arrow_type("strings"))


def maps(found: Sequence[dict[str, str]]) -> Array:
    names = strings(list(chain.from_iterable(found)))
    values = strings(list(chain.from_iterable(one.values() for one in found)))
    return pa.MapArray.from_arrays(_offsets(found), names, values, type=arrow_type("map"))


def _offsets(sized: Sequence[Any]) -> Array:
    ends = np.zeros(len(sized) + 1, np.int32)
    np.cumsum(np.fromiter(map(len, sized), np.int32, len(sized)), out=ends[1:])
    return pa.array(ends)
