"""An archive as DataFrames: the files that its log names, and no others."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import IntegerType, LongType, StructField, StructType

from penstock.errors import InvalidConfig, QueueNotFound, StorageCorrupt
from penstock.spark.archive.files import damage_of, damaged
from penstock.spark.archive.layout import SOURCES, SYSTEM_WORLD, ArchiveTable
from penstock.spark.archive.log import ArchiveFile, ArchiveLog, ArchiveState
from penstock.spark.schema import spark_schema

#: Each page against its checksum. Pages of files without, which were written before, are taken as they are.
_CHECKED = "parquet.page.verify-checksum.enabled"


class Archive:
    """An archive as it stood when this was made. Compaction keeps what it names for a day at least."""

    def __init__(self, spark: SparkSession, folder: str | os.PathLike[str]) -> None:
        self._spark = spark
        log = ArchiveLog(folder)
        self.root: Path = log.root
        noted = log.moments()  # First: what is noted after the state was read does not hold of it.
        self.state: ArchiveState = log.read()
        #: By queue, up to when everything is archived, if a run has noted it.
        self.moments = noted.of(self.state)
        if not self.state.number:
            raise InvalidConfig(
                f"there is no archive in {self.root}; make one: penstock pipeline archive {self.root}"
            )

    def check_queue(self, name: str) -> None:
        if name not in self.state.queues:
            raise QueueNotFound(name)

    def generation(self, name: str) -> int:
        """The last that a queue has."""
        self.check_queue(name)
        return self.state.queues[name].generation

    def files(self, table: ArchiveTable, names: Collection[str] | None = None) -> list[ArchiveFile]:
        """Of every history: a queue that was deleted and made anew has several."""
        return [
            file
            for file in self.state.files.values()
            if file.table == table and (names is None or not file.name or file.name in names)
        ]

    def table(self, table: ArchiveTable, names: Collection[str] | None = None) -> DataFrame:
        """The rows of a table, of some queues or worlds, or of all; of each its last history.

        Of events and bodies also those before, as far as they are of the same journal.
        """
        files = [one for one in self.files(table, names) if self._is_last(one)]
        rows = self.read(table, files)
        return rows if names is None or table != "queues" else rows.where(rows.name.isin(*names))

    def administration(self, until_ns: int) -> list[tuple[int, str, str]]:
        """Settings that queues were given up to a time: when, queue and settings as JSON, in order."""
        files = [one for one in self.files("entries", {SYSTEM_WORLD}) if one.first_at_ns <= until_ns]
        if not files:
            return []
        entries = self.read("entries", [one for one in files if self._is_last(one)])
        given = entries.where(entries.kind.isin("queue_created", "queue_updated"))
        found = given.where(given.at_ns <= until_ns).select("seq", "at_ns", "labels", "body").collect()
        return [(row.at_ns, row.labels[0], bytes(row.body).decode()) for row in sorted(found)]

    def _is_last(self, file: ArchiveFile) -> bool:
        if not file.name:
            return True
        if file.table == "entries":
            return file.generation == self.state.worlds[file.name].generation
        if file.table == "base":
            return file.generation == self.state.queues[file.name].generation
        return file.generation in self.state.journal(file.name)

    def settings(self) -> list[tuple[int, str, int, str]]:
        """When each was read, queue, generation and settings as JSON, the oldest first. Few: read here."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        found: list[tuple[int, str, int, str]] = []
        columns = ["read_at_ns", "name", "generation", "settings"]
        for file in self.files("queues"):
            try:
                with pq.ParquetFile(self.root / file.path, page_checksum_verification=True) as opened:
                    rows = opened.read(columns).to_pylist()
            except (OSError, pa.ArrowException) as error:
                raise damaged(self.root / file.path, error) from error
            found += [tuple(row[name] for name in columns) for row in rows]
        return sorted(found)

    def check_files(self, tables: Collection[ArchiveTable], names: Collection[str] | None = None) -> None:
        """Read files as a whole, by tasks, for the sake of their checksums."""
        paths = [self.root / file.path for table in tables for file in self.files(table, names)]
        if not paths:
            return
        context = self._spark.sparkContext
        parts = min(len(paths), 4 * context.defaultParallelism)
        found = [text for text in context.parallelize(paths, parts).map(damage_of).collect() if text]
        if found:
            more = f" ({len(found) - 1} more files are damaged)" if len(found) > 1 else ""
            raise StorageCorrupt(min(found) + more)

    def read(self, table: ArchiveTable, files: Collection[ArchiveFile]) -> DataFrame:
        schema = archive_schema(table)
        if not files:
            return self._spark.createDataFrame([], schema)
        paths = [f"file:{self.root / file.path}" for file in files]
        # The names of folders say nothing that the rows do not say better.
        reader = self._spark.read.schema(schema).option("recursiveFileLookup", True)
        return reader.option(_CHECKED, True).parquet(*paths)


def archive_schema(table: ArchiveTable) -> StructType:
    """The schema that Spark reads them with."""
    added = [
        StructField("generation", IntegerType(), False),
        StructField("read_seq", LongType(), False),
        StructField("read_at_ns", LongType(), False),
    ]
    return StructType([*spark_schema(SOURCES[table][0]).fields, *added])
