"""Durable work queues for Python with a choice of storage engine per queue."""

from penstock.clock import Clock, ManualClock, SystemClock
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
    StaleReceipt,
    StorageCorrupt,
    StorageError,
    StorageFull,
    StoreLocked,
    Unauthorized,
    Unsupported,
)
from penstock.event import Entry, Event, Kind
from penstock.journal import Cursor, Journal
from penstock.keyring import KeyProvider
from penstock.message import Delivery, EnqueueResult, Message, NewMessage, Outcome, Page, State
from penstock.penstock import Penstock, open
from penstock.queue import Queue
from penstock.settings import QueueSettings, Retry
from penstock.version import __version__
from penstock.worker import Reject, RetryLater, Worker

__all__ = [
    "BackendNotInstalled",
    "BackendUnavailable",
    "Clock",
    "Cursor",
    "DecryptFailed",
    "Delivery",
    "EnqueueResult",
    "Entry",
    "Event",
    "HistoryTruncated",
    "HookError",
    "InvalidConfig",
    "InvalidMessage",
    "Journal",
    "KeyMissing",
    "KeyProvider",
    "Kind",
    "ManualClock",
    "Message",
    "MessageLeased",
    "MessageNotFound",
    "NewMessage",
    "Outcome",
    "Page",
    "Penstock",
    "PenstockError",
    "Queue",
    "QueueAlreadyExists",
    "QueueNotFound",
    "QueueSettings",
    "Reject",
    "Retry",
    "RetryLater",
    "StaleReceipt",
    "State",
    "StorageCorrupt",
    "StorageError",
    "StorageFull",
    "StoreLocked",
    "SystemClock",
    "Unauthorized",
    "Unsupported",
    "Worker",
    "__version__",
    "open",
]
