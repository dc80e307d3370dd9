"""`df.write.format("penstock")` and `writeStream`: tasks stage, the driver commits, once."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from penstock.backends.bulk import Staged, Txn, WriteTicket, Written
from penstock.backends.registry import open_writer
from penstock.backends.tables.incoming import check_schema
from penstock.clock import SystemClock
from penstock.errors import InvalidConfig, InvalidMessage, PenstockError
from penstock.keyring import configured_keys
from penstock.spark import set_aside
from penstock.spark.set_aside import Hidden, SetAside
from penstock.spark.store import KeySource, Store
from penstock.spark.write_options import WriteOptions

if TYPE_CHECKING:
    import pyarrow

log = logging.getLogger("penstock")

#: What Spark tells the tasks of a stream.
_QUERY, _BATCH = "sql.streaming.queryId", "streaming.sql.batchId"


@dataclass
class Part(WriterCommitMessage):
    """What a task has staged: all that a commit needs, for it is another process that commits."""

    ticket: WriteTicket
    txn: Txn
    staged: Staged
    rejects: Hidden | None


class _Writing:
    """What batches and streams share. A copy of it stages on the workers."""

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise InvalidConfig('a queue is appended to, never replaced: use mode("append")')
        _check(schema, one_queue=options.queue is not None)
        self._options = options
        self._store = Store(options.url, KeySource(options.key_file, options.key_command))
        self._keys = self._store.key_source()
        with self._store.open() as ps:
            self._ticket = ps.begin_write(options.queue)

    def _stage(self, ticket: WriteTicket, txn: Txn, batches: Iterator[pyarrow.RecordBatch]) -> Part:
        partition = _context().partitionId()
        rejects = None
        if self._options.rejects is not None:
            job = set_aside.job_name(txn, self._options.queue)
            rejects = SetAside(self._options.rejects, job, set_aside.run_name(ticket.id), partition)
        with open_writer(ticket, configured_keys(self._keys.file, self._keys.command)) as writer:
            staged = writer.stage(txn, partition, batches, rejects)
        return Part(ticket, txn, staged, None if rejects is None else rejects.close())

    def _commit(self, parts: Sequence[Part]) -> None:
        """Bad rows first: a job that is found committed has them in their place."""
        ticket, txn = parts[0].ticket, parts[0].txn
        if self._options.rejects is None and any(part.staged.rejected for part in parts):
            self._throw_away(ticket, txn)
            raise InvalidMessage(_too_bad(parts))
        if self._options.rejects is not None:
            found = [part.rejects for part in parts if part.rejects is not None]
            set_aside.reveal(self._options.rejects, found)
        with self._store.open() as ps:
            written = ps.commit_write(ticket, txn, [part.staged for part in parts])
        self._settle(ticket, txn, written)
        self._tell(txn, written, sum(part.staged.rows for part in parts))

    def _settle(self, ticket: WriteTicket, txn: Txn, written: Written) -> None:
        """The job is done: what cannot be cleared away behind it does not change that."""
        if self._options.rejects is None:
            return
        try:
            job = set_aside.job_name(txn, self._options.queue)
            set_aside.settle(self._options.rejects, job, ticket, written)
            self._drop_hidden(txn)
        except OSError as error:
            log.warning("rejects of runs that did not count are left in %s: %s", self._options.rejects, error)

    def _tell(self, txn: Txn, written: Written, rows: int) -> None:
        """Spark passes no answer on: what became of the rows, where it is not what one would think."""
        job = f"txnAppId {txn.app!r}, txnVersion {txn.version}"
        where = "" if self._options.queue is None else f" for queue {self._options.queue!r}"
        if written.superseded:
            log.warning(
                "%s: a later version of it was committed before%s, so none of %d rows was enqueued",
                job,
                where,
                rows,
            )
        elif written.by:
            log.warning("%s was committed before%s: none of %d rows was enqueued again", job, where, rows)
        elif written.rejected:
            log.warning(
                "%s: %d rows cannot be enqueued; they are in %s",
                job,
                written.rejected,
                self._options.rejects,
            )

    def _throw_away(self, ticket: WriteTicket, txn: Txn) -> None:
        self._drop_hidden(txn)
        with self._store.open() as ps:
            ps.abort_write(ticket, txn)

    def _drop_hidden(self, txn: Txn) -> None:
        """Bad rows of attempts that came to nothing."""
        if self._options.rejects is not None:
            set_aside.drop_hidden(self._options.rejects, set_aside.job_name(txn, self._options.queue))


class PenstockWriter(_Writing, DataSourceArrowWriter):
    """One job."""

    # Spark types the writers of Arrow as those of rows.
    def write(self, iterator: Iterator[pyarrow.RecordBatch]) -> WriterCommitMessage:  # type: ignore[override]
        assert self._options.txn is not None
        return self._stage(self._ticket, self._options.txn, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        if parts := _parts(messages):
            self._commit(parts)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        assert self._options.txn is not None
        self._throw_away(self._ticket, self._options.txn)


class PenstockStreamWriter(_Writing, DataSourceStreamArrowWriter):
    """A query: each of its batches is a job, by which Spark knows the query and the number of the batch."""

    # Spark types the writers of Arrow as those of rows.
    def write(self, iterator: Iterator[pyarrow.RecordBatch]) -> WriterCommitMessage:  # type: ignore[override]
        context = _context()
        query, batch = context.getLocalProperty(_QUERY), context.getLocalProperty(_BATCH)
        if not query or not batch:
            raise PenstockError("Spark does not say which query and batch this is: is it a stream?")
        # Each batch takes its place in line when it is written, not when the query began.
        ticket = msgspec.structs.replace(self._ticket, at_ns=SystemClock().now_ns())
        return self._stage(ticket, Txn(query, int(batch)), iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        if parts := _parts(messages):
            self._commit(parts)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        if parts := _parts(messages):
            self._throw_away(parts[0].ticket, parts[0].txn)


def _context() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise PenstockError("rows are staged by tasks of Spark, and this is none")
    return context


def _parts(messages: Sequence[WriterCommitMessage | None]) -> list[Part]:
    return [message for message in messages if isinstance(message, Part)]


def _check(schema: StructType, *, one_queue: bool) -> None:
    """By Spark's names for types, which users know."""
    from pyspark.sql.pandas.types import to_arrow_schema

    try:
        check_schema(to_arrow_schema(schema), one_queue=one_queue)
    except InvalidMessage as error:
        shown = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in schema)
        raise InvalidMessage(f"{error} (the columns are: {shown})") from None


def _too_bad(parts: Sequence[Part]) -> str:
    bad = [part for part in sorted(parts, key=lambda one: one.staged.partition) if part.staged.rejected]
    rows, good = sum(part.staged.rejected for part in bad), sum(part.staged.rows for part in parts)
    return (
        f"{rows} of {rows + good} rows cannot be enqueued, so none was: {bad[0].staged.reasons[0]}; "
        "mend them, or name a folder in option rejectsPath: they go there, and the others are enqueued"
    )
