"""Some tables of a store as a store of their own, for the time that it takes to read them.

A table that cannot be opened stops every scan of its space, and RocksDB has no way to do without it but to
make a list of tables anew. Done to the store itself, that would give up logs, and tables, that it does not
know what to do with: so it is done to second names of the sound tables, elsewhere.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from penstock.kv.damage import refused_tables, second_name, write_table
from penstock.kv.wal import SET_ASIDE

_SCRATCH = "scratch"
#: In the properties of a table that was made beside the store and taken in, near its end.
_MADE_BESIDE = b"external_sst_file"
_PROPERTIES_BYTES = 1 << 16


@contextmanager
def tables_alone(
    driver: Any, folder: str, space: str, current: Callable[[], Iterable[str]]
) -> Iterator[tuple[str, list[str]]]:
    """A folder with a store of the tables of a space that `current` names, and those that it is without.

    It is gone afterwards.
    """
    scratch = Path(folder, _SCRATCH)
    try:
        _link_all(folder, scratch, current)
        beside = sorted(path for path in scratch.glob("*.sst") if _made_beside(path))
        apart = scratch / "beside"
        apart.mkdir()
        beside = [path.rename(apart / path.name) for path in beside]
        driver.Rdict.repair(str(scratch), driver.Options(raw_mode=True))
        refused = [path.name for path in (scratch / SET_ASIDE).glob("*.sst")]
        if beside:
            refused += _put_behind(driver, scratch, space, beside)
        yield str(scratch), refused
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _made_beside(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _PROPERTIES_BYTES))
        return _MADE_BESIDE in file.read()


def _put_behind(driver: Any, scratch: Path, space: str, beside: list[Path]) -> list[str]:
    """Add tables that do not know their space, as what the others stand before; those that it is without.

    Whatever the others have of a row, its deletion too, is later. As one table, for only one fits there.
    """
    refused: list[str] = []
    merged = scratch / "merged.table"
    together = _opened(driver, scratch / "together", space, behind=False)
    for path in beside:  # In the order in which they came.
        try:
            together.get_column_family(space).ingest_external_file([str(path)])
        except Exception as error:
            if not refused_tables(str(error)) and "Corruption" not in str(error):
                raise
            refused.append(path.name)
    write_table(driver, merged, together.get_column_family(space).items())
    together.close()
    if merged.stat().st_size:
        database = _opened(driver, scratch, space, behind=True)
        options = driver.IngestExternalFileOptions()
        options.set_ingest_behind(True)
        database.get_column_family(space).ingest_external_file([str(merged)], options)
        database.close()
    return refused


def _opened(driver: Any, path: Path, space: str, *, behind: bool) -> Any:
    def options() -> Any:
        made = driver.Options(raw_mode=True)
        made.set_allow_ingest_behind(behind)
        return made

    database = options()
    database.create_if_missing(True)
    database.create_missing_column_families(True)
    return driver.Rdict(str(path), database, {space: options()})


def _link_all(folder: str, scratch: Path, current: Callable[[], Iterable[str]]) -> None:
    """Again, if a compaction that was under way has replaced some of them meanwhile."""
    linked: set[str] | None = None
    while (names := set(current())) != linked:
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir()
        for name in names:
            with suppress(FileNotFoundError):
                second_name(Path(folder, name), scratch / name)
        linked = names
