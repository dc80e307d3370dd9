"""Where an archive keeps things, and the tables that it has: names of folders and files, columns, schemas."""

from __future__ import annotations

import hashlib
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal, get_args

from penstock.tables import TableName, arrow_schema

if TYPE_CHECKING:
    import pyarrow

#: `base` is how messages stood when an archive began whose journal did not reach back to the first event.
ArchiveTable = Literal["events", "bodies", "base", "entries", "queues"]
ARCHIVE_TABLES: tuple[ArchiveTable, ...] = get_args(ArchiveTable)

#: The table of a store that each is taken from, and the column that its day goes by.
SOURCES: dict[ArchiveTable, tuple[TableName, str]] = {
    "events": ("events", "at_ns"),
    "bodies": ("bodies", "enqueued_at_ns"),
    "base": ("messages", "enqueued_at_ns"),
    "entries": ("entries", "at_ns"),
    "queues": ("queues", ""),
}

#: Columns that an archive adds. `generation`: a queue that was deleted and made anew has the next one.
#: `read_seq`: the last event of the queue when the row was read. A body is as it was then.
ADDED = ("generation", "read_seq", "read_at_ns")

#: The world that says what was done to queues.
SYSTEM_WORLD = "_penstock"

LOG_FOLDER = "_log"
DATA_FOLDERS = ARCHIVE_TABLES

#: A folder's name has 255 bytes at most on most systems, and the tools of some count what they put in front.
LONGEST_NAME = 180
_PLAIN = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")
_NS_PER_DAY = 86_400 * 10**9
#: Names that files of an archive have, and commits on their way: nothing else in its folder is ever deleted.
_OWN = re.compile(
    rf"(?:{'|'.join(ARCHIVE_TABLES)})/(?:(?:queue|world)=[^/]+/)?day=[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}/"
    rf"[0-9a-f]{{16}}-(?:[0-9]{{4,}}|merged)\.parquet|"
    rf"{LOG_FOLDER}/\.(?:ID|MOMENTS|[0-9]{{20}}\.(?:json|state))\.[0-9a-f]{{32}}"
)


def name_column(table: ArchiveTable) -> str:
    return {"entries": "world", "queues": "name"}.get(table, "queue")


def folder_name(name: str) -> str:
    """A queue's or world's name as part of a folder's: letters, digits, _ and -, all else as %XX.

    One that gets too long is cut, and told from others by a hash. Nothing is ever decoded from it: rows have
    the name itself, and so has the log.
    """
    plain = "".join(chr(byte) if byte in _PLAIN else f"%{byte:02X}" for byte in name.encode())
    if len(plain) <= LONGEST_NAME:
        return plain
    digest = hashlib.blake2b(name.encode(), digest_size=16).hexdigest()
    return f"{plain[: LONGEST_NAME - 33]}~{digest}"


def day_of(at_ns: int) -> str:
    """The day of a time, in UTC."""
    return datetime.fromtimestamp(at_ns // _NS_PER_DAY * 86_400, UTC).strftime("%Y-%m-%d")


def day_number(at_ns: int) -> int:
    return at_ns // _NS_PER_DAY


def part_folder(table: ArchiveTable, name: str, day: str) -> str:
    """Of rows of one queue or world and one day, in the archive's folder."""
    if table == "queues":
        return f"{table}/day={day}"
    key = "world" if table == "entries" else "queue"
    return f"{table}/{key}={folder_name(name)}/day={day}"


def is_own(path: str) -> bool:
    """Whether a file, by its path in the archive's folder, is one that a writer of archives has made."""
    return _OWN.fullmatch(path) is not None


def archive_arrow_schema(table: ArchiveTable) -> pyarrow.Schema:
    """The schema of the files."""
    import pyarrow as pa

    schema = arrow_schema(SOURCES[table][0])
    schema = schema.append(pa.field("generation", pa.int32(), nullable=False))
    schema = schema.append(pa.field("read_seq", pa.int64(), nullable=False))
    made: pyarrow.Schema = schema.append(pa.field("read_at_ns", pa.int64(), nullable=False))
    return made
