"""What SQS accepts in numbers, names and texts, and how it says so."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Protocol, TypeVar

from penstock.errors import (
    HookError,
    InvalidConfig,
    InvalidMessage,
    PenstockError,
    QueueNotFound,
    Unsupported,
)
from penstock.server.sqs import shapes
from penstock.server.sqs.errors import SqsError

MOST_ENTRIES = 10
MAX_MESSAGE_BYTES = 2**20
MAX_VISIBILITY_S = 12 * 60 * 60
MAX_DELAY_S = 15 * 60
MAX_WAIT_S = 20

_ENTRY_ID = re.compile(r"[A-Za-z0-9_-]{1,80}")
#: Characters that XML cannot have, and SQS therefore does not take.
_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class _WithId(Protocol):
    id: str


T = TypeVar("T", bound=_WithId)


def invalid(parameter: str, value: object, reason: str) -> SqsError:
    shown = f"{value!s:.80}"
    return SqsError(
        "InvalidParameterValue", f"Value {shown} for parameter {parameter} is invalid. Reason: {reason}"
    )


def missing(parameter: str) -> SqsError:
    return SqsError("MissingParameter", f"The request must contain the parameter {parameter}.")


def check_range(parameter: str, value: int | None, low: int, high: int) -> None:
    if value is not None and not low <= value <= high:
        raise invalid(parameter, value, f"Must be between {low} and {high}, if provided.")


def has_forbidden(text: str) -> bool:
    """Whether it has characters that SQS refuses."""
    return _FORBIDDEN.search(text) is not None


def check_entries(entries: Sequence[T], action: str) -> None:
    """What is wrong with a batch as a whole, before any of its entries counts."""
    if not entries:
        raise SqsError(
            "EmptyBatchRequest", f"There should be at least one {action}RequestEntry in the request."
        )
    if len(entries) > MOST_ENTRIES:
        raise SqsError(
            "TooManyEntriesInBatchRequest",
            f"Maximum number of entries per request are {MOST_ENTRIES}. You have sent {len(entries)}.",
        )
    seen: set[str] = set()
    for entry in entries:
        if not _ENTRY_ID.fullmatch(entry.id):
            raise SqsError(
                "InvalidBatchEntryId",
                "A batch entry id can only contain alphanumeric characters, hyphens and underscores."
                " It can be at most 80 letters long.",
            )
        if entry.id in seen:
            raise SqsError("BatchEntryIdsNotDistinct", f"Id {entry.id} repeated.")
        seen.add(entry.id)


def failed(entry_id: str, error: SqsError) -> shapes.FailedEntry:
    return shapes.FailedEntry(
        id=entry_id, code=error.code, sender_fault=error.by_sender, message=error.message
    )


def as_sqs(error: PenstockError) -> SqsError:
    """Penstock's errors as SQS tells them. What is the store's own is told to nobody outside."""
    if isinstance(error, QueueNotFound):
        return SqsError("QueueDoesNotExist", "The specified queue does not exist.")
    # What a queue's script does not let in is told in the script's words, which are for senders.
    if isinstance(error, InvalidMessage | InvalidConfig | HookError):
        return SqsError("InvalidParameterValue", str(error))
    if isinstance(error, Unsupported):
        return SqsError("UnsupportedOperation", str(error))
    if error.retryable:
        return SqsError("ServiceUnavailable", "The store does not answer now; try again later.")
    return SqsError("InternalError", "The store failed.")
