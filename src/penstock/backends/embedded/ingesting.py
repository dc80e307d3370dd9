"""Taking chunks in: tables go into the store as they are, and one write makes messages of what is in them.

Chunks without tables are wholly part of that write, which then is all there is to it. For the others:
RocksDB takes tables in outside of any batch. So it is written down first, durably, which chunks are about to
come; then come their tables, and last, in one write, everything else: journal, counters, rows of what waits,
and that they are in. Whoever holds the lock sees none of that half done, and a crash in the middle is rolled
forward when the store is opened.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from penstock.backends.bulk import Chunk
from penstock.backends.embedded import keys
from penstock.backends.embedded.engine import Engine, Transaction
from penstock.backends.embedded.keys import Due, StateCode
from penstock.backends.embedded.queue_state import QueueState
from penstock.backends.embedded.rows import StateRow
from penstock.backends.embedded.staged import MESSAGES, READY, Rows, has_tables
from penstock.backends.embedded.transitions import enter
from penstock.backends.meters import ENQUEUED
from penstock.clock import NS_PER_S
from penstock.codec.body import decode_body
from penstock.event import Kind
from penstock.kv.rocksdb import RocksStore
from penstock.kv.sealed import SealedStore, put_as_stored
from penstock.message import NewMessage, format_id

#: Events of one frame.
FRAME_ROWS = 8192
_SCRATCH = "scratch"

#: A chunk, and what its file says of it.
Loaded = tuple[Chunk, Rows]


def any_exists(engine: Engine, loaded: Sequence[Loaded]) -> bool:
    """Whether the store has a body under one of their ids, or two of them have the same."""
    given = [rows.all_ids() for chunk, rows in loaded if chunk.ids != "new"]
    if len(given) > 1 and len(set().union(*given)) < sum(map(len, given)):
        return True
    return any(_exists(engine, chunk, rows) for chunk, rows in loaded)


def _exists(engine: Engine, chunk: Chunk, rows: Rows) -> bool:
    prefix = keys.u32(chunk.number)
    if chunk.ids == "new":  # The job's own, side by side; mostly nothing is between the first and the last.
        scan = engine.kv.scan(engine.messages, prefix + chunk.first, prefix + chunk.last + b"\0", limit=1)
        if next(scan, None) is None:
            return False
    found = engine.kv.get_many([prefix + raw_id for raw_id in rows.all_ids()], engine.messages)
    return any(body is not None for body in found)


def take_in_bodies(engine: Engine, folder: Path, chunks: Sequence[Chunk]) -> None:
    """Their tables of bodies, or none; done twice is as once, as long as nobody has seen the first."""
    paths = [str(folder / (chunk.name + MESSAGES)) for chunk in chunks if has_tables(chunk)]
    if paths:
        engine.ahead.clear()
        engine.kv.ingest(paths, engine.messages)


def take_in_ready(engine: Engine, folder: Path, chunks: Sequence[Chunk]) -> None:
    """The same of their ready rows."""
    paths = [str(folder / (chunk.name + READY)) for chunk in chunks if chunk.sizes_bytes[1]]
    if paths:
        engine.kv.ingest(paths, engine.ready)


def enter_chunk(txn: Transaction, q: QueueState, rows: Rows) -> None:
    """What is in a chunk, or in its tables, becomes messages of the queue."""
    if rows.bodies:
        _put_rows(txn, q, rows)
    counters, count = q.counters, rows.count
    counters.last_order_ns = max(counters.last_order_ns, rows.last_order_ns)
    counters.enqueued_total += count
    delayed = iter([*rows.delayed, None])
    waiting = next(delayed)
    for at in range(0, count, FRAME_ROWS):
        end = min(at + FRAME_ROWS, count)
        due_ns: int | list[int] = txn.now_ns
        ready = end - at
        while waiting is not None and waiting.place < end:
            due_ns = [txn.now_ns] * (end - at) if isinstance(due_ns, int) else due_ns
            due_ns[waiting.place - at] = waiting.visible_at_ns
            row = StateRow(
                0,
                counters.next_seq + waiting.place - at,
                txn.now_ns,
                waiting.visible_at_ns,
                waiting.visible_at_ns,
                waiting.expires_at_ns,
                waiting.weight,
                waiting.lane,
            )
            enter(txn, q, rows.id_at(waiting.place), StateCode.DELAYED, row)
            ready -= 1
            waiting = next(delayed)
        counters.counts[StateCode.READY] += ready
        txn.record(q, Kind.ENQUEUED, rows.some_ids(at, end), due_ns=due_ns)
        txn.end_frame(q)
    for place, expires_at_ns in rows.expiring:
        txn.put_due(Due.TTL, expires_at_ns, q.qid, [rows.id_at(place)])
    for lane, first, rows_there in rows.lanes:
        q.ready.add_stored(txn, lane, q.prefix + lane + first, rows_there)
    txn.rates.append((q, ENQUEUED, count))
    q.arrived.notify(count)


def _put_rows(txn: Transaction, q: QueueState, rows: Rows) -> None:
    put, engine = put_as_stored(txn.batch), txn.engine
    for raw_id, body in zip(rows.all_ids(), rows.bodies, strict=True):
        engine.ahead.replaced(txn, q.prefix + raw_id)
        put(q.prefix + raw_id, body, engine.messages)
    for key, value in rows.ready:
        put(q.prefix + key, value, engine.ready)


class StagedBodies:
    """Messages of a chunk that goes in one by one: some may be there already.

    A table is read as a store of its own, for the driver reads tables in no other way.
    """

    def __init__(self, engine: Engine, folder: Path, chunk: Chunk, rows: Rows) -> None:
        self._engine = engine
        self._prefix = keys.u32(chunk.number)
        self._folder = folder / _SCRATCH
        self.ids = rows.all_ids()
        self._bodies = rows.bodies
        self._store: RocksStore | None = None
        if has_tables(chunk):
            shutil.rmtree(self._folder, ignore_errors=True)
            self._store = RocksStore.open(self._folder, ["messages"])
            self._store.ingest([str(folder / (chunk.name + MESSAGES))], self._store.space("messages"))

    def _values(self, start: int, row_keys: Sequence[bytes]) -> Sequence[bytes | None]:
        if self._store is None:
            return self._bodies[start : start + len(row_keys)]
        return self._store.get_many(row_keys, self._store.space("messages"))

    def messages(self, start: int, count: int, now_ns: int) -> Iterator[NewMessage]:
        row_keys = [self._prefix + raw_id for raw_id in self.ids[start : start + count]]
        kv = self._engine.kv
        for key, raw in zip(row_keys, self._values(start, row_keys), strict=True):
            raw = raw or b""
            body = decode_body(kv.opened("messages", key, raw) if isinstance(kv, SealedStore) else raw)
            ttl_s = None
            if body.expires_at_ns:
                # Over by now, it expires at once, as the journal then says.
                ttl_s = max(1, body.expires_at_ns - now_ns) / NS_PER_S
            yield NewMessage(
                payload=body.payload,
                headers=body.headers,
                fairness_key=body.fairness_key,
                weight=body.weight,
                throttle_keys=body.throttle_keys,
                priority=body.priority,
                delay_s=max(0, body.order_ns - now_ns) / NS_PER_S if body.placed else 0,
                ttl_s=ttl_s,
                dedup_id=body.dedup_id,
                id=format_id(key[4:]),
            )

    def close(self) -> None:
        if self._store is None:
            return
        self._store.close()
        shutil.rmtree(self._folder, ignore_errors=True)
