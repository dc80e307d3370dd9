"""Rows of bulk writes in the store: jobs under way, how far each is, and which were done."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from penstock.backends.bulk import UNNAMED, Chunk, Txn, Written
from penstock.backends.embedded import keys
from penstock.backends.embedded.engine import Engine, Transaction
from penstock.backends.embedded.keys import Meta
from penstock.backends.embedded.rows import packed, unpacked
from penstock.backends.embedded.staged import ticket_of
from penstock.backends.tables.jobs import NAMED_KEPT_S as NAMED_KEPT_S
from penstock.backends.tables.jobs import TXNS_KEPT as TXNS_KEPT
from penstock.backends.tables.jobs import UNNAMED_KEPT_S as UNNAMED_KEPT_S
from penstock.clock import to_ns

#: Kind and number; what follows in a txn's key is its application.
LOAD_KEY_BYTES = 5


class LoadRow(msgspec.Struct, array_like=True):
    """A job whose commit has begun: what was staged, where, and under which key."""

    app: str
    version: int
    folder: str
    key_id: str
    chunks: list[Chunk]
    rejected: int
    #: The number of the queue that it is for; 0 where each row names its own.
    queue: int

    @property
    def txn(self) -> Txn:
        return Txn(self.app, self.version)

    @property
    def ticket(self) -> str:
        """The id of the ticket under which it was staged."""
        return ticket_of(self.folder)


class LoadProgress(msgspec.Struct, array_like=True):
    """How far a job is: `chunk` chunks are in, and `row` rows of the next.

    With `ingesting`, so many further chunks are being taken in: their tables may be in the store already, and
    nothing else of them is.
    """

    chunk: int = 0
    row: int = 0
    ingesting: int = 0
    enqueued: int = 0
    existing: int = 0


class TxnRow(msgspec.Struct, array_like=True):
    """The last job of an application for a queue, and what it was answered."""

    version: int
    at_ns: int
    enqueued: int
    existing: int
    rejected: int
    #: The id of the ticket under which it was staged.
    ticket: str = "unknown"


_decode_load = msgspec.msgpack.Decoder(LoadRow).decode
_decode_progress = msgspec.msgpack.Decoder(LoadProgress).decode
_decode_txn = msgspec.msgpack.Decoder(TxnRow).decode


def load_key(number: int) -> bytes:
    return keys.meta(Meta.LOAD, keys.u32(number))


def _progress_key(number: int) -> bytes:
    return load_key(number) + b"p"


def _txn_key(app: str, queue: int) -> bytes:
    return keys.meta(Meta.TXN, keys.u32(queue) + app.encode())


def decode_load(raw: bytes) -> LoadRow:
    return unpacked(raw, _decode_load, "load")


def decode_progress(raw: bytes) -> LoadProgress:
    return unpacked(raw, _decode_progress, "load progress")


def decode_txn(raw: bytes) -> TxnRow:
    return unpacked(raw, _decode_txn, "txn")


def loads(engine: Engine) -> Iterator[tuple[int, bytes]]:
    """Number and row of every job under way."""
    prefix = keys.meta(Meta.LOAD)
    for key, raw in engine.kv.scan(engine.meta, prefix, keys.after_prefix(prefix)):
        if len(key) == LOAD_KEY_BYTES:
            yield int.from_bytes(key[1:], "big"), raw


def put_load(txn: Transaction, number: int, load: LoadRow) -> None:
    txn.changed = True
    txn.put(load_key(number), packed(load), txn.engine.meta)


def put_progress(txn: Transaction, number: int, progress: LoadProgress) -> None:
    txn.changed = True
    txn.put(_progress_key(number), packed(progress), txn.engine.meta)


def progress_of(engine: Engine, number: int) -> LoadProgress:
    raw = engine.kv.get(_progress_key(number), engine.meta)
    return LoadProgress() if raw is None else decode_progress(raw)


def load_of(engine: Engine, number: int) -> LoadRow:
    """Of a job that is under way."""
    return decode_load(engine.kv.get(load_key(number), engine.meta) or b"")


def is_under_way(engine: Engine, number: int) -> bool:
    return engine.kv.get(load_key(number), engine.meta) is not None


def drop_load(txn: Transaction, number: int) -> None:
    """As if the job had never begun."""
    txn.changed = True
    txn.delete(load_key(number), txn.engine.meta)
    txn.delete(_progress_key(number), txn.engine.meta)


def end_load(txn: Transaction, number: int, load: LoadRow, progress: LoadProgress) -> None:
    """The job is done: known by application and queue from now on, unless a later one of them is."""
    engine = txn.engine
    drop_load(txn, number)
    known = last_txn(engine, load.app, load.queue)
    if known is None or known.version <= load.version:
        answer = progress.enqueued, progress.existing, load.rejected
        row = TxnRow(load.version, txn.now_ns, *answer, load.ticket)
        txn.put(_txn_key(load.app, load.queue), packed(row), engine.meta)


def last_txn(engine: Engine, app: str, queue: int) -> TxnRow | None:
    raw = engine.kv.get(_txn_key(app, queue), engine.meta)
    return None if raw is None else decode_txn(raw)


def answered(engine: Engine, job: Txn, queue: int, ticket: str) -> Written | None:
    """What a job for a queue is answered that comes with a ticket, if it was done."""
    row = last_txn(engine, job.app, queue)
    if row is None or row.version < job.version:
        return None
    if row.version > job.version:
        return Written(superseded=True)
    return Written(
        enqueued=row.enqueued,
        existing=row.existing,
        rejected=row.rejected,
        again=True,
        by="" if row.ticket == ticket else row.ticket,
    )


def forget_old(engine: Engine) -> int:
    """Jobs that were done long ago, or are too many to know; how many are forgotten."""
    prefix = keys.meta(Meta.TXN)
    with engine.lock, engine.transaction() as txn:
        known = []
        for key, raw in engine.kv.scan(engine.meta, prefix, keys.after_prefix(prefix)):
            kept_s = UNNAMED_KEPT_S if key[LOAD_KEY_BYTES:].startswith(UNNAMED.encode()) else NAMED_KEPT_S
            known.append((decode_txn(raw).at_ns, kept_s, key))
        known.sort(key=lambda one: (one[1] == NAMED_KEPT_S, one[0]))
        old = {key for at_ns, kept_s, key in known if at_ns + to_ns(kept_s) <= txn.now_ns}
        beyond = max(0, len(known) - len(old) - TXNS_KEPT)
        old |= {key for _, _, key in [one for one in known if one[2] not in old][:beyond]}
        for key in old:
            txn.delete(key, engine.meta)
        txn.changed = bool(old)
        return len(old)
