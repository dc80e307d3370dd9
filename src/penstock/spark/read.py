"""`spark.read.format("penstock")`: one snapshot, planned by the driver, read in parallel by the workers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from penstock.spark.filters import Pushed, unenforced
from penstock.spark.options import ReadOptions
from penstock.spark.plan import batch_request, parts, rows
from penstock.spark.schema import columns_in
from penstock.spark.store import KeySource, Store, opened

if TYPE_CHECKING:
    import pyarrow


class PenstockReader(DataSourceReader):
    """Plans in a process of the driver's. A copy of it reads on the workers, of which each part says all."""

    def __init__(self, options: ReadOptions, schema: StructType, moment: str) -> None:
        self._options = options
        self._moment = moment
        self._schema = schema
        self._columns = columns_in(schema, options.table, options.columns)
        self._pushed = Pushed(options.table, states=options.states, kinds=options.kinds)
        self._pushed.times_ns.meet(options.starting_ns, options.ending_ns)

    def partitions(self) -> list[InputPartition]:
        """Called for a DataFrame whenever Spark plans it anew: at its first use, and for each with a filter.

        All of them see the moment of the first, and nobody knows which use is the last. The snapshot goes
        when nobody has read from it for a while; one that the user has taken goes when the user says so.
        """
        options = self._options
        given = KeySource(options.key_file, options.key_command)
        if options.snapshot is not None:
            snapshot, keys = options.snapshot, given
        else:
            store = Store(options.url or "", given)
            snapshot, keys = store.take_snapshot(self._moment), store.key_source()
        with opened(snapshot, keys) as reader:
            try:
                request = batch_request(reader, options, self._columns, self._pushed)
                return [] if request is None else parts(reader, request, options, keys)
            except BaseException:
                if options.snapshot is None:
                    reader.release()  # Nobody will read from it.
                raise

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        return rows(partition, self._schema)


class FilteringReader(PenstockReader):
    """One that keeps to filters, where that is asked for: it is right for a DataFrame that is used once.

    Spark notes what the last filters have left over with what was loaded, and reads just that for every other
    use of the DataFrame, whichever filters that has, or none.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802  (Spark's name)
        return unenforced(self._pushed, filters)
