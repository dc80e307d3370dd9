"""Many rows at once: what whole ranges are read in, and where they are cut for several readers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from penstock.kv.base import Chunk, Row

#: Bytes of a key that cuts go by.
_CUT_BYTES = 24


def chunked(rows: Iterable[Row], max_rows: int, max_bytes: int) -> Iterator[Chunk]:
    """The rows in chunks, each of which ends with the row that brings it to a limit."""
    keys: list[bytes] = []
    values: list[bytes] = []
    left_bytes = max_bytes
    # Keys and values apart: so many pairs that live on would set the garbage collector to work.
    for key, value in rows:
        keys.append(key)
        values.append(value)
        left_bytes -= len(value)
        if left_bytes <= 0 or len(keys) >= max_rows:
            yield keys, values
            keys, values, left_bytes = [], [], max_bytes
    if keys:
        yield keys, values


class Stretch(NamedTuple):
    """A part of a space and how many rows are thought to be in it, spread evenly."""

    first: bytes
    last: bytes
    rows: int


def cuts(stretches: Sequence[Stretch], lower: bytes, upper: bytes | None, parts: int) -> list[bytes]:
    """Keys between the bounds that have about as many rows between any two neighbours; they may overlap."""
    low, high = _number(lower), 1 << 8 * _CUT_BYTES if upper is None else _number(upper)
    changes: dict[int, float] = {}
    for first, last, rows in stretches:
        start, end = _number(first), _number(last) + 1
        if end <= low or start >= high or rows <= 0:
            continue
        density = rows / (end - start)
        for at, change in ((max(start, low), density), (min(end, high), -density)):
            changes[at] = changes.get(at, 0.0) + change
    return [_key(at) for at in _quantiles(sorted(changes.items()), parts) if low < at < high]


def _quantiles(changes: list[tuple[int, float]], parts: int) -> list[int]:
    """Where each part but the last ends, of a density that is given by its changes."""
    pieces: list[tuple[int, int, float]] = []
    density = 0.0
    for (start, change), (end, _) in pairwise(changes):
        density += change
        pieces.append((start, end, max(density, 0.0)))
    total = sum((end - start) * density for start, end, density in pieces)
    found: list[int] = []
    passed = 0.0
    for start, end, density in pieces:
        inside = (end - start) * density
        while len(found) < parts - 1 and (wanted := total * (len(found) + 1) / parts) < passed + inside:
            found.append(start + int((wanted - passed) / density))
        passed += inside
    return sorted(set(found))


def _number(key: bytes) -> int:
    return int.from_bytes(key[:_CUT_BYTES].ljust(_CUT_BYTES, b"\0"), "big")


def _key(number: int) -> bytes:
    return number.to_bytes(_CUT_BYTES, "big")
