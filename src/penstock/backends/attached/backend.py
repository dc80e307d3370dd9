"""The backend contract over a connection to the store's owner; when that goes, another is found or become."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import threading
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple, TypeVar, cast

from penstock.backends.attached import place, wire
from penstock.backends.attached.line import Line, answer, encoded
from penstock.backends.attached.listener import Answerer
from penstock.backends.attached.place import LOOK_EVERY_S, PATIENCE_S
from penstock.backends.attached.wire import Gone, Unreadable
from penstock.backends.base import (
    BackendHealth,
    BackendInfo,
    BackendMetrics,
    CheckReport,
    CursorInfo,
    KeyStats,
    Progress,
    QuarantineItem,
    QueueBackend,
    QueueStats,
    RekeyReport,
    Throttle,
)
from penstock.backends.bulk import (
    SNAPSHOT_LIFETIME_S,
    Snapshot,
    Staged,
    StoredMessage,
    Txn,
    WriteTicket,
    Written,
)
from penstock.codec.body import check_message
from penstock.codec.entry import check_entry
from penstock.errors import BackendUnavailable, InvalidMessage, PenstockError, StorageError, as_answer
from penstock.event import Entry, Event
from penstock.message import (
    MAX_PAYLOAD_BYTES,
    Delivery,
    DueItem,
    EnqueueResult,
    Message,
    NewMessage,
    Outcome,
    Page,
    parse_id,
    parse_new_id,
)
from penstock.settings import QueueSettings

log = logging.getLogger("penstock")

T = TypeVar("T")
R = TypeVar("R")

#: The pause of a process that could not become the owner: others have their turn.
AFTER_REFUSAL_S = 0.1
#: How often the same owner may hang up on the same call.
MOST_HANG_UPS = 10


class Owned(NamedTuple):
    """What an owner has: the store, and what answers the calls that were on their way to the last one."""

    backend: QueueBackend
    answerer: Answerer


#: Become the folder's owner; None while another is.
Own = Callable[[], Owned | None]


class AttachedBackend:
    """A store that another process owns, for as long as it does. Safe to call from any thread."""

    def __init__(
        self, folder: str, own: Own, welcome: wire.Welcome, watch: Line, closed: threading.Event
    ) -> None:
        self.name = welcome.name
        self.capabilities = welcome.capabilities
        self._folder = folder
        self._own = own
        self._owner_pid = welcome.pid
        self._pid = os.getpid()
        #: Held for the whole of a take-over; again by a signal handler that comes in the middle of it.
        self._lock = threading.RLock()
        self._free: list[Line] = []
        self._busy: set[Line] = set()
        self._owned: Owned | None = None
        self._closed = closed
        self._watch = watch
        self._watcher = threading.Thread(target=self._watch_owner, name="penstock-attached", daemon=True)
        self._watcher.start()
        log.info("attached path=%s owner=%d", folder, welcome.pid)

    # -- calling --------------------------------------------------------------------------------

    def _call(
        self, method: str, *args: Any, progress: Progress | None = None, kwargs: dict[str, Any] | None = None
    ) -> Any:
        owned = self._owned
        if owned is not None:
            more = {} if progress is None else {"progress": progress}
            return getattr(owned.backend, method)(*args, **(kwargs or {}), **more)
        self._check_usable()
        line = self._borrow()
        self._busy.add(line)
        try:
            line.number += 1
            line.hang_ups = 0
            request = encoded(line.number, method, args, kwargs or {}, progress is not None)
            while True:
                try:
                    return answer(method, line.ask(self._folder, request, progress))
                except Gone:
                    self._hung_up(line, method)
                    owned = self._find_owner()
                if owned is not None:
                    call = wire.decode_request(request)
                    report = progress or (lambda *_: None)
                    return owned.answerer.answer(line.caller, call, True, lambda: True, report)
        finally:
            self._busy.discard(line)
            self._give_back(line)

    def _borrow(self) -> Line:
        try:
            return self._free.pop()
        except IndexError:
            return Line(self._closed)

    def _give_back(self, line: Line) -> None:
        """Not one on which a reply is still to come: it must not be taken for another's."""
        if line.asking or self._closed.is_set():
            line.hang_up()
        else:
            self._free.append(line)

    def _hung_up(self, line: Line, method: str) -> None:
        """An owner that goes does so once; one that stays, and hangs up each time, is not asked for ever."""
        line.hang_up()
        line.hang_ups += 1
        if line.hang_ups > MOST_HANG_UPS:
            raise BackendUnavailable(
                f"the owner of the store in {self._folder}, process {line.owner_pid}, hangs up on {method}; "
                "its log may say why"
            )
        if line.hang_ups > 1:
            self._closed.wait(LOOK_EVERY_S * line.hang_ups)

    def _check_usable(self) -> None:
        if self._pid != os.getpid():
            raise StorageError(f"the store was opened in process {self._pid}; open it anew in this one")
        if self._closed.is_set():
            raise StorageError("the store has stopped: it was closed; reopen it")

    # -- owners come and go ---------------------------------------------------------------------

    def _find_owner(self) -> Owned | None:
        """Returns once there is an owner again: this process, then what it owns, or another, then None."""
        refusal: StorageError | None = None
        until_s = time.monotonic() + PATIENCE_S
        while True:
            self._check_usable()
            if self._owned is not None:
                return self._owned
            with contextlib.suppress(OSError):
                place.connect(self._folder).close()
                return None
            try:
                if (owned := self._take_over()) is not None:
                    return owned
            except StorageError as error:
                # The last owner, just ending, has the lock; or this process may not, and another may.
                refusal = as_answer(error)
            if time.monotonic() >= until_s:
                raise refusal or BackendUnavailable(self._nobody())
            self._closed.wait(LOOK_EVERY_S if refusal is None else AFTER_REFUSAL_S)

    def _take_over(self) -> Owned | None:
        with self._lock:
            if self._owned is None:
                self._check_usable()
                self._owned = self._own()
                if self._owned is not None:
                    log.info("took over path=%s from=%d", self._folder, self._owner_pid)
            if self._owned is not None and self._closed.is_set():
                self._owned.backend.close()  # By a signal handler of this very thread, say.
            return self._owned

    def _nobody(self) -> str:
        if place.forked_from_owner(self._folder):
            return (
                f"the owner of the store in {self._folder} has gone, and this process, forked from it, "
                "cannot take its place: start processes by spawn"
            )
        return f"nobody answers for the store in {self._folder}, yet its lock is held; try again"

    def _watch_owner(self) -> None:
        """The store is never long without an owner, though nobody calls: leases end, time passes."""
        try:
            while not self._closed.is_set():
                self._watch.wait_for_end()
                self._watch.hang_up()
                if self._closed.is_set() or self._owns_or_watches():
                    return
        finally:
            self._watch.hang_up()

    def _owns_or_watches(self) -> bool:
        """Whether this process is the owner now; if another is, that one is watched."""
        try:
            if self._find_owner() is not None:
                return True
            self._owner_pid = self._watch.connect(self._folder).pid
        except (Gone, OSError):
            pass
        except PenstockError as error:
            if not self._closed.is_set():
                log.error("the store in %s has no owner: %s", self._folder, error)
            self._closed.wait(1.0)
        return False

    def close(self) -> None:
        if self._closed.is_set() or self._pid != os.getpid():
            return
        self._closed.set()
        for line in (self._watch, *self._busy):
            line.cut()
        if self._lock._is_owned():  # type: ignore[attr-defined]
            return  # A signal handler in the middle of a take-over, which closes what it opens.
        self._watcher.join()
        with self._lock:
            while self._free:
                self._free.pop().hang_up()
        if self._owned is not None:
            self._owned.backend.close()

    def info(self) -> BackendInfo:
        return cast(BackendInfo, self._call("info"))

    # -- the contract ---------------------------------------------------------------------------

    def create_queue(self, settings: QueueSettings) -> None:
        self._call("create_queue", settings)

    def update_queue(self, settings: QueueSettings, was: QueueSettings) -> bool:
        return cast(bool, self._call("update_queue", settings, was))

    def delete_queue(self, name: str) -> None:
        self._call("delete_queue", name)

    def replace_queues(self, settings: Sequence[QueueSettings]) -> None:
        self._call("replace_queues", settings)

    def queues(self) -> list[QueueSettings]:
        return cast("list[QueueSettings]", self._call("queues"))

    def queue(self, name: str) -> QueueSettings | None:
        return cast("QueueSettings | None", self._call("queue", name))

    def enqueue(self, queue: str, messages: Sequence[NewMessage]) -> list[EnqueueResult]:
        return self._send_messages("enqueue", queue, messages)

    def upsert(self, queue: str, messages: Sequence[NewMessage]) -> list[EnqueueResult]:
        return self._send_messages("upsert", queue, messages)

    def _send_messages(self, method: str, queue: str, messages: Sequence[NewMessage]) -> list[EnqueueResult]:
        """Looks at each of them only where some are not what they should be: the owner checks them all."""
        if all(_is_plain(m) for m in messages):
            try:
                return cast("list[EnqueueResult]", self._call(method, queue, messages))
            except Unreadable:
                pass
        ask = functools.partial(self._call, method, queue)
        return _sifted(messages, _check_new, ask, lambda error: EnqueueResult(None, error))

    def lease(
        self, queue: str, max_messages: int, lease_s: float | None, wait_s: float, consumer: str
    ) -> list[Delivery]:
        answer = self._call("lease", queue, max_messages, lease_s, wait_s, consumer)
        return cast("list[Delivery]", answer)

    def ack(self, queue: str, receipts: Sequence[str]) -> list[Outcome]:
        return cast("list[Outcome]", self._call("ack", queue, receipts))

    def nack(self, queue: str, receipts: Sequence[str], delay_s: float | None, reason: str) -> list[Outcome]:
        return cast("list[Outcome]", self._call("nack", queue, receipts, delay_s, reason))

    def reject(self, queue: str, receipts: Sequence[str], reason: str) -> list[Outcome]:
        return cast("list[Outcome]", self._call("reject", queue, receipts, reason))

    def extend(self, queue: str, receipts: Sequence[str], lease_s: float) -> list[Outcome]:
        return cast("list[Outcome]", self._call("extend", queue, receipts, lease_s))

    def move(self, queue: str, ids: Sequence[str], target: str) -> list[Outcome]:
        def ask(valid: list[str]) -> list[Outcome]:
            return cast("list[Outcome]", self._call("move", queue, valid, target))

        return _sifted(ids, parse_id, ask, Outcome)

    def redrive(self, queue: str, limit: int, target: str | None) -> int:
        return cast(int, self._call("redrive", queue, limit, target))

    def purge(self, queue: str, states: Collection[str]) -> int:
        return cast(int, self._call("purge", queue, list(states)))

    def get_many(self, queue: str, ids: Sequence[str]) -> list[Message | None]:
        return cast("list[Message | None]", self._call("get_many", queue, ids))

    def peek(self, queue: str, limit: int, offset: int) -> list[Message]:
        return cast("list[Message]", self._call("peek", queue, limit, offset))

    def page(self, queue: str, state: str, fairness_key: str | None, after: str | None, limit: int) -> Page:
        return cast(Page, self._call("page", queue, state, fairness_key, after, limit))

    def stats(self, queue: str) -> QueueStats:
        return cast(QueueStats, self._call("stats", queue))

    def key_stats(self, queue: str, limit: int) -> list[KeyStats]:
        return cast("list[KeyStats]", self._call("key_stats", queue, limit))

    def due(self, since_ns: int, until_ns: int | None, limit: int, after: str | None) -> Sequence[DueItem]:
        return cast("list[DueItem]", self._call("due", since_ns, until_ns, limit, after))

    def events(self, queue: str, after: int, limit: int) -> Sequence[Event]:
        return cast("list[Event]", self._call("events", queue, after, limit))

    def open_cursor(self, queue: str, name: str, required: bool) -> CursorInfo:
        return cast(CursorInfo, self._call("open_cursor", queue, name, required))

    def read_cursor(self, queue: str, name: str, limit: int) -> Sequence[Event]:
        return cast("list[Event]", self._call("read_cursor", queue, name, limit))

    def commit_cursor(self, queue: str, name: str, seq: int) -> None:
        self._call("commit_cursor", queue, name, seq)

    def drop_cursor(self, queue: str, name: str) -> None:
        self._call("drop_cursor", queue, name)

    def cursors(self, queue: str) -> Sequence[CursorInfo]:
        return cast("list[CursorInfo]", self._call("cursors", queue))

    def append_entries(self, world: str, entries: Sequence[Entry]) -> Sequence[str]:
        for entry in entries:
            if not isinstance(entry, Entry):
                raise InvalidMessage(f"an entry must be an Entry, not {type(entry).__name__}")
            check_entry(entry)
        return cast("list[str]", self._call("append_entries", world, entries))

    def scan_entries(self, world: str, **filters: Any) -> Sequence[Entry]:
        return cast("list[Entry]", self._call("scan_entries", world, kwargs=filters))

    def get_entries(self, ids: Sequence[str]) -> Sequence[Entry | None]:
        return cast("list[Entry | None]", self._call("get_entries", ids))

    def world_stats(self, world: str) -> dict[str, int]:
        return cast("dict[str, int]", self._call("world_stats", world))

    def configure_world(self, world: str, retention_s: float | None, max_bytes: int | None) -> None:
        self._call("configure_world", world, retention_s, max_bytes)

    def put_state(self, key: str, value: bytes) -> None:
        if not isinstance(value, bytes) or len(value) > MAX_PAYLOAD_BYTES:
            raise InvalidMessage(f"state value must be bytes, {MAX_PAYLOAD_BYTES} at most")
        self._call("put_state", key, value)

    def get_state(self, key: str) -> bytes | None:
        return cast("bytes | None", self._call("get_state", key))

    def delete_state(self, key: str) -> None:
        self._call("delete_state", key)

    def set_throttle(self, key: str, rate_per_s: float, burst: float) -> None:
        self._call("set_throttle", key, rate_per_s, burst)

    def get_throttle(self, key: str) -> Throttle | None:
        return cast("Throttle | None", self._call("get_throttle", key))

    def throttles(self) -> list[Throttle]:
        return cast("list[Throttle]", self._call("throttles"))

    def delete_throttle(self, key: str) -> None:
        self._call("delete_throttle", key)

    def health(self) -> BackendHealth:
        return cast(BackendHealth, self._call("health"))

    def metrics(self) -> BackendMetrics:
        return cast(BackendMetrics, self._call("metrics"))

    def check(self, repair: bool = False, progress: Progress | None = None) -> CheckReport:
        return cast(CheckReport, self._call("check", repair, progress=progress))

    def reindex(self, progress: Progress | None = None) -> CheckReport:
        return cast(CheckReport, self._call("reindex", progress=progress))

    def quarantine(self, limit: int, after: str | None) -> Sequence[QuarantineItem]:
        return cast("list[QuarantineItem]", self._call("quarantine", limit, after))

    def quarantine_get(self, item_id: str) -> bytes:
        return cast(bytes, self._call("quarantine_get", item_id))

    def quarantine_drop(self, ids: Sequence[str]) -> int:
        return cast(int, self._call("quarantine_drop", ids))

    def rekey(self, progress: Progress | None = None) -> RekeyReport:
        return cast(RekeyReport, self._call("rekey", progress=progress))

    def sweep(self, budget: int) -> int:
        return cast(int, self._call("sweep", budget))

    def take_snapshot(self, lifetime_s: float = SNAPSHOT_LIFETIME_S, id: str | None = None) -> Snapshot:
        return cast(Snapshot, self._call("take_snapshot", lifetime_s, id))

    def begin_write(self, queue: str | None) -> WriteTicket:
        return cast(WriteTicket, self._call("begin_write", queue))

    def commit_write(self, ticket: WriteTicket, txn: Txn, staged: Sequence[Staged]) -> Written:
        return cast(Written, self._call("commit_write", ticket, txn, staged))

    def abort_write(self, ticket: WriteTicket, txn: Txn) -> None:
        self._call("abort_write", ticket, txn)

    def restore(self, queue: str, messages: Sequence[StoredMessage]) -> list[EnqueueResult]:
        return cast("list[EnqueueResult]", self._call("restore", queue, messages))


def attach(folder: str, own: Own) -> AttachedBackend | None:
    """Attach to the folder's owner; None if there is none that answers."""
    closed = threading.Event()
    watch = Line(closed)
    try:
        welcome = watch.connect(folder)
    except (OSError, Gone):
        return None
    return AttachedBackend(folder, own, welcome, watch, closed)


def _is_plain(message: NewMessage) -> bool:
    return type(message) is NewMessage and type(message.payload) is bytes and type(message.headers) is dict


def _check_new(message: NewMessage) -> None:
    if not isinstance(message, NewMessage):
        raise InvalidMessage(f"a message must be a NewMessage, not {type(message).__name__}")
    check_message(message)
    if message.id is not None:
        parse_new_id(message.id)


def _sifted(
    items: Sequence[T],
    check: Callable[[T], object],
    ask: Callable[[list[T]], list[R]],
    refused: Callable[[PenstockError], R],
) -> list[R]:
    """Ask about the valid ones: what is not valid, and might not even travel, is refused here."""
    refusals: dict[int, R] = {}
    for place_, item in enumerate(items):
        try:
            check(item)
        except PenstockError as error:
            refusals[place_] = refused(as_answer(error))
        except Exception as error:  # noqa: BLE001 (an object of the caller's that fails when it is looked at)
            refusals[place_] = refused(InvalidMessage(f"an item cannot be read: {type(error).__name__}"))
    if not refusals:
        return ask(list(items))
    answers = iter(ask([item for at, item in enumerate(items) if at not in refusals]))
    return [refusals[at] if at in refusals else next(answers) for at in range(len(items))]
