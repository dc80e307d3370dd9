"""Jobs of bulk writes: their names, the ids of their rows, and what was staged for them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

from penstock.backends.bulk import Chunk, Staged, Txn, WriteTicket
from penstock.errors import InvalidMessage
from penstock.message import MAX_COUNT, checked_name

#: How long it is known that a job was done: of applications with a name, and of those that were given one.
NAMED_KEPT_S = 30 * 86_400.0
UNNAMED_KEPT_S = 86_400.0
#: Applications whose last job is known; beyond, the oldest are forgotten.
TXNS_KEPT = 10_000
#: Reasons of bad rows that travel with a partition.
REASONS = 5
#: What nobody has committed or added to for so long is thrown away.
STAGED_KEPT_S = 86_400.0

#: Of an id: which partition of its job it is of, and which row of that.
PARTITION_BITS, ROW_BITS = 20, 28
_PREFIX_BYTES = 10
_TICKET_ID = re.compile("[0-9a-f]{32}")


def check_txn(txn: Txn) -> None:
    checked_name(txn.app, "txnAppId")
    version = txn.version
    if isinstance(version, bool) or not isinstance(version, int) or not 0 <= version <= MAX_COUNT:
        raise InvalidMessage(f"txnVersion is {version!r:.40}; accepted: whole numbers from 0 to 2**63 - 1")


def queue_number(ticket: WriteTicket) -> int:
    """The number of the queue that a write is for; 0, which none has, where each row names its own."""
    return 0 if ticket.queue is None else ticket.queues[ticket.queue].number


def id_prefix(txn: Txn, queue: int) -> bytes:
    """The start of every id that a job makes: a UUID of version 8, the same whenever it is tried again."""
    raw = bytearray(
        hashlib.blake2b(
            txn.app.encode() + b"\0" + txn.version.to_bytes(8, "big") + queue.to_bytes(4, "big"),
            digest_size=_PREFIX_BYTES,
            person=b"penstock row",
        ).digest()
    )
    raw[6] = 0x80 | raw[6] & 0x0F
    raw[8] = 0x80 | raw[8] & 0x3F
    return bytes(raw)


def first_low(partition: int) -> int:
    """The last six bytes of the id of a partition's first row, as a number."""
    if not 0 <= partition < 1 << PARTITION_BITS:
        raise InvalidMessage(f"partition {partition}; accepted: 0 to {(1 << PARTITION_BITS) - 1}")
    return partition << ROW_BITS


def checked_row(first_row: int) -> int:
    """The place of a row in its partition."""
    if not 0 <= first_row < 1 << ROW_BITS:
        raise InvalidMessage(f"first_row is {first_row}; accepted: 0 to {(1 << ROW_BITS) - 1}")
    return first_row


def check_ticket(ticket: WriteTicket) -> None:
    if not _TICKET_ID.fullmatch(ticket.id):
        raise InvalidMessage(f"ticket {ticket.id!r:.60} is none that begin_write has given")


def in_order(parts: Sequence[Staged]) -> list[Chunk]:
    """The chunks of a job; no partition may be there twice."""
    seen: set[int] = set()
    for part in parts:
        if part.partition in seen:
            raise InvalidMessage(f"partition {part.partition} was staged twice: commit one of them")
        seen.add(part.partition)
    return [chunk for part in sorted(parts, key=lambda one: one.partition) for chunk in part.chunks]


def joined(parts: Sequence[Staged]) -> Staged:
    """One partition of the results of the calls that have staged it, in the order of its rows."""
    return Staged(
        partition=parts[0].partition,
        rows=sum(part.rows for part in parts),
        chunks=tuple(chunk for part in parts for chunk in part.chunks),
        rejected=sum(part.rejected for part in parts),
        reasons=tuple(reason for part in parts for reason in part.reasons)[:REASONS],
    )


def script_refusal(queue: str, on_enqueue: str | None) -> str:
    """Why nothing can be written to a queue in bulk, if so."""
    if on_enqueue is None:
        return ""
    return (
        f"queue {queue!r} has an on_enqueue script, which a bulk write would pass by; "
        "enqueue instead, or take the script off for the time of the write"
    )
