"""RocksDB's table files, where they are damaged: found before they are read, set aside, read around.

A table that cannot be opened makes every scan of its space fail. One with a damaged block fails where a scan
comes near that block; point look-ups still find what other tables have, for each has a filter of its own.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from penstock.errors import StorageCorrupt, as_answer
from penstock.kv.base import Reader, Row
from penstock.kv.wal import SET_ASIDE

log = logging.getLogger("penstock")

#: The last bytes of a block-based table.
_MAGIC = bytes.fromhex("f7cff485b741e288")
_BROKEN = "broken-tables"
_TABLE = re.compile(r"(\d+\.sst)")
#: Bytes of a key that a search for the end of an unreadable part goes by.
_SEARCHED_BYTES = 24


def named_tables(text: str) -> list[str]:
    """The table files that an error names."""
    return list(dict.fromkeys(_TABLE.findall(text)))


def refused_tables(text: str) -> list[str]:
    """Those that an opening fails for, being damaged or gone: not for want of memory, files or permission."""
    return named_tables(text) if "Corruption" in text or "No such file" in text else []


def broken_tables(folder: str, live: Iterable[dict[str, Any]]) -> list[str]:
    """Tables that cannot be opened: not there, of another size than they should be, or without an end."""
    return [name for one in live if not _whole(Path(folder, name := one["name"].lstrip("/")), one["size"])]


def _whole(path: Path, size_bytes: int) -> bool:
    try:
        with path.open("rb") as file:
            file.seek(-len(_MAGIC), os.SEEK_END)
            return file.read() == _MAGIC and path.stat().st_size == size_bytes
    except (FileNotFoundError, IsADirectoryError):
        return False
    except OSError as error:
        if error.errno == errno.EINVAL:  # Too short to have an end.
            return False
        raise  # No room for another open file, say: that is no damage.


def set_aside(folder: str, names: Iterable[str]) -> None:
    """Move tables out of a closed store, and keep a copy of what said that they belong to it."""
    Path(folder, _BROKEN).unlink(missing_ok=True)
    lost = Path(folder, SET_ASIDE)
    lost.mkdir(exist_ok=True)
    for name in names:
        path = Path(folder, name)
        if path.exists():
            path.replace(lost / name)
        log.error("table %s of the store in %s is damaged: set aside in %s", name, folder, lost)
    for path in (*Path(folder).glob("MANIFEST-*"), Path(folder, "CURRENT")):
        if path.is_file():
            shutil.copy2(path, lost / path.name)


def note_broken(folder: str, names: Iterable[str]) -> None:
    """Write down that tables cannot be opened, for the next opening: only a closed store can do without."""
    path = Path(folder, _BROKEN)
    known = path.read_text().split() if path.exists() else []
    path.write_text("\n".join(sorted({*known, *names})))


def noted_broken(folder: str) -> list[str]:
    """What was written down, of tables that are still there."""
    path = Path(folder, _BROKEN)
    names = path.read_text().split() if path.exists() else []
    return [name for name in names if Path(folder, name).exists()]


def keep_tables(folder: str, names: Iterable[str]) -> None:
    """A second name for tables of an open store that is about to give them up."""
    lost = Path(folder, SET_ASIDE)
    lost.mkdir(exist_ok=True)
    for name in names:
        path = Path(folder, name)
        if path.is_file() and not (lost / name).exists():
            os.link(path, lost / name)
            log.error("table %s of the store in %s is damaged: kept in %s", name, folder, lost)


def pending_table(folder: str, space: str) -> Path:
    """Where a space that is written anew waits to take its place."""
    return Path(folder, f"{space}.pending")


def write_table(driver: Any, path: Path, rows: Iterable[Row]) -> None:
    """A table of these rows, whole or not at all; an empty file for none."""
    unfinished = path.with_suffix(".unfinished")
    writer = driver.SstFileWriter(options=driver.Options(raw_mode=True))
    writer.open(str(unfinished))
    empty = True
    for key, value in rows:
        writer[key] = value
        empty = False
    if empty:
        unfinished.write_bytes(b"")
    else:
        writer.finish()
    with unfinished.open("rb+") as file:
        os.fsync(file.fileno())
    unfinished.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


class Hole(NamedTuple):
    """A part of a space that cannot be read; `end` is where rows are readable again, if anywhere."""

    space: str
    start: bytes
    end: bytes | None
    error: StorageCorrupt


def readable_rows(
    reader: Reader,
    space: Any,
    name: str,
    lower: bytes,
    upper: bytes | None,
    on_hole: Callable[[Hole], Iterable[Row] | None],
) -> Iterator[Row]:
    """The rows of a range, past what cannot be read; `on_hole` may give rows for a hole."""
    while True:
        try:
            for row in reader.scan(space, lower, upper):
                yield row
                lower = row[0] + b"\0"
            return
        except StorageCorrupt as error:
            end = _behind(reader, space, lower, upper)
            # Without its traceback, which knows the handles that keep a database open.
            hole = Hole(name, lower, end, as_answer(error))
        yield from on_hole(hole) or ()
        if end is None:
            return
        lower = end


def _behind(reader: Reader, space: Any, lower: bytes, upper: bytes | None) -> bytes | None:
    """The first place after `lower` from which rows can be read; None if there is none."""

    def reads(at: bytes) -> bool:
        try:
            return bool(list(reader.scan(space, at, upper, limit=1)))
        except StorageCorrupt:
            return False

    start = int.from_bytes(lower[:_SEARCHED_BYTES].ljust(_SEARCHED_BYTES, b"\0"), "big")
    last = 1 << 8 * _SEARCHED_BYTES
    bad, step = 0, 1
    while True:
        if start + step >= last or (upper is not None and _key(start + step) >= upper):
            return None
        if reads(_key(start + step)):
            break
        bad, step = step, step * 2
    good = step
    while good - bad > 1:
        middle = (good + bad) // 2
        if reads(_key(start + middle)):
            good = middle
        else:
            bad = middle
    return _key(start + good)


def _key(number: int) -> bytes:
    return number.to_bytes(_SEARCHED_BYTES, "big")
