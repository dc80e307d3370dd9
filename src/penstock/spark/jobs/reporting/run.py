"""A report from where its tables come from to the files that it is written to."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec
from pyspark.sql import SparkSession

from penstock.clock import Clock, SystemClock
from penstock.errors import StorageError, StorageFull
from penstock.spark.jobs import inputs
from penstock.spark.jobs.inputs import Columns
from penstock.spark.jobs.report import Asked, Tables, report
from penstock.spark.jobs.reporting.facts import Facts
from penstock.spark.jobs.reporting.moves import BODY_COLUMNS, EVENT_COLUMNS, MESSAGE_COLUMNS
from penstock.spark.jobs.reporting.page import page
from penstock.spark.jobs.watch import Progress
from penstock.spark.store import Store

_QUEUE_COLUMNS = ("name", "delayed", "ready", "leased", "first_seq", "last_seq")
_OF_ARCHIVE: Columns = {"events": EVENT_COLUMNS, "bodies": BODY_COLUMNS}
_OF_STORE: Columns = {**_OF_ARCHIVE, "queues": _QUEUE_COLUMNS, "messages": MESSAGE_COLUMNS}


class Wanted(NamedTuple):
    """What to report on, a store or else an archive, and from when to when."""

    store: Store | None = None
    archive: str | None = None
    queues: Sequence[str] | None = None
    since_ns: int | None = None
    until_ns: int | None = None


def run(
    spark: SparkSession, wanted: Wanted, progress: Progress = lambda *_: None, clock: Clock | None = None
) -> Facts:
    now_ns = (clock or SystemClock()).now_ns()
    asked = Asked(wanted.archive or "", now_ns, None, wanted.since_ns, wanted.until_ns)
    if wanted.store is None:
        found = inputs.of_archive(spark, wanted.archive or "", _OF_ARCHIVE, wanted.queues)
        return report(Tables(**found.tables), asked, progress)
    with inputs.of_store(spark, wanted.store, _OF_STORE, wanted.queues) as found:
        asked = asked._replace(source=wanted.store.url, seen_at_ns=found.at_ns)
        return report(Tables(**found.tables), asked, progress)


def check_place(file: Path) -> None:
    """Refuse a place where nothing can be written, before there is something to write."""
    folder = next(one for one in file.absolute().parents if one.exists())
    if file.is_dir():
        raise StorageError(f"{file} cannot be written: it is a folder; name another place")
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise StorageError(f"{file} cannot be written: {folder} takes no files; name another place")


def write(facts: Facts, file: Path) -> Path:
    """The page, and beside it the same as JSON, whose path is given back; each as a whole or not at all."""
    tables = file.with_suffix(".json")
    _replace(tables, msgspec.json.format(msgspec.json.encode(facts), indent=1))
    _replace(file, page(facts).encode(errors="backslashreplace"))
    return tables


def _replace(file: Path, content: bytes) -> None:
    unfinished = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        unfinished.write_bytes(content)
        unfinished.replace(file)
    except OSError as error:
        with suppress(OSError):  # The folder may be none.
            unfinished.unlink()
        kind = StorageFull if error.errno == errno.ENOSPC else StorageError
        raise kind(f"{file} cannot be written: {error.strerror}; name another place") from error
