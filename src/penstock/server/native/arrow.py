"""Arrow on its way through the server: rows that clients sent, and what is read for them, piece by piece."""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from typing import Any

import msgspec
import pyarrow
import pyarrow.ipc

from penstock.backends.bulk import BulkPartition, BulkReader, Damage
from penstock.backends.forwarding.methods import Unreadable
from penstock.backends.http import wire
from penstock.codec.answer import encode_answer
from penstock.errors import PenstockError
from penstock.tables import arrow_schema

pa: Any = pyarrow
#: Places of fields, in Arrow's tables `Message` and `RecordBatch`.
_HEADER, _COMPRESSION = 2, 3
_decode_asked = msgspec.msgpack.Decoder(wire.StageAsked).decode
_encode = msgspec.msgpack.Encoder().encode
#: What is raised by bytes that are not what they should be.
_UNREADABLE = (pa.ArrowException, msgspec.DecodeError, OSError, ValueError, struct.error)


def staged_rows(body: bytes) -> tuple[wire.StageAsked, list[pyarrow.RecordBatch]]:
    """What is to be staged, and its rows, which are sound: nothing that reads them leaves their memory."""
    try:
        schema, batches = _sound(body)
        asked = _decode_asked((schema.metadata or {}).get(wire.ASKED, b""))
        rows = sum(batch.num_rows for batch in batches)
        if rows != asked.rows or rows > wire.MOST_ROWS:
            raise ValueError(
                f"it has {rows} rows, and not {asked.rows} as it says, for it was cut short; or more than "
                f"{wire.MOST_ROWS}"
            )
    except _UNREADABLE as error:
        raise Unreadable(f"the body is no stream of Arrow with rows to be staged: {error!s:.300}") from None
    return asked, batches


def sent_rows(body: bytes) -> list[pyarrow.RecordBatch]:
    """The rows of a stream of Arrow that somebody sent, as sound."""
    try:
        return _sound(body)[1]
    except _UNREADABLE as error:
        raise Unreadable(f"the body is no stream of Arrow: {error!s:.300}") from None


def _sound(body: bytes) -> tuple[pyarrow.Schema, list[pyarrow.RecordBatch]]:
    with pa.ipc.open_stream(body) as reader:
        reader.schema.names  # noqa: B018  (raises for what is not text)
        _check_messages(body)
        batches = list(reader)
    for batch in batches:
        _check(batch)
    return reader.schema, batches


def _check_messages(body: bytes) -> None:
    """Nothing in it is larger than it looks: neither compressed nor told by reference."""
    for message in pa.ipc.MessageReader.open_stream(body):
        if message.type == "record batch" and _has_compression(message.metadata.to_pybytes()):
            raise ValueError("its batches are compressed; send them as they are")
        if message.type == "dictionary":
            raise ValueError("it has dictionaries; send plain columns")


def _has_compression(metadata: bytes) -> bool:
    """Whether a record batch's header has the field for that: Arrow's library does not tell beforehand."""

    def field(table: int, number: int) -> int:
        """The place of a field of a table of a FlatBuffer; 0: it has none."""
        vtable = table - struct.unpack_from("<i", metadata, table)[0]
        at = 4 + 2 * number
        if at >= struct.unpack_from("<H", metadata, vtable)[0]:
            return 0
        offset: int = struct.unpack_from("<H", metadata, vtable + at)[0]
        return table + offset if offset else 0

    (message,) = struct.unpack_from("<I", metadata)
    header = field(message, _HEADER)
    return field(header + struct.unpack_from("<I", metadata, header)[0], _COMPRESSION) != 0


def _check(batch: Any) -> None:
    """Whole; text need not be UTF-8, for a row in which it is not is refused by itself."""
    try:
        batch.validate(full=True)
    except pa.ArrowInvalid:
        batch.validate()
        for column in batch.columns:
            column.view(_as_bytes(column.type)).validate(full=True)


def _as_bytes(kind: Any) -> Any:
    types = pa.types
    if types.is_string(kind):
        return pa.binary()
    if types.is_large_string(kind):
        return pa.large_binary()
    if types.is_map(kind):
        return pa.map_(_as_bytes(kind.key_type), _as_bytes(kind.item_type))
    if types.is_list(kind):
        return pa.list_(_as_bytes(kind.value_type))
    return kind


class Reading:
    """A partition that is read for a client, as pieces of a stream of Arrow. For one thread at a time."""

    def __init__(self, reader: BulkReader, partition: BulkPartition, after_rows: int) -> None:
        self._reader = reader
        self._told: list[Damage] = []
        self._batches: Iterator[pyarrow.RecordBatch] = reader.read(partition, self._told.append)
        self._skip = after_rows
        self._rows = 0
        self._buffer = io.BytesIO()
        self._schema = arrow_schema(partition.request.table, partition.request.columns)
        self._writer: Any = None
        self._over = False

    def piece(self) -> bytes | None:
        """The next; None after the last. An error of the first is raised, one of a later is its end."""
        if self._over:
            return None
        try:
            batch = self._next()
        except PenstockError as error:
            if self._writer is None:
                raise
            return self._last({wire.FAILED: encode_answer(error)})
        if batch is None:
            return self._last({wire.ENDED: b"%d" % self._rows})
        self._rows += batch.num_rows
        return self._written(batch, {})

    def _next(self) -> pyarrow.RecordBatch | None:
        for batch in self._batches:
            skipped = min(self._skip, batch.num_rows)
            self._skip -= skipped
            if skipped < batch.num_rows:
                return batch.slice(skipped)
        return None

    def _last(self, said: dict[bytes, bytes]) -> bytes:
        self._over = True
        self._written(pa.RecordBatch.from_pylist([], schema=self._schema), said, keep=True)
        self._writer.close()
        return self._taken()

    def _written(self, batch: pyarrow.RecordBatch, said: dict[bytes, bytes], *, keep: bool = False) -> bytes:
        if self._writer is None:
            self._writer = pa.ipc.new_stream(self._buffer, self._schema)
        if self._told:
            said[wire.TOLD] = _encode(self._told)
            self._told.clear()
        self._writer.write_batch(batch, custom_metadata=said or None)
        return b"" if keep else self._taken()

    def _taken(self) -> bytes:
        taken = self._buffer.getvalue()
        self._buffer.seek(0)
        self._buffer.truncate()
        return taken

    def close(self) -> None:
        self._over = True
        self._reader.close()
