"""What the tests of bulk over HTTP share: rows, staging, reading, and requests as anyone may send them."""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.ipc
import urllib3

from penstock.backends.bulk import BulkRequest, Snapshot, Staged, Txn, WriteTicket
from penstock.backends.forwarding.methods import decode_error
from penstock.backends.http import wire
from penstock.backends.registry import open_reader, open_writer
from tests.http.running import Running

TXN = Txn("job", 1)


def rows_of(*payloads: bytes | None) -> Any:
    return pa.record_batch({"payload": pa.array(payloads, pa.binary())})


def staged(ticket: WriteTicket, *batches: Any, first_row: int = 0) -> Staged:
    with open_writer(ticket) as writer:
        return writer.stage(TXN, 0, batches, None, first_row)


def read(snapshot: Snapshot, **request: Any) -> list[dict[str, Any]]:
    with open_reader(snapshot) as reader:
        plan = reader.plan(BulkRequest(**request))
        return [row for one in plan.partitions for batch in reader.read(one) for row in batch.to_pylist()]


def post(server: Running, what: str, body: bytes) -> tuple[int, str]:
    """One request, as anyone may send it: its status and the error's words."""
    url, headers = f"{server.url}{wire.PREFIX}{what}", {"connection": "close"}
    answer = urllib3.request("POST", url, body=body, headers=headers, retries=False)
    return answer.status, "" if answer.status == 200 else str(decode_error(answer.data)[1])


def arrow(ticket: WriteTicket, batch: Any, *, rows: int | None = None, options: Any = None) -> bytes:
    asked = wire.StageAsked(
        ticket=wire.text_of(ticket.place),
        at_ns=ticket.at_ns,
        txn=TXN,
        partition=0,
        first_row=0,
        rows=batch.num_rows if rows is None else rows,
    )
    sink = pa.BufferOutputStream()
    schema = batch.schema.with_metadata({wire.ASKED: msgspec.msgpack.encode(asked)})
    with pa.ipc.new_stream(sink, schema, options=options) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())
