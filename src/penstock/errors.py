"""The error tree: every error says what went wrong, which thing it concerns, and what to do next.

::

    PenstockError                    .retryable: the same call may succeed later
    ├── InvalidConfig                a setting, file or option that cannot be used
    ├── InvalidMessage               a message, name or argument outside the documented limits
    ├── QueueNotFound
    ├── QueueAlreadyExists
    ├── MessageNotFound
    ├── MessageLeased                someone holds the message; it was left unchanged
    ├── StaleReceipt                 the lease is no longer this receipt's; nothing was changed
    ├── HistoryTruncated             retention has removed events that a cursor had not read
    ├── SnapshotNotFound             a snapshot that was released, has run out, or is out of reach
    ├── Unsupported                  a capability that the queue's backend does not have
    ├── BackendNotInstalled          a driver package is missing
    ├── BackendUnavailable           (retryable) the server or store does not answer
    ├── HookError                    a queue's script failed
    ├── Unauthorized
    └── StorageError
        ├── StorageCorrupt           bytes that fail their checksum or do not decode
        │   └── DecryptFailed        a sealed record that does not open, or a key that is not the right one
        ├── StorageFull              (retryable) no room; nothing was changed
        ├── StoreLocked              (retryable) another process owns the store
        └── KeyMissing               an encryption key that records name is not available
"""

from __future__ import annotations

from typing import TypeVar

E = TypeVar("E", bound=BaseException)


class PenstockError(Exception):
    """Root of all errors that Penstock raises on purpose."""

    retryable: bool = False


class InvalidConfig(PenstockError):
    """A setting, file or option that cannot be used."""


class InvalidMessage(PenstockError):
    """A message, name or argument outside the documented limits."""


class QueueNotFound(PenstockError):
    """No queue of that name exists."""

    def __init__(self, name: str) -> None:
        super().__init__(f"queue {name!r} does not exist; create it with create_queue({name!r})")
        self.name = name


class QueueAlreadyExists(PenstockError):
    """A queue of that name exists already."""

    def __init__(self, name: str) -> None:
        super().__init__(f"queue {name!r} exists already; change it with update_queue({name!r}, …)")
        self.name = name


class MessageNotFound(PenstockError):
    """The id was never enqueued here, or its message has been removed."""

    def __init__(self, message_id: str, queue: str) -> None:
        super().__init__(f"message {message_id} is not in queue {queue!r}: never enqueued, or removed since")
        self.message_id = message_id
        self.queue = queue


class MessageLeased(PenstockError):
    """A consumer holds the message, so it was left unchanged."""

    def __init__(self, message_id: str, queue: str) -> None:
        super().__init__(
            f"message {message_id} of queue {queue!r} is leased; try again when its lease has ended"
        )
        self.message_id = message_id
        self.queue = queue


class StaleReceipt(PenstockError):
    """The lease that this receipt names is over: nothing was changed."""

    def __init__(self, receipt: str) -> None:
        super().__init__(
            f"receipt {receipt!r} no longer holds its message (released, taken again or finished); "
            "drop the work and lease again"
        )
        self.receipt = receipt


class HistoryTruncated(PenstockError):
    """Retention removed events before this reader had read them."""

    def __init__(self, reader: str, position: int, first_seq: int) -> None:
        super().__init__(
            f"{reader} stands at {position}, but the journal now starts at {first_seq}: "
            f"commit({first_seq - 1}) accepts the gap; a cursor with required=True prevents it"
        )
        self.position = position
        self.first_seq = first_seq


class SnapshotNotFound(PenstockError):
    """A snapshot was released, ran out, or is in a place that this process cannot reach."""


class Unsupported(PenstockError):
    """The queue's backend lacks the capability that the call or setting needs."""

    def __init__(self, what: str, flag: str, backend: str, having: tuple[str, ...] = ()) -> None:
        where = f"backends that have it: {', '.join(having)}" if having else "no backend has it yet"
        super().__init__(f"{what} needs the capability {flag!r}, which {backend} lacks; {where}")
        self.flag = flag
        self.backend = backend
        self.having = having


class BackendNotInstalled(PenstockError):
    """A backend's driver package is not installed."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"{package} is not installed; pip install 'penstock[{extra}]'")
        self.package = package
        self.extra = extra


class BackendUnavailable(PenstockError):
    """The store or server cannot answer now."""

    retryable = True


class HookError(PenstockError):
    """A queue's script failed or was stopped."""


class Unauthorized(PenstockError):
    """The credentials do not allow the call."""


class StorageError(PenstockError):
    """The storage engine failed."""


class StorageCorrupt(StorageError):
    """Stored bytes fail their checksum or do not decode."""


class StorageFull(StorageError):
    """No room to write; nothing of the failed call was kept."""

    retryable = True


class StoreLocked(StorageError):
    """Another process owns the store."""

    retryable = True


class KeyMissing(StorageError):
    """An encryption key that stored records name is not available."""


class DecryptFailed(StorageCorrupt):
    """A sealed record does not open, or a key is not the one that the store was written with."""


def is_of_the_store(error: BaseException) -> bool:
    """Whether everything else would meet it as well: damage concerns what is damaged alone."""
    return isinstance(error, StorageError) and not isinstance(error, StorageCorrupt)


def as_answer(error: E) -> E:
    """A raised error that becomes an item's answer: its traceback would keep the whole call alive."""
    error.__cause__ = error.__context__ = None
    return error.with_traceback(None)
