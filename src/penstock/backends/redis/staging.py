"""Staging on Redis: rows of a bulk write, checked as `enqueue` checks them, become lists that a commit takes.

A *chunk* is some rows of one queue, as its script will have them, in a list with the queue's own hash tag. It
is gone after a day, unless a commit has begun.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from penstock.backends.bulk import Chunk, Staged, Target, Txn, WriteTicket
from penstock.backends.redis import places
from penstock.backends.redis.capabilities import HAVING
from penstock.backends.redis.connecting import Arg
from penstock.backends.redis.engine import CHANGED, Engine, Known
from penstock.backends.redis.records import lane, level_of
from penstock.backends.tables import jobs
from penstock.backends.tables.incoming import NOT_TEXT, PAYLOAD, QUEUE, Columns, check_schema
from penstock.backends.tables.jobs import ROW_BITS, STAGED_KEPT_S
from penstock.backends.tables.rows import (
    FIELDS,
    ROWS_OWN,
    Rejects,
    check_row,
    longest,
    message_of,
    refusals,
    slices_of,
    target_of,
    why_not,
)
from penstock.clock import SystemClock
from penstock.codec.body import Body, after_order, before_order, compact_body, encode_body, encode_variable
from penstock.errors import InvalidMessage, StorageError, Unsupported
from penstock.keyring import EnvironmentKeys, KeyProvider
from penstock.message import DEFAULT_PRIORITY, MAX_PAYLOAD_BYTES, NewMessage, parse_new_id
from penstock.settings import QueueSettings

if TYPE_CHECKING:
    import pyarrow

WRITER = "redis"
#: Rows that are looked at together, and bytes of them.
SLICE_ROWS, SLICE_BYTES = 16_384, 8 << 20
#: What is sent at a time.
PUSH_ROWS, PUSH_BYTES = 1000, 1 << 20
#: A chunk is closed when it has so many rows, or bytes.
CHUNK_ROWS, CHUNK_BYTES = 20_000, 64 << 20
#: Rows larger than this are no neighbours of smaller ones: a commit takes as many as fit into one call.
LARGE_BYTES = 65_536
#: What may be in memory of rows that are not sent.
OPEN_BYTES = 32 << 20

GIVEN, DEDUP, FURTHER = 1, 2, 4
_TIMES = struct.Struct(">QQ16s")
_NO_TIME = bytes(8)
SHAPES_KEPT = 65_536

Ids = Literal["new", "ids", "dedup"]


def folder_of(ticket_id: str, version: int) -> str:
    """What names of everything that is staged for a job start with."""
    return f"{ticket_id}-{version}"


def open_stager(ticket: WriteTicket, provider: KeyProvider | None) -> Stager:
    engine = places.opened(ticket.place, provider or EnvironmentKeys(), SystemClock())
    try:
        _check_key(engine, ticket)
    except BaseException:
        engine.server.close()
        raise
    return Stager(ticket, engine)


def _check_key(engine: Engine, ticket: WriteTicket) -> None:
    """What is staged under another key, or none, would be refused, and stay as it is until it is swept."""
    if (engine.seals.active or "") != ticket.key_id:
        raise StorageError(
            f"the store is now written with key {engine.seals.active!r}, and the write began with "
            f"{ticket.key_id!r}: run the job again"
        )


class Stager:
    """`bulk.BulkWriter` for a store on Redis."""

    def __init__(self, ticket: WriteTicket, engine: Engine) -> None:
        self.ticket = ticket
        self._engine = engine

    def stage(
        self,
        txn: Txn,
        partition: int,
        batches: Iterable[pyarrow.RecordBatch],
        set_aside: Callable[[pyarrow.RecordBatch], None] | None = None,
        first_row: int = 0,
    ) -> Staged:
        jobs.check_txn(txn)
        jobs.check_ticket(self.ticket)
        return _Staging(self.ticket, self._engine, txn, partition, set_aside, first_row).run(batches)

    def close(self) -> None:
        self._engine.server.close()

    def __enter__(self) -> Stager:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Shape:
    """What messages share that differ by payload alone: a row before its id, and behind it."""

    __slots__ = ("before", "behind", "refusal")

    def __init__(self, before: bytes, behind: bytes, refusal: str) -> None:
        self.before = before
        self.behind = behind
        self.refusal = refusal


class _Encoder:
    """Messages of one queue as rows of its chunks."""

    def __init__(self, engine: Engine, queue: str, target: Target) -> None:
        self.target = target
        self._engine = engine
        self._queue = queue
        self._known: dict[tuple[Any, int, int], _Shape] = {}
        self._over = target.compress_over_bytes
        self._sealed = engine.seals.active is not None
        #: For sealing alone.
        self._q = Known(queue, target.number, 0, QueueSettings(name=queue), (), None)

    def shape(self, fairness_key: Any, priority: int, weight: int) -> _Shape:
        key = (fairness_key, priority, weight)
        found = self._known.get(key)
        if found is None:
            if len(self._known) > SHAPES_KEPT:  # Where every message has a key of its own.
                self._known.clear()
            found = self._known[key] = self._learned(*key)
        return found

    def _learned(self, fairness_key: Any, priority: int, weight: int) -> _Shape:
        try:
            if fairness_key is NOT_TEXT:
                raise InvalidMessage("fairness_key has bytes that are not UTF-8")
            m = NewMessage(fairness_key=fairness_key, priority=priority, weight=weight)
            check_row(self._queue, self.target, m)
        except ROWS_OWN as error:
            return _Shape(b"", b"", why_not(error))
        head = before_order(priority, weight, 0) + _NO_TIME
        head += after_order(encode_variable((fairness_key, {}, (), None)))
        return _Shape(self._before(0, weight), self._lane(m) + head, "")

    def _before(self, flags: int, weight: int) -> bytes:
        return bytes((flags,)) + weight.to_bytes(2, "big")

    def _lane(self, m: NewMessage) -> bytes:
        level = level_of(DEFAULT_PRIORITY if self.target.fifo else m.priority)
        made = lane(level, m.fairness_key.encode())
        return len(made).to_bytes(2, "big") + made

    def plain(self, shape: _Shape, raw_id: bytes, payload: bytes) -> bytes:
        is_large = self._over is not None and len(payload) > self._over
        if not is_large and not self._sealed:
            return shape.before + raw_id + shape.behind + payload
        at = 2 + int.from_bytes(shape.behind[:2], "big")
        body = shape.behind[at:] + payload
        if is_large:
            body = compact_body(body, len(payload))
        body = self._engine.sealed_body(self._q, raw_id, body)
        return shape.before + raw_id + shape.behind[:at] + body

    def row(self, m: NewMessage, raw_id: bytes) -> bytes:
        """Of a message of any kind."""
        if m.throttle_keys:
            raise Unsupported("throttle_keys", "throttling", WRITER, HAVING["throttling"])
        flags, times = GIVEN if m.id is not None else 0, b""
        if m.delay_s or m.ttl_s is not None or m.dedup_id is not None:
            hashed = bytes(16)
            if m.dedup_id is not None:
                flags |= DEDUP
                secret = self._engine.seals.dedup_secret
                hashed = hashlib.blake2b(m.dedup_id.encode(), digest_size=16, key=secret).digest()
            flags |= FURTHER
            times = _TIMES.pack(_us(m.delay_s), _us(m.ttl_s), hashed)
        body = encode_body(
            Body(m.priority, m.weight, 0, 0, 0, m.fairness_key, m.headers, (), m.dedup_id, m.payload),
            self._over,
        )
        sealed = self._engine.sealed_body(self._q, raw_id, body)
        return self._before(flags, m.weight) + raw_id + self._lane(m) + times + sealed


def _us(seconds: float | None) -> int:
    return 0 if not seconds else max(1, round(seconds * 1_000_000))


class _ChunkWriter:
    """One chunk in the making."""

    def __init__(
        self, engine: Engine, ticket: WriteTicket, queue: str, folder: str, name: str, number: int
    ) -> None:
        self._engine = engine
        self._ticket = ticket
        self._name = name
        self._number = number
        self._keys = (
            engine.keys.staged(queue, f"{folder}:{name}"),
            engine.keys.staged(queue, f"{folder}:chunks"),
        )
        self._rows: list[bytes] = []
        self._sent = self._size = self._largest = 0
        self.pending_bytes = 0
        self._ends: tuple[bytes, bytes] = (b"", b"")
        self._kind: Ids = "new"
        self._timed = 0

    def add(self, row: bytes) -> None:
        size = len(row)
        self._rows.append(row)
        self.pending_bytes += size
        self._size += size
        self._largest = max(self._largest, size)
        if row[0]:
            self._note(row[0])
        raw_id = row[3:19]
        self._ends = (self._ends[0] or raw_id, raw_id)
        if len(self._rows) >= PUSH_ROWS or self.pending_bytes >= PUSH_BYTES:
            self.push()

    def _note(self, flags: int) -> None:
        if flags & DEDUP:
            self._kind = "dedup"
        elif flags & GIVEN and self._kind == "new":
            self._kind = "ids"
        self._timed += bool(flags & FURTHER)

    def fits(self, row: bytes) -> bool:
        """Whether a row may be the next."""
        if not self._size:
            return True
        rows = self._sent + len(self._rows)
        alike = (len(row) > LARGE_BYTES) == (self._largest > LARGE_BYTES)
        return alike and rows < CHUNK_ROWS and self._size < CHUNK_BYTES

    def push(self) -> None:
        """Send what is pending: once, whatever becomes of the answer."""
        if not self._rows:
            return
        self._engine.seals.look()
        _check_key(self._engine, self._ticket)
        sent: list[Arg] = [self._sent, int(STAGED_KEPT_S * 1000), self._name, *self._rows]
        reply = self._engine.server.run(
            self._engine.script("stage"), self._keys, [*self._engine.head(), *sent]
        )
        if reply[0] == CHANGED:
            raise StorageError("what was staged is not there any more: run the job again")
        self._sent += len(self._rows)
        self._rows, self.pending_bytes = [], 0

    def finish(self) -> Chunk:
        self.push()
        return Chunk(
            name=self._name,
            number=self._number,
            rows=self._sent,
            first=self._ends[0],
            last=self._ends[1],
            sizes_bytes=(self._size, self._largest),
            ids=self._kind,
            timed=self._timed,
        )


class _Staging:
    """One partition."""

    def __init__(
        self,
        ticket: WriteTicket,
        engine: Engine,
        txn: Txn,
        partition: int,
        set_aside: Callable[[pyarrow.RecordBatch], None] | None,
        first_row: int,
    ) -> None:
        self._ticket = ticket
        self._engine = engine
        self._partition = partition
        self._rejects = Rejects(partition, set_aside)
        self._id_prefix = jobs.id_prefix(txn, jobs.queue_number(ticket))
        self._low = jobs.first_low(partition)
        self._folder = folder_of(ticket.id, txn.version)
        #: Another one each time that the partition is staged: what a killed task left is nobody's.
        self._attempt = os.urandom(6).hex()
        self._open: dict[str, _ChunkWriter] = {}
        self._encoders: dict[str, _Encoder] = {}
        self._chunks: list[Chunk] = []
        self._made = 0
        self._rows = self._first_row = jobs.checked_row(first_row)

    def run(self, batches: Iterable[pyarrow.RecordBatch]) -> Staged:
        schema: Any = None
        for batch in batches:
            if schema is None or not batch.schema.equals(schema):
                check_schema(batch.schema, one_queue=self._ticket.queue is not None)
                schema = batch.schema
            for part in slices_of(batch, SLICE_ROWS, SLICE_BYTES):
                self._slice(part)
        for queue in list(self._open):
            self._close(queue)
        return Staged(
            partition=self._partition,
            rows=self._rows - self._first_row - self._rejects.count,
            chunks=tuple(self._chunks),
            rejected=self._rejects.count,
            reasons=tuple(self._rejects.reasons),
        )

    def _slice(self, batch: pyarrow.RecordBatch) -> None:
        columns = Columns(batch)
        if self._rows + batch.num_rows > 1 << ROW_BITS:
            raise InvalidMessage(
                f"partition {self._partition} has over {1 << ROW_BITS} rows; use more of them"
            )
        bad: dict[int, str] = {}
        if columns.simple and self._ticket.queue is not None:
            self._add_simple(columns, self._ticket.queue, bad)
        else:
            self._add_each(columns, bad)
        if bad:
            self._rejects.add(batch, self._rows, bad)
        self._rows += batch.num_rows
        if sum(chunk.pending_bytes for chunk in self._open.values()) > OPEN_BYTES:
            for chunk in self._open.values():
                chunk.push()

    def _add_simple(self, columns: Columns, queue: str, bad: dict[int, str]) -> None:
        """Rows that differ by payload and place alone."""
        encoder = self._encoder(queue)
        payload, (shapes, at) = columns.payload(), columns.shapes()
        known, chosen = [encoder.shape(*shape) for shape in shapes], at.tolist()
        refused = any(shape.refusal for shape in known)
        if payload is None or payload.null_count or refused or longest(payload) > MAX_PAYLOAD_BYTES:
            bad.update(refusals(payload, columns.rows, [known[one].refusal for one in chosen]))
            if len(bad) == columns.rows:
                return
        prefix, first = self._id_prefix, self._low + self._rows
        for row, (shape, value) in enumerate(zip(chosen, payload.to_pylist(), strict=True)):
            if row not in bad:
                raw_id = prefix + (first + row).to_bytes(6, "big")
                self._add(queue, encoder, encoder.plain(known[shape], raw_id, value))

    def _add_each(self, columns: Columns, bad: dict[int, str]) -> None:
        one = self._ticket.queue
        for at, (queue, payload, *rest) in enumerate(columns.rows_of(QUEUE, PAYLOAD, *FIELDS)):
            try:
                name = one if one is not None else queue
                encoder = self._encoder(name)
                if payload is None:
                    raise InvalidMessage("payload is null")
                m = message_of(payload, rest)
                check_row(name, encoder.target, m)
                row = self._low + self._rows + at
                raw_id = self._id_prefix + row.to_bytes(6, "big") if m.id is None else parse_new_id(m.id)
                made = encoder.row(m, raw_id)
            except ROWS_OWN as error:
                bad[at] = why_not(error)
                continue
            self._add(name, encoder, made)

    def _encoder(self, queue: Any) -> _Encoder:
        encoder = self._encoders.get(queue)
        if encoder is None:
            target = target_of(self._ticket, queue)
            encoder = self._encoders[queue] = _Encoder(self._engine, queue, target)
        return encoder

    def _add(self, queue: str, encoder: _Encoder, row: bytes) -> None:
        chunk = self._open.get(queue)
        if chunk is not None and not chunk.fits(row):
            self._close(queue)
            chunk = None
        if chunk is None:
            name = f"{self._partition:05}-{self._attempt}-{self._made:04}"
            self._made += 1
            chunk = self._open[queue] = _ChunkWriter(
                self._engine, self._ticket, queue, self._folder, name, encoder.target.number
            )
        chunk.add(row)

    def _close(self, queue: str) -> None:
        self._chunks.append(self._open.pop(queue).finish())


def body_of(row: bytes) -> bytes:
    """The body in a staged row."""
    at = 21 + int.from_bytes(row[19:21], "big")
    return row[at + _TIMES.size if row[0] & FURTHER else at :]


def rows_at_once(chunk: Chunk, most_rows: int, most_bytes: int) -> int:
    """Of a chunk, so many that one script call has neither too many nor too large ones."""
    return max(1, min(most_rows, most_bytes // max(1, chunk.sizes_bytes[1])))
