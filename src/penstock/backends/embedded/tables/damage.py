"""Damage in a store of tables: ranges are read past what cannot be, where the request says so."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from penstock.backends.bulk import BATCH_BYTES, BATCH_ROWS
from penstock.backends.tables import damage
from penstock.errors import StorageCorrupt
from penstock.kv.base import Chunk, Store
from penstock.kv.chunks import chunked
from penstock.kv.damage import Hole, readable_rows


class Damages(damage.Damages):
    """What becomes of damage in one queue or world."""

    def chunks(
        self,
        kv: Store,
        space: str,
        bounds: tuple[bytes, bytes],
        *,
        max_rows: int = BATCH_ROWS,
        max_bytes: int = BATCH_BYTES,
        on_hole: Callable[[Hole], None] | None = None,
    ) -> Iterator[Chunk]:
        """The rows of a range, many at a time; past what cannot be read, if that is to be set aside."""
        handle = kv.space(space)
        lower, upper = bounds
        if self.told is not None:

            def tell(hole: Hole) -> None:
                self.found(f"in {space}", StorageCorrupt(hole.what), rows=0)
                if on_hole is not None:
                    on_hole(hole)

            rows = readable_rows(kv, handle, space, lower, upper, tell)
            yield from chunked(rows, max_rows, max_bytes)
            return
        chunks = kv.scan_chunks(handle, lower, upper, max_rows=max_rows, max_bytes=max_bytes)
        while True:
            try:
                chunk = next(chunks, None)
            except StorageCorrupt as error:
                self.found(f"in {space}", error)
                raise
            if chunk is None:
                return
            yield chunk
