"""Messages and events as streams of Arrow, in the columns of bulk writes and reads."""

from __future__ import annotations

import io
from typing import Any, NamedTuple

from penstock.backends.tables.incoming import Columns, check_schema
from penstock.backends.tables.rows import FIELDS, ROWS_OWN, message_of, why_not
from penstock.errors import BackendNotInstalled, InvalidMessage
from penstock.message import NewMessage
from penstock.server.rest.shapes import MOST, Events


class Rows(NamedTuple):
    """Messages to store, as somebody sent them: a row each."""

    body: bytes

    def messages(self) -> list[NewMessage]:
        """All of them; if one cannot be, none. It takes its time, and is called in a thread."""
        try:
            from penstock.server.native.arrow import sent_rows
        except ImportError as error:
            raise BackendNotInstalled("pyarrow", "spark") from error
        batches = sent_rows(self.body)
        count = sum(batch.num_rows for batch in batches)
        if count > MOST:
            raise InvalidMessage(f"the body has {count} rows; accepted: up to {MOST}")
        return [message for batch in batches for message in _messages(batch)]


def _messages(batch: Any) -> list[NewMessage]:
    check_schema(batch.schema, one_queue=True)
    columns = Columns(batch)
    payload = columns.payload()
    payloads = [None] * batch.num_rows if payload is None else payload.to_pylist()
    found = []
    for row, (value, fields) in enumerate(zip(payloads, columns.rows_of(*FIELDS), strict=True)):
        if value is None:
            raise InvalidMessage(f"row {row}: payload is null")
        try:
            found.append(message_of(value, fields))
        except ROWS_OWN as error:
            raise InvalidMessage(f"row {row}: {why_not(error)}") from None
    return found


def events_stream(queue: str, found: Events) -> bytes:
    """Events as rows of the table `events`."""
    try:
        import numpy as np
        import pyarrow

        from penstock.backends.tables import columns
    except ImportError as error:
        raise BackendNotInstalled("pyarrow", "spark") from error
    from penstock.tables import arrow_schema

    pa: Any = pyarrow
    schema = arrow_schema("events")
    values: dict[str, Any] = {
        name: [getattr(event, name) for event in found.events]
        for name in ("seq", "at_ns", "kind", "message_id", "attempt", "due_ns", "consumer", "reason", "extra")
    }
    values["kind"] = [str(kind) for kind in values["kind"]]
    due_ns = np.array(values["due_ns"], np.int64)
    values["queue"] = columns.constant(queue, len(found.events))
    values["at"] = columns.times(np.array(values["at_ns"], np.int64))
    values["due_at"] = columns.times(due_ns, due_ns != 0)
    arrays = [pa.array(values[field.name], field.type) for field in schema]
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))
    return sink.getvalue()
