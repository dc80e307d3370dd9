"""The ordered store in memory, with faults on request: what the simulation tests run on.

With `Faults`, a store also remembers what a power cut could take away: an image of everything synced, and
the batches since. Without, it keeps neither.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from threading import RLock
from typing import Any, Literal, Self

import msgspec
from sortedcontainers import SortedDict  # type: ignore[import-untyped,unused-ignore]

from penstock.errors import StorageCorrupt, StorageError, StorageFull
from penstock.kv.base import Batch, Chunk, Loss, Row
from penstock.kv.chunks import chunked

_CHUNK_ROWS = 128
_IMAGE_NAME = "memory.kv"
_IMAGE_MAGIC = b"PENSTOCK-MEMORY\x01"  # the last byte is the version


class SimulatedCrash(BaseException):
    """The process is gone. Not an `Exception`: nothing in a dead process handles anything."""


@dataclass
class Faults:
    """What goes wrong, and when. Counts start at 1; a step is one write or one sync (`sync=True`: two)."""

    fail_write_at: int | None = None
    write_error: Exception = field(default_factory=lambda: StorageFull("no room (injected)"))
    fail_sync_at: int | None = None
    crash_at_step: int | None = None
    crash_moment: Literal["before", "after"] = "before"
    recovers: bool = False
    """Whether writes succeed again after a failed one. RocksDB refuses them until it is reopened."""

    writes: int = 0
    syncs: int = 0
    steps: int = 0


class Space:
    """One key space of one store."""

    __slots__ = ("name", "rows", "size_bytes")

    def __init__(self, name: str, rows: Iterable[Row] = ()) -> None:
        self.name = name
        self.rows: Any = SortedDict(rows)
        self.size_bytes = sum(len(key) + len(value) for key, value in self.rows.items())

    def rebuild(self) -> None:
        """After an interrupt inside a change: whatever it left, the rows are in order again."""
        rows = list(dict.items(self.rows))
        self.__init__(self.name, rows)  # type: ignore[misc] # As if it were new; handles of it stay good.

    def put(self, key: bytes, value: bytes) -> None:
        self.delete(key)
        self.rows[key] = value
        self.size_bytes += len(key) + len(value)

    def delete(self, key: bytes) -> None:
        value = self.rows.pop(key, None)
        if value is not None:
            self.size_bytes -= len(key) + len(value)

    def delete_range(self, lower: bytes, upper: bytes) -> None:
        for key in list(self.rows.irange(lower, upper, inclusive=(True, False))):
            self.delete(key)


Change = tuple[str, str, tuple[bytes, ...]]
"""Method of `Space`, name of the space, arguments."""


class MemoryBatch:
    """Changes in the order in which they were asked for."""

    __slots__ = ("changes", "used")

    def __init__(self) -> None:
        self.changes: list[Change] = []
        self.used = False

    def put(self, key: bytes, value: bytes, space: Space, /) -> None:
        self.changes.append(("put", space.name, (key, value)))

    def delete(self, key: bytes, space: Space, /) -> None:
        self.changes.append(("delete", space.name, (key,)))

    def delete_range(self, lower: bytes, upper: bytes, space: Space, /) -> None:
        if lower > upper:
            raise ValueError(f"delete_range from {lower!r} to {upper!r}: the bounds are swapped")
        self.changes.append(("delete_range", space.name, (lower, upper)))


def _apply(changes: Sequence[Change], spaces: dict[str, Space]) -> None:
    """All of them: an interrupt must not leave a part, and applying them again is no change."""
    try:
        _apply_each(changes, spaces)
    except Exception:
        raise
    except BaseException:
        for name in {name for _, name, _ in changes}:
            spaces[name].rebuild()
        _apply_each(changes, spaces)
        raise


def _apply_each(changes: Sequence[Change], spaces: dict[str, Space]) -> None:
    for method, name, arguments in changes:
        getattr(spaces[name], method)(*arguments)


def _copied(spaces: dict[str, Space]) -> dict[str, Space]:
    return {name: Space(name, space.rows.items()) for name, space in spaces.items()}


class _MemoryReader:
    """Reading, which a store and its snapshots share. A snapshot is asked with the store's handles."""

    def __init__(self, spaces: dict[str, Space]) -> None:
        self._spaces: dict[str, Space] | None = spaces
        self._lock = RLock()

    def _rows(self, space: Space) -> Any:
        try:
            return self._open_spaces()[space.name].rows
        except (AttributeError, KeyError):
            raise StorageError("not a space of this in-memory store; take one from space(name)") from None

    def _open_spaces(self) -> dict[str, Space]:
        if self._spaces is None:
            raise StorageError("the in-memory store (or its snapshot) is closed; open another")
        return self._spaces

    def get(self, key: bytes, space: Space) -> bytes | None:
        with self._lock:
            value: bytes | None = self._rows(space).get(key)
        return value

    def get_many(self, keys: Sequence[bytes], space: Space) -> list[bytes | None]:
        with self._lock:
            rows = self._rows(space)
            return [rows.get(key) for key in keys]

    def scan(
        self,
        space: Space,
        lower: bytes,
        upper: bytes | None,
        *,
        reverse: bool = False,
        limit: int | None = None,
    ) -> Iterator[Row]:
        self._open_spaces()
        return self._chunks(space, lower, upper, reverse, limit)

    def scan_chunks(
        self, space: Space, lower: bytes, upper: bytes | None, *, max_rows: int, max_bytes: int
    ) -> Iterator[Chunk]:
        return chunked(self.scan(space, lower, upper), max_rows, max_bytes)

    def split(self, space: Space, lower: bytes, upper: bytes | None, parts: int) -> list[bytes]:
        with self._lock:
            keys = list(self._rows(space).irange(lower, upper, inclusive=(True, False)))
        places = {len(keys) * part // parts for part in range(1, parts)}
        return [keys[at] for at in sorted(places - {0})]

    def _chunks(
        self, space: Space, lower: bytes, upper: bytes | None, reverse: bool, limit: int | None
    ) -> Iterator[Row]:
        """Rows in chunks, each copied under the lock: writers go on between them."""
        remaining, from_inclusive = limit, True
        while remaining is None or remaining > 0:
            size = _CHUNK_ROWS if remaining is None else min(remaining, _CHUNK_ROWS)
            with self._lock:
                rows = self._rows(space)
                keys = rows.irange(lower, upper, inclusive=(from_inclusive, False), reverse=reverse)
                chunk = [(key, rows[key]) for key, _ in zip(keys, range(size), strict=False)]
            yield from chunk
            if len(chunk) < size:
                return
            remaining = None if remaining is None else remaining - size
            if reverse:
                upper = chunk[-1][0]
            else:
                lower, from_inclusive = chunk[-1][0], False


class MemorySnapshot(_MemoryReader):
    """A copy."""

    def release(self) -> None:
        with self._lock:
            self._spaces = None


class MemoryStore(_MemoryReader):
    """`kv.base.Store` on sorted dictionaries."""

    def __init__(self, spaces: Sequence[str], faults: Faults | None = None) -> None:
        self._start({name: Space(name) for name in spaces}, faults)

    def _start(self, spaces: dict[str, Space], faults: Faults | None) -> None:
        super().__init__(spaces)
        self._faults = faults
        self._stopped_by: Exception | None = None
        # What a power cut leaves for certain, and what it may take (in order, from the end).
        self._synced = _copied(spaces) if faults else {}
        self._unsynced: list[list[Change]] = []
        self._remains = spaces

    @classmethod
    def _of(cls, spaces: dict[str, Space], faults: Faults | None) -> Self:
        store = cls.__new__(cls)
        store._start(spaces, faults)
        return store

    def space(self, name: str) -> Space:
        try:
            return self._open_spaces()[name]
        except KeyError:
            raise StorageError(f"the store was not opened with a space {name!r}") from None

    def batch(self) -> MemoryBatch:
        self._open_spaces()
        return MemoryBatch()

    def write(self, batch: Batch, *, sync: bool = False) -> None:
        assert isinstance(batch, MemoryBatch), "a batch of another store"
        with self._lock:
            self._check_writable()
            if batch.used:
                raise StorageError("this batch was written already; take a new one")
            batch.used = True
            if self._faults is None:
                _apply(batch.changes, self._open_spaces())
                return
            self._step_before(self._faults)
            self._fail_write_if_due(self._faults)
            _apply(batch.changes, self._open_spaces())
            self._unsynced.append(batch.changes)
            self._step_after(self._faults)
            if sync:
                self.sync()

    def sync(self) -> None:
        with self._lock:
            self._check_writable()
            if self._faults is None:
                return
            self._step_before(self._faults)
            self._fail_sync_if_due(self._faults)
            for changes in self._unsynced:
                _apply(changes, self._synced)
            self._unsynced.clear()
            self._step_after(self._faults)

    def _check_writable(self) -> None:
        self._open_spaces()
        if self._stopped_by is not None:
            raise self._stopped_by

    def _step_before(self, faults: Faults) -> None:
        faults.steps += 1
        if faults.steps == faults.crash_at_step and faults.crash_moment == "before":
            self._die()

    def _step_after(self, faults: Faults) -> None:
        if faults.steps == faults.crash_at_step and faults.crash_moment == "after":
            self._die()

    def _die(self) -> None:
        # A `finally` on the way out is code that a real crash would not have run: closed to it.
        self._spaces = None
        raise SimulatedCrash

    def _fail_write_if_due(self, faults: Faults) -> None:
        faults.writes += 1
        if faults.writes == faults.fail_write_at:
            self._stopped_by = None if faults.recovers else faults.write_error
            raise faults.write_error

    def _fail_sync_if_due(self, faults: Faults) -> None:
        faults.syncs += 1
        if faults.syncs == faults.fail_sync_at:
            # Never recovers: what a failed sync left in doubt, a later one cannot vouch for.
            self._stopped_by = StorageError("sync failed (injected); open the store again")
            raise self._stopped_by

    def crash(self, rng: Random, faults: Faults | None = None) -> MemoryStore:
        """The store after a power cut: all that was synced, and the first few whole batches of the rest."""
        if self._faults is None:
            raise StorageError("only a store with faults remembers what was synced; pass faults=Faults()")
        spaces = _copied(self._synced)
        for changes in self._unsynced[: rng.randint(0, len(self._unsynced))]:
            _apply(changes, spaces)
        return MemoryStore._of(spaces, faults or Faults())

    def reopen(self, faults: Faults | None = None) -> MemoryStore:
        """The store after the process was killed or closed it: the system still has all that was written."""
        store = MemoryStore._of(_copied(self._remains), faults or (Faults() if self._faults else None))
        store._synced, store._unsynced = _copied(self._synced), list(self._unsynced)
        return store

    def snapshot(self) -> MemorySnapshot:
        with self._lock:
            return MemorySnapshot(_copied(self._open_spaces()))

    def checkpoint(self, path: str) -> None:
        with self._lock:
            image = {name: list(space.rows.items()) for name, space in self._open_spaces().items()}
        body = msgspec.msgpack.encode(image)
        try:
            os.makedirs(path)
            with open(os.path.join(path, _IMAGE_NAME), "xb") as file:
                file.write(_IMAGE_MAGIC + zlib.crc32(body).to_bytes(4, "big") + body)
        except OSError as error:
            raise StorageError(f"cannot write a checkpoint to {path}: {error.strerror}") from error

    @classmethod
    def load(cls, path: str, faults: Faults | None = None) -> MemoryStore:
        """The store that `checkpoint` wrote to `path`."""
        try:
            with open(os.path.join(path, _IMAGE_NAME), "rb") as file:
                magic, crc, body = file.read(len(_IMAGE_MAGIC)), file.read(4), file.read()
        except OSError as error:
            raise StorageError(f"cannot read a checkpoint from {path}: {error.strerror}") from error
        if magic != _IMAGE_MAGIC or zlib.crc32(body).to_bytes(4, "big") != crc:
            raise StorageCorrupt(f"the checkpoint in {path} is damaged; take another")
        image = msgspec.msgpack.decode(body, type=dict[str, list[tuple[bytes, bytes]]])
        return cls._of({name: Space(name, rows) for name, rows in image.items()}, faults)

    def ingest(self, paths: Sequence[str], space: Space) -> None:
        """Refused: there is no file format of sorted rows to take in."""
        self._open_spaces()
        raise StorageError("the in-memory store takes no sorted files; write batches to it")

    def compact(self) -> None:
        """Nothing to do: what was overwritten is gone already."""
        self._open_spaces()

    def clear(self, name: str) -> None:
        with self._lock:
            self._check_writable()
            self.space(name)
            if self._faults is not None:
                self._step_before(self._faults)
                self._synced[name] = Space(name)
                self._unsynced = [[one for one in changes if one[1] != name] for changes in self._unsynced]
            self._open_spaces()[name] = Space(name)
            if self._faults is not None:
                self._step_after(self._faults)

    def salvage(self, name: str, wanted: Callable[[bytes, bytes | None], Iterable[bytes]]) -> None:
        """Nothing to do: all of it can be read."""

    def losses(self) -> list[Loss]:
        return []

    def forget_losses(self) -> None:
        pass

    def damage(self) -> list[str]:
        return []

    def witness(self) -> None:
        pass

    def approximate_size(self) -> int:
        return sum(space.size_bytes for space in self._open_spaces().values())

    def close(self) -> None:
        """Syncs nothing: the contract does not promise that, so a simulation must not rely on it."""
        self._spaces = None
