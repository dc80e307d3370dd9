"""A job of every kind of rows, in many slices, and what must be there once it is committed."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

import penstock
from penstock import ManualClock, NewMessage, Penstock
from penstock.backends.bulk import Staged, Txn, WriteTicket, Written
from penstock.backends.embedded import chunks, slices
from penstock.backends.registry import open_writer

START_NS = 1_700_000_000 * 10**9
TXN = Txn("nightly", 3)
QUEUES = ("q", "other")
#: Small, so that a small job has many slices, and chunks with tables and without.
SIZES = (
    (chunks, "CHUNK_ROWS", 40),
    (chunks, "TABLE_ROWS", 12),
    (slices, "SLICE_ROWS", 80),
    (slices, "LOOSE_ROWS", 15),
)


class Plan(msgspec.Struct):
    """What a committing process needs."""

    ticket: WriteTicket
    staged: list[Staged]


class Told(NamedTuple):
    """What a message is, as far as it does not depend on when it was committed."""

    queue: str
    payload: bytes
    state: str
    fairness_key: str
    headers: tuple[tuple[str, str], ...]
    dedup_id: str | None


def given(n: int) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"row {n}"))


def rows(partition: int) -> list[dict[str, Any]]:
    """Rows of a partition; some of them are bad."""
    out: list[dict[str, Any]] = []
    for n in range(110):
        row: dict[str, Any] = {"payload": b"%d %d" % (partition, n), "queue": QUEUES[n % 7 == 0]}
        row["fairness_key"] = f"key {n % 5}" if n % 4 else None
        if n % 9 == 0:
            row["delay_s"] = 3600.0
        if n % 11 == 0:
            row["ttl_s"] = 7200.0
        if n % 3 == 0:
            row["headers"] = [("type", f"t{n}")]
        if n % 10 == 3:  # Some in both partitions, some there already.
            row["id"] = given(n)
        if n % 10 == 4:
            row["dedup_id"] = f"dedup {n % 30}"
        if n % 50 == 49:
            row["payload"] = None
        out.append(row)
    return out


COLUMNS: dict[str, pa.DataType] = {
    "payload": pa.binary(),
    "queue": pa.string(),
    "fairness_key": pa.string(),
    "delay_s": pa.float64(),
    "ttl_s": pa.float64(),
    "headers": pa.map_(pa.string(), pa.string()),
    "id": pa.string(),
    "dedup_id": pa.string(),
}
SCHEMA = pa.schema(COLUMNS)


def batch(partition: int) -> pa.RecordBatch:
    listed = [{name: row.get(name) for name in SCHEMA.names} for row in rows(partition)]
    return pa.RecordBatch.from_pylist(listed, SCHEMA)


def small_sizes() -> None:
    """For a process of its own."""
    for module, name, value in SIZES:
        setattr(module, name, value)


def open_store(folder: Path) -> Penstock:
    return penstock.open(f"rocksdb:{folder}?durability=os", clock=ManualClock(START_NS))


def prepare(folder: Path) -> Plan:
    """A store that is in use, and a job staged for it in three partitions."""
    with open_store(folder) as ps:
        for name in QUEUES:
            q = ps.create_queue(name)
            q.enqueue_many([NewMessage(b"old %d" % n, fairness_key=f"key {n % 5}") for n in range(30)])
            q.ack([delivery.receipt for delivery in q.lease(10)])
        ps.queue("q").enqueue(b"was there", id=given(13))
        ps.queue("q").enqueue(b"was there", dedup_id="dedup 4")
        ticket = ps.begin_write()
    return Plan(ticket, stage(ticket))


def stage(ticket: WriteTicket) -> list[Staged]:
    with open_writer(ticket) as writer:
        return [writer.stage(TXN, partition, [batch(partition)]) for partition in range(3)]


def contents(ps: Penstock) -> dict[str, Told]:
    found = {}
    for name in QUEUES:
        for message in ps.queue(name).iter():
            headers = tuple(sorted(message.headers.items()))
            found[message.id] = Told(
                name, message.payload, message.state, message.fairness_key, headers, message.dedup_id
            )
    return found


def commit(ps: Penstock, plan: Plan) -> Written:
    return ps.commit_write(plan.ticket, TXN, plan.staged)
