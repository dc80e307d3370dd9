"""Staging: rows of a bulk write, checked as `enqueue` checks them, become chunks on disk."""

from __future__ import annotations

import hmac
import os
import socket
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from types import TracebackType
from typing import TYPE_CHECKING, Any

from penstock.backends.bulk import Chunk, Staged, Txn, WriteTicket
from penstock.backends.embedded import staged
from penstock.backends.embedded.chunks import ChunkWriter, Ids
from penstock.backends.embedded.encoder import Encoder
from penstock.backends.embedded.rows import encode_ready
from penstock.backends.embedded.staged import Waiting
from penstock.backends.tables import jobs
from penstock.backends.tables.incoming import PAYLOAD, QUEUE, Columns, check_schema
from penstock.backends.tables.jobs import ROW_BITS
from penstock.backends.tables.rows import (
    FIELDS,
    NONE_OF_THEM,
    PLAIN_FIELDS,
    Rejects,
    longest,
    refusals,
    slices_of,
    target_of,
    why_not,
)
from penstock.backends.unlocking import needed_key
from penstock.clock import to_ns
from penstock.codec.sealed import place_of
from penstock.codec.vault import Seal
from penstock.errors import (
    DecryptFailed,
    InvalidMessage,
    PenstockError,
    StorageError,
)
from penstock.keyring import EnvironmentKeys, KeyProvider, variable
from penstock.message import MAX_PAYLOAD_BYTES, NewMessage, parse_new_id

if TYPE_CHECKING:
    import pyarrow

#: Rows that are looked at together, and bytes of them: enough for columns to pay, little beside a batch.
SLICE_ROWS = 16_384
SLICE_BYTES = 8 << 20
#: Tables that are written at a time, each a file, and what may be in memory of all open chunks.
OPEN_TABLES = 64
OPEN_BYTES = 64 << 20


def open_stager(ticket: WriteTicket, provider: KeyProvider | None) -> Stager:
    if not os.path.isdir(ticket.place):
        raise StorageError(
            f"{ticket.place}, the folder of the store, cannot be seen from {socket.gethostname()}: run tasks "
            "where it can, on the store's own machine or with a folder that all of them share"
        )
    return Stager(ticket, provider or EnvironmentKeys())


class Stager:
    """`bulk.BulkWriter` for an embedded store."""

    def __init__(self, ticket: WriteTicket, provider: KeyProvider) -> None:
        self.ticket = ticket
        self._seal = _sealer(ticket, provider)

    def stage(
        self,
        txn: Txn,
        partition: int,
        batches: Iterable[pyarrow.RecordBatch],
        set_aside: Callable[[pyarrow.RecordBatch], None] | None = None,
        first_row: int = 0,
    ) -> Staged:
        jobs.check_txn(txn)
        return _Staging(self.ticket, self._seal, txn, partition, set_aside, first_row).run(batches)

    def close(self) -> None:
        self._seal = None

    def __enter__(self) -> Stager:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _sealer(ticket: WriteTicket, provider: KeyProvider) -> Seal | None:
    """What seals bodies, where the store is encrypted: with its own key, or not at all."""
    if not ticket.key_id:
        return None
    from penstock.codec.vault import Vault, verifier

    key = needed_key(provider, ticket.key_id, f"staging for the store in {ticket.place}")
    if not hmac.compare_digest(verifier(key), ticket.verifier):
        raise DecryptFailed(
            f"key {ticket.key_id!r} is not the one that the store in {ticket.place} is written with; "
            f"put the right one into {variable(ticket.key_id)}, or where else its keys come from"
        )
    return Vault({ticket.key_id: key}, ticket.key_id).sealer(place_of("messages"))


class _Staging:
    """One partition."""

    def __init__(
        self,
        ticket: WriteTicket,
        seal: Seal | None,
        txn: Txn,
        partition: int,
        set_aside: Callable[[pyarrow.RecordBatch], None] | None,
        first_row: int,
    ) -> None:
        self._ticket = ticket
        self._seal = seal
        self._partition = partition
        self._rejects = Rejects(partition, set_aside)
        self._id_prefix = jobs.id_prefix(txn, jobs.queue_number(ticket))
        self._low = jobs.first_low(partition)
        self._folder = staged.staging(ticket.place) / staged.folder_of(ticket, txn)
        #: Another one each time that the partition is staged: what a killed task left is nobody's.
        self._attempt = os.urandom(6).hex()
        self._open: dict[tuple[str, Ids], ChunkWriter] = {}
        self._chunks: list[Chunk] = []
        self._syncs: deque[Future[None]] = deque()
        self._made = 0
        self._encoders: dict[str, Encoder] = {}
        self._rows = self._first_row = jobs.checked_row(first_row)
        self._schema: Any = None
        #: Where rows bring their ids, these do not say their order: then each has its own place in line.
        self._has_ids = False

    def run(self, batches: Iterable[pyarrow.RecordBatch]) -> Staged:
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="penstock-sync") as syncer:
            try:
                self._stage(batches, syncer)
                for sync in self._syncs:
                    sync.result()
            finally:
                syncer.shutdown(wait=False, cancel_futures=True)
                for chunk in self._open.values():
                    chunk.close()
        if self._chunks:
            staged.sync_all((self._folder, self._folder.parent, self._folder.parent.parent))
        return Staged(
            partition=self._partition,
            rows=self._rows - self._first_row - self._rejects.count,
            chunks=tuple(self._chunks),
            rejected=self._rejects.count,
            reasons=tuple(self._rejects.reasons),
        )

    def _stage(self, batches: Iterable[pyarrow.RecordBatch], syncer: Executor) -> None:
        self._syncer = syncer
        for batch in batches:
            if self._schema is None or not batch.schema.equals(self._schema):
                check_schema(batch.schema, one_queue=self._ticket.queue is not None)
                self._schema = batch.schema
                self._has_ids = self._has_ids or "id" in batch.schema.names
            for part in slices_of(batch, SLICE_ROWS, SLICE_BYTES):
                self._slice(part)
        self._close_all()

    def _slice(self, batch: pyarrow.RecordBatch) -> None:
        columns = Columns(batch)
        if self._rows + batch.num_rows > 1 << ROW_BITS:
            raise InvalidMessage(
                f"partition {self._partition} has over {1 << ROW_BITS} rows; use more of them"
            )
        bad: dict[int, str] = {}
        if columns.simple and self._ticket.queue is not None and not self._has_ids:
            self._add_simple(columns, self._encoder(self._ticket.queue), bad)
        else:
            self._add_each(columns, bad)
        if bad:
            self._rejects.add(batch, self._rows, bad)
        self._rows += batch.num_rows
        for at, chunk in list(self._open.items()):
            chunk.flush()
            if chunk.full:
                self._close(at)
        self._make_room()

    # -- rows that differ by payload and place alone ------------------------------------------------

    def _add_simple(self, columns: Columns, encoder: Encoder, bad: dict[int, str]) -> None:
        import numpy as np

        payload, (shapes, at) = columns.payload(), columns.shapes()
        entries = encoder.entries(shapes)
        good = None
        if (
            payload is None
            or payload.null_count
            or encoder.has_refused
            or longest(payload) > MAX_PAYLOAD_BYTES
        ):
            bad.update(refusals(payload, columns.rows, [entries[one].refusal for one in at.tolist()]))
            good = np.array([row for row in range(columns.rows) if row not in bad], np.int64)
            if not len(good):
                return
            payload, at = payload.take(good), at[good]
        ids = self._ids(columns.rows, good)
        bodies = encoder.bodies(entries, at, payload)
        places = [entry.place for entry in entries]
        self._chunk(encoder.queue, "new").add_run(ids, bodies, encoder.order_ns, places, at)

    def _ids(self, rows: int, good: Any) -> Any:
        """The ids of so many rows from here on, or of the good ones of them, as a table of bytes."""
        import numpy as np

        first = self._low + self._rows
        numbers = np.arange(first, first + rows, dtype=np.uint64)
        if good is not None:
            numbers = numbers[good]
        prefix = self._id_prefix
        words = np.empty((len(numbers), 2), ">u8")
        words[:, 0] = int.from_bytes(prefix[:8], "big")
        words[:, 1] = numbers | np.uint64(int.from_bytes(prefix[8:], "big") << 48)
        return words.view(np.uint8)

    # -- any rows -----------------------------------------------------------------------------------

    def _add_each(self, columns: Columns, bad: dict[int, str]) -> None:
        one = self._ticket.queue
        encoder = None if one is None else self._encoder(one)
        for at, (queue, payload, *rest) in enumerate(columns.rows_of(QUEUE, PAYLOAD, *FIELDS)):
            try:
                if one is None:
                    encoder = self._encoder(queue)
                assert encoder is not None
                if payload is None:
                    raise InvalidMessage("payload is null")
                if rest[PLAIN_FIELDS:] == NONE_OF_THEM and not self._has_ids:
                    self._add_with_headers(encoder, payload, rest, self._rows + at)
                else:
                    self._add(encoder, encoder.message(payload, rest), self._rows + at)
            except (PenstockError, UnicodeEncodeError, TypeError, ValueError, OverflowError) as error:
                bad[at] = why_not(error)

    def _add_with_headers(self, encoder: Encoder, payload: bytes, values: list[Any], row: int) -> None:
        """A message that waits for nothing, and whose id is the job's own: most that are not simple."""
        body, place = encoder.body_with_headers(payload, values)
        raw_id = self._id_prefix + (self._low + row).to_bytes(6, "big")
        self._chunk(encoder.queue, "new").add(raw_id, body, place, encoder.order_ns)

    def _add(self, encoder: Encoder, m: NewMessage, row: int) -> None:
        if m.id is None:
            raw_id = self._id_prefix + (self._low + row).to_bytes(6, "big")
        else:
            raw_id = parse_new_id(m.id)
        kind: Ids = "dedup" if m.dedup_id is not None else "new" if m.id is None else "ids"
        at_ns = self._ticket.at_ns
        order_ns = encoder.order_ns
        if self._has_ids:
            order_ns += (self._partition << 20) + row
        visible_at_ns = at_ns + to_ns(m.delay_s)
        delayed = visible_at_ns > at_ns
        expires_at_ns = 0 if m.ttl_s is None else at_ns + to_ns(m.ttl_s)
        body, lane = encoder.body(m, visible_at_ns if delayed else order_ns, expires_at_ns, placed=delayed)
        chunk = self._chunk(encoder.queue, kind)
        if kind == "dedup" and chunk.holds(raw_id):  # The first may come to nothing, and this one not.
            self._close((encoder.queue, kind))
            chunk = self._chunk(encoder.queue, kind)
        if delayed:
            waiting = Waiting(chunk.rows, visible_at_ns, expires_at_ns, m.weight, lane)
            chunk.add_delayed(raw_id, body, waiting)
            return
        value = encode_ready(m.weight, 0, expires_at_ns, has_row=False)
        if chunk.add(raw_id, body, (lane, value), order_ns) and expires_at_ns:
            chunk.note_expiry(expires_at_ns)

    def _encoder(self, queue: Any) -> Encoder:
        encoder = self._encoders.get(queue)
        if encoder is None:
            target = target_of(self._ticket, queue)
            encoder = self._encoders[queue] = Encoder(queue, target, self._ticket.at_ns)
        return encoder

    # -- chunks -------------------------------------------------------------------------------------

    def _chunk(self, queue: str, kind: Ids) -> ChunkWriter:
        chunk = self._open.get((queue, kind))
        if chunk is None:
            staged.make_folder(self._folder)
            name = f"{self._partition:05}-{self._attempt}-{self._made:04}"
            self._made += 1
            number, compress = self._ticket.queues[queue].number, self._ticket.mode == "low_space"
            chunk = self._open[queue, kind] = ChunkWriter(
                self._folder, name, number, kind, self._seal, compress=compress
            )
        return chunk

    def _close(self, at: tuple[str, Ids]) -> None:
        chunk = self._open.pop(at)
        if chunk.rows:
            done = chunk.finish()
            self._chunks.append(done)
            # The disk works while the next chunk is made.
            files = staged.files_of(self._folder, done)
            self._syncs.append(self._syncer.submit(staged.sync_all, files))
            while self._syncs and self._syncs[0].done():
                self._syncs.popleft().result()

    def _make_room(self) -> None:
        """The largest chunks first: what is closed should be worth a file."""
        tables = [at for at, chunk in self._open.items() if chunk.is_table]
        tables.sort(key=lambda at: -self._open[at].size_bytes)
        for at in tables[: max(0, len(tables) - OPEN_TABLES)]:
            self._close(at)
        sizes = {at: chunk.memory_bytes for at, chunk in self._open.items()}
        total = sum(sizes.values())
        for at in sorted(sizes, key=lambda at: -sizes[at]):
            if total <= OPEN_BYTES:
                break
            self._close(at)
            total -= sizes[at]

    def _close_all(self) -> None:
        for at in list(self._open):
            self._close(at)
