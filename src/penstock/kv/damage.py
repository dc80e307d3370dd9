"""RocksDB's table files, where they are damaged: found before they are read, kept, read around.

A table that cannot be opened makes every scan of its space fail. One with a damaged block fails where a scan
comes near that block; point look-ups still find what other tables have, for each has a filter of its own.
"""

from __future__ import annotations

import contextlib
import errno
import filecmp
import logging
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from penstock.errors import StorageCorrupt, as_answer
from penstock.kv.base import Loss, Reader, Row
from penstock.kv.wal import SET_ASIDE

log = logging.getLogger("penstock")

#: The last bytes of a block-based table.
_MAGIC = bytes.fromhex("f7cff485b741e288")
#: A table in RocksDB's own list of them, in which keys are in hexadecimal digits.
_LISTED = re.compile(r"^ (\d+):", re.MULTILINE)
_TABLE = re.compile(r"(\d+\.sst)")
#: How RocksDB says that a table is damaged, gone, or a folder.
_REFUSALS = ("Corruption", "No such file", "Is a directory")
#: Bytes of a key that a search for the end of an unreadable part goes by.
_SEARCHED_BYTES = 24


def named_tables(text: str) -> list[str]:
    """The table files that an error names."""
    return list(dict.fromkeys(_TABLE.findall(text)))


def refused_tables(text: str) -> list[str]:
    """Those that an opening fails for, being damaged or gone: not for want of memory, files or permission."""
    return named_tables(text) if any(word in text for word in _REFUSALS) else []


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


def tables_of(family: Any) -> set[str]:
    """The tables of one column family of an open database."""
    text: str = family.property_value("rocksdb.sstables") or ""
    return {f"{int(number):06}.sst" for number in _LISTED.findall(text)}


def broken_of(folder: str, database: Any, family: Any) -> set[str]:
    """Tables of a column family that cannot be opened; behind one of them others may hide."""
    live = {file["name"].lstrip("/"): file for file in database.live_files()}
    own = [live[table] for table in tables_of(family) if table in live]
    refused = {file["name"].lstrip("/") for file in own if _cannot_open(file, family)}
    return refused.union(broken_tables(folder, own))


def _cannot_open(file: dict[str, Any], family: Any) -> bool:
    """Whether nothing in it can be read.

    A sound filter tells that a key is not there, but for one in a hundred that is not. Where a table has
    none, the block is read that the key would be in: one of many, all over the table, is sound.
    """
    for key in _keys_over(file["start_key"], file["end_key"]):
        try:
            family.get(key)
            return False
        except Exception as error:  # noqa: BLE001 (any may be; those of other tables say nothing of this one)
            if file["name"].lstrip("/") not in str(error):
                return False
    return True


def _keys_over(first: bytes, last: bytes) -> Iterator[bytes]:
    """Such as no row has, but between the first and the last."""
    yield from (first + bytes((n,)) * 9 for n in range(4))
    width = max(len(first), len(last)) + 1
    low, high = (int.from_bytes(key.ljust(width, b"\0")) for key in (first, last))
    for n in range(1, 33):
        yield (low + (high - low) * n // 33).to_bytes(width) + bytes(9)


def keep_tables(folder: str, names: Iterable[str]) -> None:
    """A second name, in `lost`, for tables that an open store is about to give up."""
    lost = Path(folder, SET_ASIDE)
    lost.mkdir(exist_ok=True)
    for name in names:
        path = Path(folder, name)
        if path.is_file():
            _link(path, lost)
            log.error("table %s of the store in %s is kept in %s", name, folder, lost)


def _link(path: Path, lost: Path) -> None:
    """Under a name of its own, should another table be kept by this one: numbers may come again."""
    for name in (path.name, *(f"{path.name}.{n}" for n in range(2, 1000))):
        kept = lost / name
        if not kept.exists():
            second_name(path, kept)
            return
        if kept.samefile(path) or filecmp.cmp(kept, path, shallow=False):
            return


def second_name(path: Path, other: Path) -> None:
    """Or a copy, on a file system without such names."""
    try:
        os.link(path, other)
    except (FileNotFoundError, FileExistsError):
        raise
    except OSError:
        shutil.copy2(path, other)


def pending_table(folder: str, space: str) -> Path:
    """Where a space that is written anew waits to take its place."""
    return Path(folder, f"{space}.pending")


def write_table(driver: Any, path: Path, rows: Iterable[Row], options: Any = None) -> None:
    """A table of these rows; an empty file for none."""
    writer = driver.SstFileWriter(options=options or driver.Options(raw_mode=True))
    writer.open(str(path))
    empty = True
    for key, value in rows:
        writer[key] = value
        empty = False
    if empty:
        path.write_bytes(b"")
    else:
        writer.finish()


class Hole(NamedTuple):
    """A part of a space that cannot be read; `end` is where rows are readable again, if anywhere."""

    space: str
    start: bytes
    end: bytes | None
    error: StorageCorrupt

    @property
    def what(self) -> str:
        start, end = self.start.hex() or "its start", "its end" if self.end is None else self.end.hex()
        return f"rows of {self.space} from {start} to {end} cannot be read: {self.error}"


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


def rows_of(
    reader: Any, name: str, wanted: Callable[[bytes, bytes | None], Iterable[bytes]], lost: list[Loss]
) -> Iterator[Row]:
    """What can be read of a space of a store; parts that cannot go to `lost`, but for what is `wanted`."""
    space = reader.space(name)

    def looked_up(hole: Hole) -> Iterator[Row]:
        lost.append(Loss(name, hole.what))
        for key in wanted(hole.start, hole.end):
            with contextlib.suppress(StorageCorrupt):
                value = reader.get(key, space)
                if value is not None:
                    yield key, value

    return readable_rows(reader, space, name, b"", None, looked_up)


def _behind(reader: Reader, space: Any, lower: bytes, upper: bytes | None) -> bytes | None:
    """The first place after `lower` from which nothing keeps one from reading; None if there is none."""

    def reads(at: int) -> bool:
        try:
            list(reader.scan(space, _key(at), upper, limit=1))
        except StorageCorrupt:
            return False
        return True

    start, end = _number(lower), 1 << 8 * _SEARCHED_BYTES if upper is None else _number(upper)
    bad, good = start, start + 1
    while good < end and not reads(good):
        bad, good = good, start + 2 * (good - start)
    good = min(good, end)
    while good - bad > 1:
        middle = (good + bad) // 2
        if reads(middle):
            good = middle
        else:
            bad = middle
    return _key(good) if good < end else None


def _number(key: bytes) -> int:
    return int.from_bytes(key[:_SEARCHED_BYTES].ljust(_SEARCHED_BYTES, b"\0"), "big")


def _key(number: int) -> bytes:
    return number.to_bytes(_SEARCHED_BYTES, "big")
