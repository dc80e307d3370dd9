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

from penstock.kv.damage import second_name
from penstock.kv.wal import SET_ASIDE

_SCRATCH = "scratch"


@contextmanager
def tables_alone(
    driver: Any, folder: str, current: Callable[[], Iterable[str]]
) -> Iterator[tuple[str, list[str]]]:
    """A folder with a store of the tables that `current` names, and those that it is without.

    It is gone afterwards.
    """
    scratch = Path(folder, _SCRATCH)
    try:
        _link_all(folder, scratch, current)
        driver.Rdict.repair(str(scratch), driver.Options(raw_mode=True))
        yield str(scratch), [path.name for path in (scratch / SET_ASIDE).glob("*.sst")]
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


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
