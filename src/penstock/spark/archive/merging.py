"""Small files of an archive into larger ones, and the deletion of those that nobody needs any more."""

from __future__ import annotations

import os
import uuid
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.clock import Clock, to_ns
from penstock.errors import StorageCorrupt
from penstock.spark.archive.files import GROUP_BYTES, GROUP_ROWS, OpenFile, damaged
from penstock.spark.archive.layout import (
    DATA_FOLDERS,
    LOG_FOLDER,
    archive_arrow_schema,
    is_own,
    part_folder,
)
from penstock.spark.archive.log import ArchiveFile, ArchiveLog, ArchiveState, Commit

if TYPE_CHECKING:
    import pyarrow

ORPHANS_S = 3600.0


def groups(state: ArchiveState, target_bytes: int) -> list[list[ArchiveFile]]:
    """Files to be merged: of one queue and day, in the order of their rows, about `target_bytes` together."""
    by_part: dict[tuple[str, str, int, str], list[ArchiveFile]] = defaultdict(list)
    for file in state.files.values():
        if file.size_bytes < target_bytes // 2:
            by_part[file.table, file.name, file.generation, file.day].append(file)
    found = []
    for _, files in sorted(by_part.items()):
        group: list[ArchiveFile] = []
        for file in sorted(files, key=lambda one: (one.first_seq, one.path)):
            if group and sum(one.size_bytes for one in group) + file.size_bytes > target_bytes:
                found.append(group)
                group = []
            group.append(file)
        found.append(group)
    return [group for group in found if len(group) > 1]


def merged(root: str, group: list[ArchiveFile]) -> ArchiveFile:
    """One file with the rows of all, on disk. What it is made of stays as it is."""
    first = group[0]
    path = f"{part_folder(first.table, first.name, first.day)}/{uuid.uuid4().hex[:16]}-merged.parquet"
    file = OpenFile(Path(root), path, archive_arrow_schema(first.table))
    try:
        for one in group:
            for batch in _batches(Path(root), one):
                file.write(batch)
        size_bytes = file.close()
    except BaseException:
        file.discard()
        raise
    if file.rows != sum(one.rows for one in group):
        raise StorageCorrupt(f"{path} has {file.rows} rows; the files that it is made of have others")
    extent = file.extent()
    if first.table == "base":
        extent["first_seq"], extent["last_seq"] = first.first_seq, first.last_seq
    return ArchiveFile(
        table=first.table,
        name=first.name,
        generation=first.generation,
        day=first.day,
        path=path,
        rows=file.rows,
        size_bytes=size_bytes,
        **extent,
    )


def _batches(root: Path, file: ArchiveFile) -> Iterator[pyarrow.RecordBatch]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(root / file.path, page_checksum_verification=True) as opened:
            rows = 0
            per_batch = max(1, min(GROUP_ROWS, file.rows * GROUP_BYTES // max(1, _size(opened))))
            for batch in opened.iter_batches(batch_size=per_batch):
                rows += batch.num_rows
                yield batch
    except (OSError, pa.ArrowException) as error:
        raise damaged(root / file.path, error) from error
    if rows != file.rows:
        raise StorageCorrupt(f"{root / file.path} has {rows} rows; {file.rows} were written")


def _size(opened: pyarrow.parquet.ParquetFile) -> int:
    metadata = opened.metadata
    return sum(int(metadata.row_group(at).total_byte_size) for at in range(metadata.num_row_groups))


def commit_merged(log: ArchiveLog, merges: list[tuple[list[ArchiveFile], ArchiveFile]]) -> None:
    """The ones for the others, in one step. Others may archive meanwhile; another compaction may not."""
    paths = [file.path for group, _ in merges for file in group]
    log.commit(
        Commit(what="compact", added=[into for _, into in merges], removed=paths),
        lambda state: all(path in state.files for path in paths),
    )


def clean(log: ArchiveLog, clock: Clock, keep_s: float) -> int:
    """Delete files that were merged away, or that no commit names, longer ago than `keep_s`; how many.

    Whatever that is, those that no commit names have an hour: somebody may be about to name them.
    """
    before_ns = clock.now_ns() - to_ns(keep_s)
    left_ns = min(before_ns, clock.now_ns() - to_ns(ORPHANS_S))
    left = [path for path in _own_files(log.root) if _modified_ns(log.root / path) <= left_ns]
    # Only now: what was committed since the files were looked for is not left over.
    state = log.read()
    old = [path for path, at_ns in state.removed.items() if at_ns <= before_ns]
    orphans = [
        path
        for path in left
        if path not in state.files
        and path not in state.removed
        and _modified_ns(log.root / path) <= left_ns  # Else somebody is about to commit it.
    ]
    for path in [*old, *orphans]:
        (log.root / path).unlink(missing_ok=True)
    if old:
        log.commit(Commit(what="clean", forgotten=old), lambda _: True)
    log.tidy()
    return len(old) + len(orphans)


def _own_files(root: Path) -> Iterator[str]:
    """What writers of archives have made, by path: data, and commits that came to nothing."""
    for top in (*DATA_FOLDERS, LOG_FOLDER):
        for folder, _, names in os.walk(root / top):
            for name in names:
                path = os.path.relpath(os.path.join(folder, name), root)
                if is_own(path):
                    yield path


def _modified_ns(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return 0
