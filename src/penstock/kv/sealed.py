"""A store whose secret values are sealed on their way in and opened on their way out.

It stands between a store and its user, who sees plain values and the same contract. A value that does not
open is passed on as it is stored, so that a scan goes on behind it; decoders refuse it by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from penstock.codec.sealed import SEALED_VERSION, key_id_of, not_sealed, place_of
from penstock.codec.vault import Open, Seal, Vault
from penstock.errors import StorageError
from penstock.kv.base import Batch, Chunk, Loss, Reader, Row, Snapshot, Space, Store

#: Whether a row's plain value is secret, by its key and value.
Rule = Callable[[bytes, bytes], bool]


def _nothing(key: bytes, value: bytes) -> bool:
    """The rule where nothing is sealed any more."""
    return False


class _Sealed(NamedTuple):
    """A space with secret values: which of its rows they are, and what seals and opens them."""

    is_secret: Rule
    seal: Seal
    open: Open


class Renewed(NamedTuple):
    """What a step of `renew` did; `position` is where the next one goes on, None at the end."""

    position: bytes | None
    records: int
    size_bytes: int
    rewritten: int
    unreadable: list[str]
    """The keys that records name which do not open."""


class SealedBatch:
    """A batch of the store below, with secret values sealed as they are put."""

    __slots__ = ("_put", "_sealed", "delete", "delete_range", "inner")

    def __init__(self, inner: Batch, sealed: Mapping[Space, _Sealed | None]) -> None:
        self.inner = inner
        self._put, self.delete, self.delete_range = inner.put, inner.delete, inner.delete_range
        self._sealed = sealed

    def put(self, key: bytes, value: bytes, space: Space, /) -> None:
        try:
            sealed = self._sealed[space]
        except KeyError:
            raise StorageError(
                "not a space of this store, or not any more: nothing is written to it"
            ) from None
        if sealed is not None and sealed.is_secret(key, value):
            value = sealed.seal(key, value)
        self._put(key, value, space)


def put_as_stored(batch: Batch) -> Callable[[bytes, bytes, Space], None]:
    """What puts values that are sealed already, where they should be."""
    return batch.inner.put if isinstance(batch, SealedBatch) else batch.put


class _SealedReader:
    """Reading, which the store and its snapshots share."""

    def __init__(self, inner: Any, sealed: dict[Space, _Sealed | None], *, takes_plain: bool) -> None:
        self._inner: Reader = inner
        self._sealed = sealed
        #: Whether values that should be secret may be plain: they are, until a rekeying has sealed them.
        self.takes_plain = takes_plain

    def get(self, key: bytes, space: Space) -> bytes | None:
        value = self._inner.get(key, space)
        sealed = self._sealed.get(space)
        return value if not value or sealed is None else self._opened(sealed, key, value)

    def _opened(self, sealed: _Sealed, key: bytes, value: bytes) -> bytes:
        if value[0] == SEALED_VERSION:
            opened = sealed.open(key, value)
            return value if opened is None else opened
        return value if self.takes_plain or not sealed.is_secret(key, value) else not_sealed(value)

    def get_many(self, keys: Sequence[bytes], space: Space) -> list[bytes | None]:
        values = self._inner.get_many(keys, space)
        sealed = self._sealed.get(space)
        if sealed is None:
            return values
        for at, value in enumerate(values):
            if value:
                values[at] = self._opened(sealed, keys[at], value)
        return values

    def scan(
        self,
        space: Space,
        lower: bytes,
        upper: bytes | None,
        *,
        reverse: bool = False,
        limit: int | None = None,
    ) -> Iterator[Row]:
        rows = self._inner.scan(space, lower, upper, reverse=reverse, limit=limit)
        sealed = self._sealed.get(space)
        return rows if sealed is None else self._opened_rows(sealed, rows)

    def _opened_rows(self, sealed: _Sealed, rows: Iterator[Row]) -> Iterator[Row]:
        open_record = sealed.open
        for row in rows:
            key, value = row
            if value and value[0] == SEALED_VERSION:
                opened = open_record(key, value)
                yield row if opened is None else (key, opened)
            else:
                yield (key, self._opened(sealed, key, value)) if value else row

    def _opened_chunks(self, sealed: _Sealed, chunks: Iterator[Chunk]) -> Iterator[Chunk]:
        for keys, values in chunks:
            rows = self._opened_rows(sealed, zip(keys, values, strict=True))
            yield keys, [value for _, value in rows]


class SealedSnapshot(_SealedReader):
    """A snapshot of the store below, opened the same way."""

    def release(self) -> None:
        inner: Any = self._inner
        inner.release()


class SealedStore(_SealedReader):
    """`kv.base.Store` over another one. With no active key in the vault it reads both and writes plain.

    Every space has a rule, None if nothing in it is secret: what has no rule is not written.
    """

    def __init__(
        self, store: Store, vault: Vault, rules: Mapping[str, Rule | None], *, takes_plain: bool = True
    ) -> None:
        self._rules: dict[str, _Sealed | None] = {}
        for name, rule in rules.items():
            place = place_of(name)
            if vault.active is None and rule is not None:
                rule = _nothing
            self._rules[name] = rule and _Sealed(rule, vault.sealer(place), vault.opener(place))
        spaces = {store.space(name): sealed for name, sealed in self._rules.items()}
        super().__init__(store, spaces, takes_plain=takes_plain)
        self._store = store
        #: The key that new records are sealed with.
        self.active = vault.active

    def space(self, name: str) -> Space:
        return self._store.space(name)

    def batch(self) -> SealedBatch:
        return SealedBatch(self._store.batch(), self._sealed)

    def write(self, batch: Batch, *, sync: bool = False) -> None:
        assert isinstance(batch, SealedBatch), "a batch of another store"
        self._store.write(batch.inner, sync=sync)

    def sync(self) -> None:
        self._store.sync()

    def scan_chunks(
        self, space: Space, lower: bytes, upper: bytes | None, *, max_rows: int, max_bytes: int
    ) -> Iterator[Chunk]:
        chunks = self._store.scan_chunks(space, lower, upper, max_rows=max_rows, max_bytes=max_bytes)
        sealed = self._sealed.get(space)
        return chunks if sealed is None else self._opened_chunks(sealed, chunks)

    def split(self, space: Space, lower: bytes, upper: bytes | None, parts: int) -> list[bytes]:
        return self._store.split(space, lower, upper, parts)

    def snapshot(self) -> Snapshot:
        return SealedSnapshot(self._store.snapshot(), self._sealed, takes_plain=self.takes_plain)

    def checkpoint(self, path: str) -> None:
        self._store.checkpoint(path)

    def ingest(self, paths: Sequence[str], space: Space) -> None:
        self._store.ingest(paths, space)

    def opened(self, name: str, key: bytes, value: bytes) -> bytes:
        """A value as a row of this space would be read, wherever it came from."""
        sealed = self._rules[name]
        return value if sealed is None or not value else self._opened(sealed, key, value)

    def losses(self) -> list[Loss]:
        return self._store.losses()

    def forget_losses(self) -> None:
        self._store.forget_losses()

    def damage(self) -> list[str]:
        return self._store.damage()

    def witness(self) -> None:
        self._store.witness()

    def approximate_size(self) -> int:
        return self._store.approximate_size()

    def compact(self) -> None:
        self._store.compact()

    def clear(self, name: str) -> None:
        with self._renewed(name):
            self._store.clear(name)

    def salvage(self, name: str, wanted: Callable[[bytes, bytes | None], Iterable[bytes]]) -> None:
        """Records as they are stored: whether they open is for those who read them."""
        with self._renewed(name):
            self._store.salvage(name, wanted)

    @contextmanager
    def _renewed(self, name: str) -> Iterator[None]:
        """The rule of a space, under the handle that it has afterwards, whatever happens meanwhile."""
        old = self._store.space(name)
        try:
            yield
        finally:
            self._sealed[self._store.space(name)] = self._rules[name]
            if self._store.space(name) is not old:
                del self._sealed[old]

    def close(self) -> None:
        # Handles keep the store below open.
        self._sealed.clear()
        self._store.close()

    def renew(self, batch: Batch, space: Space, lower: bytes, max_rows: int, max_bytes: int) -> Renewed:
        """Put values that the active key did not seal once more, from `lower` on; one writer, as ever."""
        sealed = self._sealed[space]
        assert sealed is not None, "a space without secrets"
        records = size_bytes = rewritten = 0
        unreadable: list[str] = []
        for key, value in self._store.scan(space, lower, None):
            if records == max_rows or size_bytes >= max_bytes:
                return Renewed(key, records, size_bytes, rewritten, unreadable)
            records += 1
            size_bytes += len(key) + len(value)
            key_id = key_id_of(value)
            if key_id == self.active or (key_id is None and not sealed.is_secret(key, value)):
                continue
            plain = sealed.open(key, value) if key_id is not None else value if self.takes_plain else None
            if plain is None:
                unreadable.append(key_id or "")
            else:
                batch.put(key, plain, space)
                rewritten += 1
        return Renewed(None, records, size_bytes, rewritten, unreadable)
