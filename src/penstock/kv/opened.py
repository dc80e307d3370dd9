"""A database on its way to being open: its log is replayed, whatever has become of its tables."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.kv.damage import refused_tables
from penstock.kv.folder import holds_store
from penstock.kv.tuning import Profile, database_options, family_options
from penstock.kv.wal import cut_logs

if TYPE_CHECKING:
    from types import ModuleType


#: In what RocksDB says if an old report that it was about to remove is gone: somebody else removed it, a
#: database of this process that is just closing, say. It is only to be opened again.
_OLD_LOG = "/LOG.old."
ATTEMPTS = 3


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

    def writable(self, spaces: Collection[str]) -> Any:
        """The database, with everything that the log has; tables that cannot be opened are still listed."""
        logs = Path(self._folder).glob("*.log")
        if holds_store(self._folder) and any(path.stat().st_size for path in logs):
            self._replay(spaces)
        return self._open(spaces, self._driver.AccessType.read_write())

    def _replay(self, spaces: Collection[str]) -> None:
        """Write what a crash left in the log to tables, as far as the log is sound."""
        try:
            self._flush(spaces, paranoid=True)
        except Exception as error:
            if not refused_tables(str(error)):
                raise
            # The checks are not for tables alone. Without them, RocksDB would skip damaged records of the
            # log and go on behind: so there must be none.
            cut_logs(self._folder)
            self._flush(spaces, paranoid=False)

    def _flush(self, spaces: Collection[str], *, paranoid: bool) -> None:
        # A compaction that met a damaged block would fail the replay of a sound log.
        database = self._open(spaces, self._driver.AccessType.read_write(), paranoid=paranoid, compact=False)
        for name in self._driver.Rdict.list_cf(self._folder, self._options()):
            database.get_column_family(name).flush()
        database.close()

    def _open(
        self, spaces: Collection[str], access: Any, *, paranoid: bool = False, compact: bool = True
    ) -> Any:
        options, driver = self._options(paranoid=paranoid), self._driver
        existing = driver.Rdict.list_cf(self._folder, options) if holds_store(self._folder) else []
        families = {name: self.family(name) for name in {*existing, *spaces}}
        if not compact:
            for family in families.values():
                family.set_disable_auto_compactions(True)
        for left in reversed(range(ATTEMPTS)):
            try:
                return driver.Rdict(self._folder, options, families, access)
            except Exception as error:
                if not left or _OLD_LOG not in str(error):
                    raise
        raise AssertionError
