"""The ordered store on RocksDB: the only file that imports rocksdict.

Facts about the driver that shape this file (rocksdict 0.3.29; tests fail where one of them bites):

- `items()` ends quietly on a damaged block, and `ReadOptions.set_iterate_lower_bound` sets the upper bound:
  scans drive the bare iterator, ask for its status at the end, and compare the lower bound themselves.
- A cursor points into the `ReadOptions` that it was made with: once those are freed, its upper bound is
  whatever the memory holds next, and a scan ends early without a word. Scans keep them alive.
- Iterating over the driver's `Snapshot` shows later writes: a snapshot here is a set of pinned iterators.
- A column family handle keeps the database open. `close` drops the store's own; the folder stays locked
  until callers have dropped theirs, and the scans that they did not finish.
- A batch with a `delete_range` whose bounds are swapped is half applied and stops the database. The batch
  is the driver's own, so nothing here can refuse it; the in-memory store's does.
"""

from __future__ import annotations

import contextlib
import os
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from penstock.errors import BackendNotInstalled, StorageCorrupt, StorageError
from penstock.kv.base import Loss, Row
from penstock.kv.damage import (
    broken_of,
    broken_tables,
    keep_tables,
    named_tables,
    pending_table,
    rows_of,
    tables_of,
    write_table,
)
from penstock.kv.failures import not_taken_in, translated
from penstock.kv.folder import prepare_folder
from penstock.kv.losses import Losses, take_place
from penstock.kv.opened import Opening
from penstock.kv.pinned import RocksSnapshot
from penstock.kv.scratch import tables_alone
from penstock.kv.sorted_files import take_in
from penstock.kv.tuning import CACHE_CAPACITY_BYTES, PROFILES, Mode, filtered_options
from penstock.kv.wal import SET_ASIDE, mend_logs
from penstock.kv.whole import WholeRanges
from penstock.kv.witness import Witness

if TYPE_CHECKING:
    from types import ModuleType

    from rocksdict import ColumnFamily, Options, Rdict, RdictIter, WriteBatch

_SNAPSHOT_ATTEMPTS = 1000


def _driver() -> ModuleType:
    try:
        import rocksdict
    except ImportError as error:
        raise BackendNotInstalled("rocksdict", "rocksdb") from error
    return rocksdict


def write_filtered(path: str, rows: Iterable[Row], *, compress: bool) -> None:
    """A table to be ingested, by a call a row: for keys that are looked up, for which it has a filter."""
    driver = _driver()
    try:
        write_table(driver, Path(path), rows, filtered_options(driver, compress=compress))
    except Exception as error:
        raise translated(error, path) from error


class RocksStore(WholeRanges):
    """`kv.base.Store` on a RocksDB folder; a space is a column family, a batch the driver's own object."""

    def __init__(
        self,
        path: str,
        database: Rdict,
        spaces: Collection[str],
        make_options: Callable[[str], Options] | None = None,
    ) -> None:
        self._path = path
        self.mode: Mode = "high_throughput"
        # None once closed: calls then fail on it and `_failure` says why, at no cost to calls that succeed.
        self._database: Any = database
        self._broken = False
        #: Tables in which something could not be read, and what.
        self._damaged: dict[str, str] = {}
        self._losses = Losses(path)
        self._witness: Witness | None = None  # of a store that may be written
        self._known_failures = 0
        self._compacting = Lock()
        self._snapshots: WeakSet[RocksSnapshot] = WeakSet()
        self._driver = _driver()
        self._make_options = make_options or (lambda name: self._driver.Options(raw_mode=True))
        self._spaces: dict[str, ColumnFamily] = {n: database.get_column_family_handle(n) for n in spaces}
        # Keyed by the handle itself: it hashes by identity, and the store keeps it alive.
        self._families: dict[Any, Rdict] = {
            handle: database.get_column_family(name) for name, handle in self._spaces.items()
        }

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        spaces: Sequence[str],
        *,
        cache_capacity_bytes: int = CACHE_CAPACITY_BYTES,
        mode: Mode = "high_throughput",
        tombstone_spaces: Collection[str] | None = None,
        read_only: bool = False,
    ) -> RocksStore:
        """Open or create the store in `path`.

        Spaces of the folder that `spaces` does not name are opened too: RocksDB insists, and nothing is lost.
        `tombstone_spaces` (None: all) are those whose consumed heads are compacted away early.
        """
        driver, folder = _driver(), os.fspath(path)
        prepare_folder(folder, read_only=read_only)
        witness = Witness(folder)
        witness.verify()
        if not read_only:
            mend_logs(folder)
        cache = driver.Cache(cache_capacity_bytes)
        opening = Opening(driver, folder, PROFILES[mode], cache, tombstone_spaces)
        try:
            if read_only:
                return cls(folder, opening.read_only(), spaces)
            store = cls(folder, opening.writable(spaces), spaces, opening.family)
            store.mode = mode
            store._mend()
            store._witness = witness
            store.witness()
            return store
        except Exception as error:
            raise translated(error, folder) from error

    def _mend(self) -> None:
        """What an earlier process began, and what this one finds broken; if in vain, the folder is free."""
        try:
            self._finish_replacing()
            self._go_without_broken_tables()
        except BaseException as error:
            self.close()
            traceback.clear_frames(error.__traceback__)  # They know handles that keep the database open.
            raise

    def space(self, name: str) -> ColumnFamily:
        try:
            return self._spaces[name]
        except KeyError:
            self._check_open()
            raise StorageError(f"the store in {self._path} was not opened with a space {name!r}") from None

    def batch(self) -> WriteBatch:
        self._check_open()
        batch: WriteBatch = self._driver.WriteBatch(raw_mode=True)
        return batch

    def get(self, key: bytes, space: Any) -> bytes | None:
        try:
            value: bytes | None = self._families[space].get(key)
        except Exception as error:
            raise self._failure(error) from error
        return value

    def get_many(self, keys: Sequence[bytes], space: Any) -> list[bytes | None]:
        if len(keys) == 1:
            return [self.get(keys[0], space)]  # A look-up of many can cost many times as much.
        try:
            values: list[bytes | None] | None = self._families[space].get(list(keys))
        except Exception as error:
            raise self._failure(error) from error
        return values or []

    def scan(
        self,
        space: Any,
        lower: bytes,
        upper: bytes | None,
        *,
        reverse: bool = False,
        limit: int | None = None,
    ) -> Iterator[Row]:
        try:
            family = self._families[space]
            options = self._driver.ReadOptions()
            if upper is not None:
                if upper <= lower:
                    return iter(())
                options.set_iterate_upper_bound(upper)
            cursor = family.iter(options)
            if not reverse:
                cursor.seek(lower)
                return self._forwards(cursor, limit, options)
            cursor.seek_to_last()  # the last one below the upper bound
            return self._backwards(cursor, lower, limit, options)
        except Exception as error:
            raise self._failure(error) from error

    def _forwards(self, cursor: RdictIter, limit: int | None, bounds: Any) -> Iterator[Row]:
        # `bounds` is held for as long as the cursor lives: the cursor points into it.
        key_of, value_of, advance = cursor.key, cursor.value, cursor.next
        remaining = -1 if limit is None else limit
        while remaining and (key := key_of()) is not None:
            yield key, value_of()
            advance()
            remaining -= 1
        if remaining:
            self._check_cursor(cursor)

    def _backwards(self, cursor: RdictIter, lower: bytes, limit: int | None, bounds: Any) -> Iterator[Row]:
        remaining = -1 if limit is None else limit
        while remaining and (key := cursor.key()) is not None:
            if key < lower:
                return
            yield key, cursor.value()
            cursor.prev()
            remaining -= 1
        if remaining:
            self._check_cursor(cursor)

    def _check_cursor(self, cursor: RdictIter) -> None:
        """Only its status tells an iterator that met a damaged block from one that came to the end."""
        try:
            cursor.status()
        except Exception as error:
            raise self._failure(error) from error

    def write(self, batch: Any, *, sync: bool = False) -> None:
        if self._broken:
            raise StorageError(f"an earlier write to {self._path} failed: open the store again")
        try:
            self._database.write(batch)
            if sync:
                self._database.flush_wal(True)  # lets other threads run, which a synced write would not
        except Exception as error:
            raise self._write_failure(error) from error

    def sync(self) -> None:
        try:
            self._database.flush_wal(True)
        except Exception as error:
            raise self._write_failure(error) from error

    def snapshot(self) -> RocksSnapshot:
        """The same moment in all spaces: taken again if a write came between two of them."""
        self._check_open()
        database = self._database
        try:
            for _ in range(_SNAPSHOT_ATTEMPTS):
                before = database.latest_sequence_number()
                cursors = {handle: family.iter() for handle, family in self._families.items()}
                if database.latest_sequence_number() == before:
                    snapshot = RocksSnapshot(cursors, self._path, self._failure)
                    self._snapshots.add(snapshot)
                    return snapshot
        except Exception as error:
            raise self._failure(error) from error
        raise StorageError(
            f"no moment without writes to {self._path}; hold the writer while taking a snapshot"
        )

    def checkpoint(self, path: str) -> None:
        if os.path.exists(path):
            raise StorageError(f"{path} exists; name a folder that does not")
        try:
            self._driver.Checkpoint(self._database).create_checkpoint(path)
        except Exception as error:
            raise self._failure(error) from error

    def ingest(self, paths: Sequence[str], space: Any) -> None:
        try:
            take_in(self._driver, self._families[space], paths)
        except Exception as error:
            self._check_open()
            raise not_taken_in(error, self._path) from error

    def compact(self) -> None:
        self._check_open()
        options = self._thorough()
        families: dict[str, Rdict] = {}
        with self._compacting:
            try:
                # Objects of its own: `close` could not close one that is in a call.
                families.update((name, self._database.get_column_family(name)) for name in self._spaces)
                for name in families:  # All of them first: a log goes when no family needs it.
                    families[name].flush(True)
                old = self._files()
                for name in families:
                    families[name].compact_range(None, None, options)
                left = old & self._files()
            except Exception as error:
                raise self._failure(error) from error
            finally:
                families.clear()  # Or an error that someone keeps would keep the database open.
        if left:
            # The driver passes on no failure of a compaction.
            raise StorageError(f"{len(left)} files of {self._path} were not compacted; try again")

    def _thorough(self) -> Any:
        """Bottommost files too, which RocksDB would leave as they are: they hold the oldest versions."""
        options = self._driver.CompactOptions()
        options.set_bottommost_level_compaction(self._driver.BottommostLevelCompaction.force())
        return options

    def _files(self) -> set[str]:
        return {file["name"] for file in self._database.live_files()}

    def clear(self, name: str) -> None:
        """By dropping the column family: its files go unread."""
        old = self.space(name)
        try:
            self._families.pop(old, None)
            self._database.drop_column_family(name)
            family = self._database.create_column_family(name, self._make_options(name))
            self._spaces[name] = self._database.get_column_family_handle(name)
            self._families[self._spaces[name]] = family
        except Exception as error:
            raise self._write_failure(error) from error

    def salvage(self, name: str, wanted: Callable[[bytes, bytes | None], Iterable[bytes]]) -> None:
        """By a table of its own, which then becomes the whole space: killed before that, opening goes on.

        Nothing is given up before all that can be read of the space is on the disk, and its tables are kept.
        """
        pending = pending_table(self._path, name)
        unfinished = pending.with_suffix(".unfinished")
        self._leave_tables_alone()
        try:
            self._families[self.space(name)].flush(True)
            lost: list[Loss] = []
            with self._readable(name, lost) as reader:
                write_table(self._driver, unfinished, rows_of(reader, name, wanted, lost))
            keep_tables(self._path, self._tables(name))
            self._losses.add(lost)
            take_place(unfinished, pending)
        except Exception as error:
            unfinished.unlink(missing_ok=True)
            raise self._failure(error) from error
        try:
            self._replace(name, pending)
        except Exception as error:
            raise self._write_failure(error) from error
        self._known_failures = self._database.property_int_value("rocksdb.background-errors") or 0
        live = self._files()
        self._damaged = {table: why for table, why in self._damaged.items() if f"/{table}" in live}
        if not self._damaged:
            self._leave_tables_alone(False)

    @contextlib.contextmanager
    def _readable(self, name: str, lost: list[Loss]) -> Iterator[RocksStore]:
        """A store from which a space can be read: this one, if all of the space's tables can be opened."""
        broken = broken_of(self._path, self._database, self._families[self._spaces[name]])
        if not broken:
            yield self
            return
        with tables_alone(self._driver, self._path, name, lambda: self._tables(name) - broken) as (
            folder,
            refused,
        ):
            what = "{} cannot be opened, or not read to its end: it is kept in " + SET_ASIDE
            lost += [Loss(name, what.format(table)) for table in sorted(broken.union(refused))]
            store = RocksStore.open(folder, [name])
            try:
                yield store
            finally:
                store.close()

    def _tables(self, name: str) -> set[str]:
        return tables_of(self._families[self._spaces[name]])

    def _finish_replacing(self) -> None:
        """At opening: a space that was being written anew."""
        for name in list(self._spaces):
            pending = pending_table(self._path, name)
            pending.with_suffix(".unfinished").unlink(missing_ok=True)
            if pending.exists():
                self._replace(name, pending)

    def _replace(self, name: str, pending: Path) -> None:
        """The table becomes the space; done twice is as once."""
        self.clear(name)
        if pending.stat().st_size:
            family = self._families[self._spaces[name]]
            family.ingest_external_file([str(pending)])
            # That table does not know which space it is of: none that are left may be like that.
            ingested = self._tables(name)
            with self._compacting:
                family.compact_range(None, None, self._thorough())
            if ingested & self._tables(name):
                raise StorageError(f"{name} in {self._path} was not compacted; open the store again")
        pending.unlink()

    def _go_without_broken_tables(self) -> None:
        """At opening: one that cannot be opened would fail whatever comes near it."""
        broken = set(broken_tables(self._path, self._database.live_files()))
        for name in list(self._spaces) if broken else ():
            if broken & self._tables(name):
                self.salvage(name, lambda start, end: ())

    def losses(self) -> list[Loss]:
        return list(self._losses.noted)

    def forget_losses(self) -> None:
        self._losses.forget()

    def approximate_size(self) -> int:
        """Table files, and the memory tables for what the log holds of them."""
        self._check_open()
        names = ("rocksdb.total-sst-files-size", "rocksdb.cur-size-all-mem-tables")
        try:
            return sum(f.property_int_value(n) or 0 for f in self._families.values() for n in names)
        except Exception as error:
            raise self._failure(error) from error

    def close(self) -> None:
        """Sync, write the memory tables (reopening then replays no log), stop background work, let go.

        A failure is raised unless the store had failed, and said so, before.
        """
        if self._database is None:
            return
        database, families = self._database, list(self._families.values())
        self._database, self._families, self._spaces = None, {}, {}
        for snapshot in list(self._snapshots):
            snapshot.release()
        try:
            for family in families:
                family.close()
        except Exception as error:
            if not self._broken:
                raise translated(error, self._path) from error
        finally:
            database.cancel_all_background(True)
            with self._compacting:  # One that runs has been told to stop; it keeps the database open.
                pass
            self.witness()

    def witness(self) -> None:
        if self._witness is not None:
            self._witness.note()

    def _check_open(self) -> None:
        if self._database is None:
            raise StorageError(f"the store in {self._path} is closed; open it again")

    def _failure(self, error: Exception) -> Exception:
        """What to raise for an error of the driver, or of a look-up in what `close` has emptied."""
        self._check_open()
        if isinstance(error, KeyError):
            if "bytes" in str(error):
                return TypeError("keys, bounds and values are bytes")
            return StorageError(f"not a space of the store in {self._path}; take one from space(name)")
        failure = translated(error, self._path)
        if isinstance(failure, StorageCorrupt):
            self._note_damage(str(error))
        return failure

    def _note_damage(self, text: str) -> None:
        if not self._damaged:
            self._leave_tables_alone()
        for name in named_tables(text) or ["?"]:
            self._damaged.setdefault(name, text)

    def _leave_tables_alone(self, alone: bool = True) -> None:
        """A compaction would meet the damage again and again."""
        with contextlib.suppress(Exception):
            for family in self._families.values():
                family.set_options({"disable_auto_compactions": str(alone).lower()})

    def damage(self) -> list[str]:
        """Also what a compaction met: of that, the driver has but a number."""
        self._check_open()
        failures = self._database.property_int_value("rocksdb.background-errors") or 0
        if failures > self._known_failures:
            self._known_failures = failures
            self._note_damage("a compaction failed: see the file LOG")
        return [*self._damaged.values(), *(loss.what for loss in self._losses.noted)]

    def _write_failure(self, error: Exception) -> Exception:
        failure = self._failure(error)
        self._broken = self._broken or isinstance(failure, StorageError)
        return failure
