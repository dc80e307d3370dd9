"""The ordered-store contract. Its two implementations pass one suite."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

#: A handle that `Store.space` gave out. Opaque, so that it can be the driver's own object.
Space = Any

Row = tuple[bytes, bytes]

#: Many rows: their keys, and their values in the same order.
Chunk = tuple[list[bytes], list[bytes]]


class Loss(NamedTuple):
    """Something that a space has lost for good; `space` is empty if it may be any."""

    space: str
    what: str


class Batch(Protocol):
    """Changes that become visible together or not at all. Used once."""

    def put(self, key: bytes, value: bytes, space: Space, /) -> None: ...

    def delete(self, key: bytes, space: Space, /) -> None:
        """Deleting what is not there is no error."""
        ...

    def delete_range(self, lower: bytes, upper: bytes, space: Space, /) -> None:
        """Everything from `lower` up to, not including, `upper`."""
        ...


class Reader(Protocol):
    """A view of the store."""

    def get(self, key: bytes, space: Space) -> bytes | None: ...

    def get_many(self, keys: Sequence[bytes], space: Space) -> list[bytes | None]:
        """Values in the order of the keys; None for what is not there."""
        ...

    def scan(
        self,
        space: Space,
        lower: bytes,
        upper: bytes | None,
        *,
        reverse: bool = False,
        limit: int | None = None,
    ) -> Iterator[Row]:
        """Rows with lower <= key < upper in byte order (`upper` None: to the end).

        Rows that are written while the scan runs may or may not appear; each row is whole.
        """
        ...


class BulkSource(Reader, Protocol):
    """A view of which whole ranges are read, by several readers perhaps."""

    def scan_chunks(
        self, space: Space, lower: bytes, upper: bytes | None, *, max_rows: int, max_bytes: int
    ) -> Iterator[Chunk]:
        """The rows of `scan`, many at a time: cheaper a row, dearer to begin with.

        A chunk ends with the few rows that bring it to `max_rows`, or its values to `max_bytes`.
        """
        ...

    def split(self, space: Space, lower: bytes, upper: bytes | None, parts: int) -> list[bytes]:
        """Up to `parts` - 1 keys, in order, that cut a range into about equal numbers of rows; cheap."""
        ...


class Snapshot(Reader, Protocol):
    """A view that later writes do not change. Release it soon: it holds back clean-up."""

    def release(self) -> None: ...


class Store(BulkSource, Protocol):
    """An ordered byte store. Calls are safe from any thread; one writer at a time is the caller's duty."""

    def space(self, name: str) -> Space:
        """The handle of a key space named when the store was opened."""
        ...

    def batch(self) -> Batch: ...

    def write(self, batch: Batch, *, sync: bool = False) -> None:
        """Apply the whole batch or nothing. With `sync`, it survives a power cut once this returns."""
        ...

    def sync(self) -> None:
        """Everything written so far survives a power cut once this returns. Lets other threads run."""
        ...

    def snapshot(self) -> Snapshot: ...

    def checkpoint(self, path: str) -> None:
        """A copy of the store, as of now, in a folder that does not exist yet."""
        ...

    def ingest(self, paths: Sequence[str], space: Space) -> None:
        """Take in sorted files that the engine's own writer made, durably, all of them or none.

        It is no part of any batch. The files stay, and to take them in again is no change.
        """
        ...

    def compact(self) -> None:
        """Files hold nothing once this returns but what the store held when it was called, or later.

        What was overwritten or deleted is gone from tables and logs, unless a snapshot or an unfinished scan
        still sees it. Takes as long as reading and writing everything; lets other threads run.
        """
        ...

    def clear(self, name: str) -> None:
        """Empty a space, even of what cannot be read, at once and durably: not part of any batch.

        Handles of it are void afterwards, take a new one; nobody may be writing.
        """
        ...

    def salvage(self, name: str, wanted: Callable[[bytes, bytes | None], Iterable[bytes]]) -> None:
        """Write a space anew from what can be read of it, durably; like `clear`, it makes handles void.

        For a part that cannot be scanned, from one key up to another (None: the end), `wanted` names keys, in
        order, that may be in it: each is looked up by itself. The old tables are kept beside, and what could
        not be read is among the `losses` from then on.
        """
        ...

    def losses(self) -> list[Loss]:
        """What was lost since a repair last dealt with it, in this process or an earlier one."""
        ...

    def forget_losses(self) -> None:
        """A repair has dealt with them."""
        ...

    def damage(self) -> list[str]:
        """What could not be read since the store was opened, each with where, and what was lost."""
        ...

    def witness(self) -> None:
        """Write down what there is, so that a later opening notices what is not there any more; cheap."""
        ...

    def approximate_size(self) -> int:
        """Bytes that the store occupies, roughly; cheap."""
        ...

    def close(self) -> None:
        """Release everything. Closing twice is no error; other calls then raise `StorageError`."""
        ...
