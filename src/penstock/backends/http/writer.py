"""Staging at a server: rows go there in parts, each of which may be sent again, and count once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Self

import msgspec
import pyarrow
import pyarrow.ipc

from penstock.backends.bulk import Chunk, Staged, Txn, WriteTicket
from penstock.backends.forwarding.methods import Unreadable
from penstock.backends.http import peer, place, wire
from penstock.backends.http.peer import TOO_LARGE, Peer, words
from penstock.backends.tables import jobs
from penstock.backends.tables.incoming import PAYLOAD, check_schema
from penstock.backends.tables.rows import Rejects, slices_of
from penstock.codec.answer import decoder
from penstock.keyring import KeyProvider

WRITER = "http"
#: A part has so many rows, or bytes, at most, unless a single row is larger.
PART_ROWS, PART_BYTES = 131_072, 16 << 20
#: How long a part is sent again while the server cannot be reached.
PATIENCE_S = 120.0
#: How long it may take to be staged.
STAGED_WITHIN_S = 600.0

_decode = decoder(wire.StageAnswer)
_encode = msgspec.msgpack.Encoder().encode


def open_stager(ticket: WriteTicket, provider: KeyProvider | None) -> HttpWriter:
    """Keys are the server's."""
    return HttpWriter(ticket)


class HttpWriter:
    """`BulkWriter` for a ticket that a server has given."""

    def __init__(self, ticket: WriteTicket) -> None:
        self.ticket = ticket
        self._peer = Peer(place.at(ticket.place.rpartition("#")[0]))

    def stage(
        self,
        txn: Txn,
        partition: int,
        batches: Iterable[pyarrow.RecordBatch],
        set_aside: Callable[[pyarrow.RecordBatch], None] | None = None,
        first_row: int = 0,
    ) -> Staged:
        jobs.check_txn(txn)
        staging = _Staging(self.ticket, self._peer, txn, partition, Rejects(partition, set_aside), first_row)
        for part in _parts(_checked(batches, one_queue=self.ticket.queue is not None)):
            staging.add(part)
        return staging.staged()

    def close(self) -> None:
        self._peer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Staging:
    """One partition, or some of its rows."""

    def __init__(
        self, ticket: WriteTicket, peer: Peer, txn: Txn, partition: int, rejects: Rejects, first_row: int
    ) -> None:
        self._ticket = ticket
        self._peer = peer
        self._txn = txn
        self._partition = partition
        self._rejects = rejects
        self._next_row = jobs.checked_row(first_row)
        self._chunks: list[Chunk] = []

    def staged(self) -> Staged:
        return Staged(
            partition=self._partition,
            rows=sum(chunk.rows for chunk in self._chunks),
            chunks=tuple(self._chunks),
            rejected=self._rejects.count,
            reasons=tuple(self._rejects.reasons),
        )

    def add(self, part: list[pyarrow.RecordBatch]) -> None:
        """What is too large for the server goes there in halves; a row that is by itself is set aside."""
        rows = sum(batch.num_rows for batch in part)
        try:
            self._note(part, rows, self._sent(part, rows))
        except _TooLarge as too_large:
            if rows > 1:
                for half in _halves(part, rows):
                    self.add(half)
                return
            (batch,) = (batch for batch in part if batch.num_rows)
            answer = self._sent([_without_payload(batch)], 1)
            self._note([batch], 1, msgspec.structs.replace(answer, refused={0: str(too_large)}))

    def _sent(self, part: list[pyarrow.RecordBatch], rows: int) -> wire.StageAnswer:
        asked = wire.StageAsked(
            ticket=wire.text_of(self._ticket.place),
            at_ns=self._ticket.at_ns,
            txn=self._txn,
            partition=self._partition,
            first_row=self._next_row,
            rows=rows,
        )
        sink = pyarrow.BufferOutputStream()
        schema = part[0].schema.with_metadata({wire.ASKED: _encode(asked)})
        with pyarrow.ipc.new_stream(sink, schema) as writer:
            for batch in part:
                writer.write_batch(batch)
        answer = self._peer.ask(
            "stage",
            f"{wire.PREFIX}stage",
            sink.getvalue().to_pybytes(),
            content_type=wire.ARROW,
            timeout_s=STAGED_WITHIN_S,
            patience_s=PATIENCE_S,
            room_s=peer.ROOM_S,
        )
        if answer.status == TOO_LARGE:
            raise _TooLarge(words(answer))
        found: wire.StageAnswer = self._peer.understood("stage", answer, _decode)
        return found

    def _note(self, part: list[pyarrow.RecordBatch], rows: int, answer: wire.StageAnswer) -> None:
        self._chunks.append(
            Chunk(name=answer.part, number=0, rows=answer.rows, first=b"", last=b"", sizes_bytes=())
        )
        start = 0
        for batch in part if answer.refused else ():
            end = start + batch.num_rows
            bad = {at - start: reason for at, reason in answer.refused.items() if start <= at < end}
            if bad:
                self._rejects.add(batch, self._next_row + start, bad)
            start = end
        self._next_row += rows


class _TooLarge(Unreadable):
    """More than the server takes at once."""


def _checked(batches: Iterable[pyarrow.RecordBatch], *, one_queue: bool) -> Iterator[pyarrow.RecordBatch]:
    """Batches as a partition has them: from the first that brings ids on, all have the column."""
    schema: pyarrow.Schema | None = None
    has_ids = False
    for batch in batches:
        if schema is None or not batch.schema.equals(schema):
            check_schema(batch.schema, one_queue=one_queue)
            schema = batch.schema
            has_ids = has_ids or "id" in batch.schema.names
        if has_ids and "id" not in batch.schema.names:
            batch = batch.append_column("id", pyarrow.nulls(batch.num_rows, pyarrow.string()))
        yield batch


def _parts(batches: Iterable[pyarrow.RecordBatch]) -> Iterator[list[pyarrow.RecordBatch]]:
    """Batches of one schema, as many as are worth a request."""
    part: list[pyarrow.RecordBatch] = []
    rows = size_bytes = 0
    for batch in batches:
        for piece in slices_of(batch, PART_ROWS, PART_BYTES):
            grown_rows, grown_bytes = rows + piece.num_rows, size_bytes + piece.nbytes
            fits = grown_rows <= PART_ROWS and grown_bytes <= PART_BYTES
            if part and not (fits and piece.schema.equals(part[0].schema)):
                yield part
                part, grown_rows, grown_bytes = [], piece.num_rows, piece.nbytes
            part.append(piece)
            rows, size_bytes = grown_rows, grown_bytes
    if part:
        yield part


def _halves(part: list[pyarrow.RecordBatch], rows: int) -> tuple[list[pyarrow.RecordBatch], ...]:
    first: list[pyarrow.RecordBatch] = []
    second: list[pyarrow.RecordBatch] = []
    left = rows // 2
    for batch in part:
        first += [batch.slice(0, left)] if left else []
        second += [batch.slice(left)] if left < batch.num_rows else []
        left = max(0, left - batch.num_rows)
    return first, second


def _without_payload(batch: pyarrow.RecordBatch) -> pyarrow.RecordBatch:
    at = batch.schema.get_field_index(PAYLOAD)
    field = batch.schema.field(at).with_nullable(True)
    return batch.set_column(at, field, pyarrow.nulls(batch.num_rows, field.type))
