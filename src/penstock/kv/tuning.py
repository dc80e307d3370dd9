"""How RocksDB is tuned: its two modes, and the options that a store is opened with."""

from __future__ import annotations

import os
import resource
from types import ModuleType
from typing import Any, Literal, NamedTuple

MIB = 1024 * 1024
WAL_LIMIT_BYTES = 8 * MIB
"""Bounds what a reopening after a crash replays: 0.3 s measured with 16 MiB, against 0.5-1.3 s with 64 MiB.

And the tables in memory, in which every insert searches its place: smaller ones make many fairness keys
cheaper; 4 MiB gained nothing more.
"""
CACHE_CAPACITY_BYTES = 256 * MIB
MIN_OPEN_FILES = 64

Mode = Literal["low_space", "high_throughput"]

_BLOOM_BITS_PER_KEY = 10
_LEVELS = 7
# A consumed queue is a run of tombstones at its head, which every seek would walk: a file in which half
# of any thousand entries are deletions is compacted soon.
_TOMBSTONE_WINDOW, _TOMBSTONE_TRIGGER, _TOMBSTONE_RATIO = 1024, 512, 0.5


class Profile(NamedTuple):
    """What the two modes trade: bytes on disk against work per write."""

    write_buffer_bytes: int
    file_bytes: int
    level_base_bytes: int
    level0_files: int
    block_bytes: int
    wal_bytes: int
    compression: tuple[str, ...]
    bottommost: str


PROFILES: dict[Mode, Profile] = {
    # Rows of the upper levels are mostly consumed before they sink: compressing them is work thrown away.
    "high_throughput": Profile(
        64 * MIB, 64 * MIB, 256 * MIB, 4, 4096, WAL_LIMIT_BYTES, ("none", "none", *["lz4"] * 5), "lz4"
    ),
    "low_space": Profile(8 * MIB, 16 * MIB, 32 * MIB, 2, 16384, 16 * MIB, ("zstd",) * _LEVELS, "zstd"),
}


def family_options(driver: ModuleType, profile: Profile, cache: Any, *, collect_tombstones: bool) -> Any:
    options = driver.Options(raw_mode=True)
    compression = driver.DBCompressionType
    table = driver.BlockBasedOptions()
    table.set_block_cache(cache)
    table.set_block_size(profile.block_bytes)
    table.set_bloom_filter(_BLOOM_BITS_PER_KEY, False)
    table.set_cache_index_and_filter_blocks(True)
    table.set_pin_l0_filter_and_index_blocks_in_cache(True)
    table.set_format_version(5)
    options.set_block_based_table_factory(table)
    options.set_write_buffer_size(profile.write_buffer_bytes)
    options.set_target_file_size_base(profile.file_bytes)
    options.set_max_bytes_for_level_base(profile.level_base_bytes)
    options.set_level_zero_file_num_compaction_trigger(profile.level0_files)
    options.set_level_compaction_dynamic_level_bytes(True)
    options.set_num_levels(_LEVELS)
    options.set_compression_per_level([getattr(compression, name)() for name in profile.compression])
    options.set_bottommost_compression_type(getattr(compression, profile.bottommost)())
    if collect_tombstones:
        options.add_compact_on_deletion_collector_factory(
            _TOMBSTONE_WINDOW, _TOMBSTONE_TRIGGER, _TOMBSTONE_RATIO
        )
    return options


def filtered_options(driver: ModuleType, *, compress: bool) -> Any:
    """Of a table that is written beside a store, for keys that are looked up and mostly not there."""
    options = driver.Options(raw_mode=True)
    table = driver.BlockBasedOptions()
    table.set_block_size(PROFILES["low_space"].block_bytes)
    table.set_bloom_filter(_BLOOM_BITS_PER_KEY, False)
    table.set_format_version(5)
    options.set_block_based_table_factory(table)
    kind = driver.DBCompressionType
    options.set_compression_type(kind.zstd() if compress else kind.none())
    return options


def _open_files() -> int:
    """Tables that are held open: of what the process may have, some, for there may be other stores in it.

    Without a limit all of them are, and a store with more than that cannot even be opened.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return -1 if soft == resource.RLIM_INFINITY else max(MIN_OPEN_FILES, soft // 4)


def database_options(driver: ModuleType, profile: Profile, cache: Any, *, paranoid: bool = False) -> Any:
    """The database's own. `paranoid` is for replaying a log: without, RocksDB would skip what is damaged."""
    options = family_options(driver, profile, cache, collect_tombstones=False)
    options.create_if_missing(True)
    options.create_missing_column_families(True)
    # With it, one damaged block that a compaction meets stops all writing. What it would refuse at opening
    # is looked for by name, and after a failed write the store itself refuses the next.
    options.set_paranoid_checks(paranoid)
    options.set_max_total_wal_size(profile.wal_bytes)
    options.set_max_open_files(_open_files())
    # After a power cut the log may end in garbage; what precedes it is a prefix without holes, and is kept.
    options.set_wal_recovery_mode(driver.DBRecoveryMode.point_in_time())
    options.set_max_background_jobs(max(2, min(4, os.cpu_count() or 2)))
    options.set_keep_log_file_num(2)
    options.set_max_log_file_size(4 * MIB)
    options.set_stats_dump_period_sec(0)
    return options
