"""The HTTP status of each error of the library: one table for all interfaces that go by it."""

from __future__ import annotations

from penstock.errors import (
    BackendNotInstalled,
    BackendUnavailable,
    DecryptFailed,
    HistoryTruncated,
    HookError,
    InvalidConfig,
    InvalidMessage,
    KeyMissing,
    MessageLeased,
    MessageNotFound,
    PenstockError,
    QueueAlreadyExists,
    QueueNotFound,
    SnapshotNotFound,
    StaleReceipt,
    StorageCorrupt,
    StorageError,
    StorageFull,
    StoreLocked,
    Unauthorized,
    Unsupported,
)

#: 500 is for what is wrong with the server's own store: no other request would help.
STATUS: dict[type[PenstockError], int] = {
    **dict.fromkeys((InvalidMessage, InvalidConfig, Unsupported, HookError, BackendNotInstalled), 400),
    Unauthorized: 403,
    **dict.fromkeys((QueueNotFound, MessageNotFound, SnapshotNotFound), 404),
    **dict.fromkeys((QueueAlreadyExists, MessageLeased, StaleReceipt, HistoryTruncated), 409),
    **dict.fromkeys((PenstockError, StorageError, StorageCorrupt, DecryptFailed, KeyMissing), 500),
    **dict.fromkeys((BackendUnavailable, StorageFull, StoreLocked), 503),
}


def status_of(error: PenstockError) -> int:
    """A kind that is not in the table goes by its parent."""
    return next(STATUS[kind] for kind in type(error).__mro__ if kind in STATUS)
