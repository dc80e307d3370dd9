"""`format("penstock")`: what Spark asks for readers and writers, and for the schema that they read."""

from __future__ import annotations

import uuid

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from penstock.errors import PenstockError
from penstock.spark.options import parsed
from penstock.spark.schema import spark_schema


class PenstockSource(DataSource):
    """A store's tables. Which of them, and how, the options say: see `penstock.spark.options`."""

    def __init__(self, options: dict[str, str]) -> None:
        """Made once for what is loaded, and copied from then on: all that is planned has the same moment."""
        super().__init__(options)
        self._moment = str(uuid.uuid4())

    @classmethod
    def name(cls) -> str:
        return "penstock"

    def schema(self) -> StructType:
        options = parsed(self.options)
        return spark_schema(options.table, options.columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        from penstock.spark.read import FilteringReader, PenstockReader

        options = parsed(self.options, "batch")
        return (FilteringReader if options.push_filters else PenstockReader)(options, schema, self._moment)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  (Spark's name)
        from penstock.spark.stream import JournalStream, RefusedStream

        try:
            return JournalStream(parsed(self.options, "stream"), schema)
        except PenstockError as error:
            return RefusedStream(error)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from penstock.spark import write, write_options

        return write.PenstockWriter(write_options.parsed(self.options, "batch"), schema, overwrite)

    def streamWriter(  # noqa: N802  (Spark's name)
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamArrowWriter:
        from penstock.spark import write, write_options

        return write.PenstockStreamWriter(write_options.parsed(self.options, "stream"), schema, overwrite)
