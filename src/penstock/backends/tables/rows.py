"""Rows of a bulk write: as messages, checked as `enqueue` checks them, or set aside with a reason."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from penstock.backends.bulk import Target, WriteTicket
from penstock.backends.tables.incoming import NOT_TEXT, arrow, arrow_compute
from penstock.backends.tables.jobs import REASONS
from penstock.codec.body import check_message
from penstock.errors import InvalidMessage, PenstockError, QueueNotFound
from penstock.message import DEFAULT_PRIORITY, MAX_PAYLOAD_BYTES, NewMessage

if TYPE_CHECKING:
    import pyarrow

#: Columns in front of those of a row that was set aside.
ROW, REASON = "row", "reason"

#: Of a message, besides the payload; those of one that is nothing special first.
FIELDS = (
    "headers",
    "fairness_key",
    "weight",
    "priority",
    "throttle_keys",
    "delay_s",
    "ttl_s",
    "dedup_id",
    "id",
)
PLAIN_FIELDS = 4
NONE_OF_THEM = [None] * (len(FIELDS) - PLAIN_FIELDS)

#: What a row may be refused by.
ROWS_OWN = (PenstockError, UnicodeEncodeError, TypeError, ValueError, OverflowError)

SetAside = Callable[["pyarrow.RecordBatch"], None]


def slices_of(batch: pyarrow.RecordBatch, rows: int, size_bytes: int) -> Iterator[pyarrow.RecordBatch]:
    """Parts of so many rows, or bytes, at most: enough for columns to pay, little beside a batch."""
    step = max(1, min(rows, size_bytes * batch.num_rows // max(1, batch.nbytes)))
    for at in range(0, batch.num_rows, step):
        yield batch.slice(at, step)


def target_of(ticket: WriteTicket, queue: Any) -> Target:
    """What a row says that it is for; refused if nothing can be written to it."""
    if queue is None or queue is NOT_TEXT:
        raise InvalidMessage("queue is null" if queue is None else "queue has bytes that are not UTF-8")
    target = ticket.queues.get(queue)
    if target is None:
        raise QueueNotFound(queue)
    if target.refusal:
        raise InvalidMessage(target.refusal)
    return target


def message_of(payload: bytes, values: Sequence[Any]) -> NewMessage:
    """One of any kind, of its `FIELDS`."""
    given = {name: value for name, value in zip(FIELDS, values, strict=True) if value is not None}
    for name, value in given.items():
        if value is NOT_TEXT:
            raise InvalidMessage(f"{name} has bytes that are not UTF-8")
    return NewMessage(payload=payload, **given)


def check_row(queue: str, target: Target, m: NewMessage) -> None:
    check_message(m)
    if target.fifo and (m.delay_s or m.priority != DEFAULT_PRIORITY):
        raise InvalidMessage(
            f"queue {queue!r} is fifo: a message's own delay_s or priority would break its order"
        )


def why_not(error: Exception) -> str:
    """Why a row was refused."""
    return str(error) if isinstance(error, PenstockError) else f"cannot be stored: {error!s:.200}"


class Rejects:
    """What is set aside of one partition."""

    def __init__(self, partition: int, set_aside: SetAside | None) -> None:
        self._partition = partition
        self._set_aside = set_aside
        self.count = 0
        self.reasons: list[str] = []

    def add(self, batch: pyarrow.RecordBatch, first: int, bad: dict[int, str]) -> None:
        """Rows of a batch, by their places in it; `first` is that of its first in the partition."""
        self.count += len(bad)
        for at, reason in list(bad.items())[: REASONS - len(self.reasons)]:
            self.reasons.append(f"partition {self._partition}, row {first + at}: {reason}")
        if self._set_aside is None:
            return
        pa = arrow()
        taken = batch.take(pa.array(list(bad), pa.int64()))
        front = [
            pa.array([first + at for at in bad], pa.int64()),
            pa.array([_shown(reason) for reason in bad.values()], pa.string()),
        ]
        names = [ROW, REASON, *batch.schema.names]
        self._set_aside(pa.RecordBatch.from_arrays([*front, *taken.columns], names=names))


def _shown(reason: str) -> str:
    """Names in it may have had what no text has."""
    return reason.encode("utf-8", "backslashreplace").decode()


def longest(payload: Any) -> int:
    compute = arrow_compute()
    return int(compute.max(compute.binary_length(payload)).as_py())


def refusals(payload: Any, rows: int, refused: list[str]) -> dict[int, str]:
    """By row, what is wrong with it."""
    sizes = [None] * rows if payload is None else arrow_compute().binary_length(payload).to_pylist()
    bad: dict[int, str] = {}
    for row, (size, refusal) in enumerate(zip(sizes, refused, strict=True)):
        if size is None:
            bad[row] = "payload is null"
        elif size > MAX_PAYLOAD_BYTES:
            bad[row] = f"payload has {size} bytes; the limit is {MAX_PAYLOAD_BYTES} (64 MiB)"
        elif refusal:
            bad[row] = refusal
    return bad
