"""What cannot be read: raised with its place, or told and set aside, as the request says."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from penstock.backends.bulk import BATCH_BYTES, BATCH_ROWS, Damage
from penstock.errors import StorageCorrupt
from penstock.kv.base import Chunk, Store
from penstock.kv.chunks import chunked
from penstock.kv.damage import Hole, readable_rows

Told = Callable[[Damage], None]


class Unreadable(Exception):
    """Rows of a batch that do not decode, by their places in it, and why: the batch is made without them."""

    def __init__(self, errors: dict[int, StorageCorrupt]) -> None:
        super().__init__(len(errors))
        self.errors = errors


class Damages:
    """What becomes of damage in one queue or world."""

    def __init__(self, what: str, name: str, told: Told | None) -> None:
        self._what = what
        self.name = name
        #: None: damage fails the read.
        self._told = told

    def found(self, where: str, error: StorageCorrupt, rows: int = 1) -> None:
        """Raise it with its place, or tell."""
        if self._told is None:
            raise type(error)(f"{self._what} {self.name!r}, {where}: {error}") from error
        self._told(Damage(self.name, where, str(error), rows))

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
        if self._told is not None:

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
