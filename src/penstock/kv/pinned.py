"""A snapshot of RocksDB: iterators, which it pins to the moment of their making."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from threading import Lock
from typing import Any

from penstock.errors import StorageError
from penstock.kv.base import Row

_SNAPSHOT_CHUNK_ROWS = 256

#: The driver's own iterator.
RdictIter = Any


class RocksSnapshot:
    """Iterators, one per space, which RocksDB pins to the moment of their making.

    Readers share them: each takes the lock, seeks, and copies a chunk of rows.
    """

    def __init__(
        self, cursors: dict[Any, RdictIter], path: str, failure: Callable[[Exception], Exception]
    ) -> None:
        self._cursors = cursors
        self._path = path
        #: What to raise for an error of the driver: the store takes note of damage.
        self._failure = failure
        self._lock = Lock()

    def get(self, key: bytes, space: Any) -> bytes | None:
        rows, failure = self._chunk(space, key, None, reverse=False, limit=1)
        if failure is not None:
            try:
                raise failure
            finally:
                del failure  # It knows this frame: both, and the database, would stay open with each other.
        return rows[0][1] if rows and rows[0][0] == key else None

    def get_many(self, keys: Sequence[bytes], space: Any) -> list[bytes | None]:
        return [self.get(key, space) for key in keys]

    def scan(
        self,
        space: Any,
        lower: bytes,
        upper: bytes | None,
        *,
        reverse: bool = False,
        limit: int | None = None,
    ) -> Iterator[Row]:
        remaining = limit
        while remaining is None or remaining > 0:
            size = _SNAPSHOT_CHUNK_ROWS if remaining is None else min(remaining, _SNAPSHOT_CHUNK_ROWS)
            rows, failure = self._chunk(space, lower, upper, reverse=reverse, limit=size)
            yield from rows
            if failure is not None:  # Not before what was read up to there.
                try:
                    raise failure
                finally:
                    del failure
            if len(rows) < size:
                return
            remaining = None if remaining is None else remaining - size
            if reverse:
                upper = rows[-1][0]
            else:
                lower = rows[-1][0] + b"\0"

    def _chunk(
        self, space: Any, lower: bytes, upper: bytes | None, *, reverse: bool, limit: int
    ) -> tuple[list[Row], Exception | None]:
        """Up to so many rows, and why there are no more if that is a failure."""
        rows: list[Row] = []
        with self._lock:
            cursor = self._cursors.get(space)
            if cursor is None:
                raise StorageError(f"not a space of the store in {self._path}, or its snapshot was released")
            advance = cursor.prev if reverse else cursor.next
            if not reverse:
                cursor.seek(lower)
            elif upper is None:
                cursor.seek_to_last()
            else:
                cursor.seek_for_prev(upper)
                if cursor.key() == upper:
                    cursor.prev()
            while len(rows) < limit and (key := cursor.key()) is not None:
                if key < lower or (upper is not None and key >= upper):
                    return rows, None
                rows.append((key, cursor.value()))
                advance()
            try:
                cursor.status()
            except Exception as error:  # noqa: BLE001 (raised by the caller)
                return rows, self._failure(error)
        return rows, None

    def release(self) -> None:
        with self._lock:
            self._cursors = {}
