"""Whole ranges of RocksDB: read many rows at a time, and cut for several readers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

from penstock.kv.base import Chunk, Row
from penstock.kv.chunks import Stretch, chunked, cuts
from penstock.kv.damage import tables_of

if TYPE_CHECKING:
    from types import ModuleType


class _Database(Protocol):
    """What it stands on."""

    _driver: ModuleType
    _database: Any
    _families: dict[Any, Any]

    def scan(self, space: Any, lower: bytes, upper: bytes | None) -> Iterator[Row]: ...

    def _failure(self, error: Exception) -> Exception: ...


class WholeRanges:
    """The part of `RocksStore` that is `kv.base.BulkSource`."""

    def scan_chunks(
        self: _Database, space: Any, lower: bytes, upper: bytes | None, *, max_rows: int, max_bytes: int
    ) -> Iterator[Chunk]:
        if upper is not None and upper <= lower:
            return
        options = self._driver.ReadOptions()  # Held here for as long as the driver points into it.
        if upper is not None:
            options.set_iterate_upper_bound(upper)
        try:
            rows = self._families[space].items(from_key=lower, read_opt=options)
        except Exception as error:
            raise self._failure(error) from error
        for chunk in chunked(rows, max_rows, max_bytes):
            lower = chunk[0][-1] + b"\0"
            yield chunk
        # It may have ended at a damaged block, without a word: what is behind, a scan tells.
        yield from chunked(self.scan(space, lower, upper), max_rows, max_bytes)

    def split(self: _Database, space: Any, lower: bytes, upper: bytes | None, parts: int) -> list[bytes]:
        """By the tables: rows are as if spread evenly inside each, and those in memory do not count."""
        try:
            own = tables_of(self._families[space])
            tables = [file for file in self._database.live_files() if file["name"].lstrip("/") in own]
        except Exception as error:
            raise self._failure(error) from error
        found = [
            Stretch(f["start_key"], f["end_key"], f["num_entries"] - 2 * f["num_deletions"]) for f in tables
        ]
        return cuts(found, lower, upper, parts)
