"""A database on its way to being open: its log replayed, the tables that cannot be opened set aside."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.errors import StorageCorrupt
from penstock.kv.damage import broken_tables, noted_broken, refused_tables, set_aside
from penstock.kv.folder import holds_store
from penstock.kv.tuning import Profile, database_options, family_options
from penstock.kv.wal import SET_ASIDE

if TYPE_CHECKING:
    from types import ModuleType


class Opening:
    """How the database of one folder is opened."""

    def __init__(
        self,
        driver: ModuleType,
        folder: str,
        profile: Profile,
        cache: Any,
        tombstone_spaces: Collection[str] | None,
    ) -> None:
        self._driver = driver
        self._folder = folder
        self._profile = profile
        self._cache = cache
        self._tombstone_spaces = tombstone_spaces

    def family(self, name: str) -> Any:
        """The options of one column family."""
        collect = self._tombstone_spaces is None or name in self._tombstone_spaces
        return family_options(self._driver, self._profile, self._cache, collect_tombstones=collect)

    def _options(self, *, paranoid: bool = False) -> Any:
        return database_options(self._driver, self._profile, self._cache, paranoid=paranoid)

    def read_only(self) -> Any:
        return self._open((), self._driver.AccessType.read_only(False))

    def writable(self, spaces: Collection[str]) -> tuple[Any, dict[str, str]]:
        """The database, and the tables that it is without, each with why."""
        lost: dict[str, str] = {}
        while True:
            database, broken = self._try(spaces)
            if not broken:
                return database, lost
            if not set(broken) - lost.keys():
                raise StorageCorrupt(f"{', '.join(broken)} cannot be opened, nor set aside")
            database = None
            set_aside(self._folder, broken)
            self._driver.Rdict.repair(self._folder, self._options())
            lost |= {name: f"{name} could not be opened and was set aside in {SET_ASIDE}" for name in broken}

    def _try(self, spaces: Collection[str]) -> tuple[Any, list[str]]:
        """The database, or the tables that cannot be opened."""
        if noted := noted_broken(self._folder):
            return None, noted
        try:
            self._replay(spaces)
            database = self._open(spaces, self._driver.AccessType.read_write())
            broken = broken_tables(self._folder, database.live_files())
            if broken:
                # A compaction that began with the opening deletes tables: those are not live any more.
                live = {one["name"].lstrip("/") for one in database.live_files()}
                broken = [name for name in broken if name in live]
        except Exception as error:
            if broken := refused_tables(str(error)):
                return None, broken
            raise
        if broken:
            database.close()
        return database, broken

    def _replay(self, spaces: Collection[str]) -> None:
        """Write what a crash left in the log to tables, as far as the log is sound."""
        logs = Path(self._folder).glob("*.log")
        if not holds_store(self._folder) or not any(path.stat().st_size for path in logs):
            return
        database = self._open(spaces, self._driver.AccessType.read_write(), paranoid=True)
        for name in self._driver.Rdict.list_cf(self._folder, self._options()):
            database.get_column_family(name).flush()
        database.close()

    def _open(self, spaces: Collection[str], access: Any, *, paranoid: bool = False) -> Any:
        options, driver = self._options(paranoid=paranoid), self._driver
        existing = driver.Rdict.list_cf(self._folder, options) if holds_store(self._folder) else []
        families = {name: self.family(name) for name in {*existing, *spaces}}
        if paranoid:
            # A compaction that met a damaged block would fail the replay of a sound log.
            for family in families.values():
                family.set_disable_auto_compactions(True)
        return driver.Rdict(self._folder, options, families, access)
