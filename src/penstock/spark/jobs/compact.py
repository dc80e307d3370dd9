"""`penstock pipeline compact`: small files of an archive become large ones, while others read and write."""

from __future__ import annotations

import msgspec
from pyspark.sql import SparkSession

from penstock.clock import Clock, SystemClock
from penstock.errors import InvalidConfig
from penstock.spark.archive.log import ArchiveLog
from penstock.spark.archive.merging import clean, commit_merged, groups, merged
from penstock.spark.jobs.watch import Progress

TARGET_BYTES = 128 * 1024 * 1024
#: Files that are not part of the archive any more stay so long: whoever began to read them can go on.
KEEP_S = 86_400.0


class Compacted(msgspec.Struct, kw_only=True):
    """What a run has done; `deleted` files were merged away, or left by killed writers, long enough ago."""

    merged: int = 0
    into: int = 0
    size_bytes: int = 0
    deleted: int = 0


def compact(
    spark: SparkSession,
    folder: str,
    *,
    target_bytes: int = TARGET_BYTES,
    keep_s: float = KEEP_S,
    told: Progress | None = None,
    clock: Clock | None = None,
) -> Compacted:
    """A commit for every few merges: killed anywhere, what was committed stays, and the rest is as before."""
    log = ArchiveLog(folder)
    state = log.read()
    if not state.number:
        raise InvalidConfig(
            f"there is no archive in {log.root}; make one: penstock pipeline archive {log.root}"
        )
    work, done = groups(state, target_bytes), Compacted()
    total, root = sum(map(len, work)), str(log.root)
    wave = 2 * spark.sparkContext.defaultParallelism
    for at in range(0, len(work), wave):
        some = work[at : at + wave]
        made = (
            spark.sparkContext.parallelize(some, len(some)).map(lambda group: merged(root, group)).collect()
        )
        commit_merged(log, list(zip(some, made, strict=True)))
        done.merged += sum(map(len, some))
        done.into += len(made)
        done.size_bytes += sum(file.size_bytes for file in made)
        if told is not None:
            told("merging files", done.merged, total)
    done.deleted = clean(log, clock or SystemClock(), keep_s)
    return done
