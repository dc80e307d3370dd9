"""The backend contract, forwarded: what a backend does whose store is somewhere else."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeVar, cast

from penstock.backends.base import (
    BackendHealth,
    BackendInfo,
    BackendMetrics,
    CheckReport,
    CursorInfo,
    GroupInfo,
    KeyStats,
    Progress,
    QuarantineItem,
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
from penstock.backends.forwarding.methods import Unreadable
from penstock.codec.body import check_message
from penstock.codec.entry import check_entry
from penstock.errors import InvalidMessage, PenstockError, as_answer
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

T = TypeVar("T")
R = TypeVar("R")


class Forwarded:
    """Every call of the contract as one call of `_call`, which gets it there and back."""

    def _call(
        self, method: str, *args: Any, progress: Progress | None = None, kwargs: dict[str, Any] | None = None
    ) -> Any:
        raise NotImplementedError

    def info(self) -> BackendInfo:
        return cast(BackendInfo, self._call("info"))

    def create_queue(self, settings: QueueSettings) -> None:
        self._call("create_queue", settings)

    def update_queue(self, settings: QueueSettings, was: QueueSettings) -> bool:
        return cast(bool, self._call("update_queue", settings, was))

    def delete_queue(self, name: str) -> None:
        self._call("delete_queue", name)

    def replace_queues(self, settings: Sequence[QueueSettings]) -> None:
        self._call("replace_queues", settings)

    def declare_queues(self, settings: Sequence[QueueSettings]) -> None:
        self._call("declare_queues", settings)

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

    # -- consumer groups

    def lease_group(
        self, queue: str, group: str, max_messages: int, lease_s: float | None, wait_s: float, consumer: str
    ) -> list[Delivery]:
        answer = self._call("lease_group", queue, group, max_messages, lease_s, wait_s, consumer)
        return cast("list[Delivery]", answer)

    def create_group(self, queue: str, group: str) -> None:
        self._call("create_group", queue, group)

    def groups(self, queue: str) -> list[GroupInfo]:
        return cast("list[GroupInfo]", self._call("groups", queue))

    def drop_group(self, queue: str, group: str) -> None:
        self._call("drop_group", queue, group)

    def group_line(self, queue: str, group: str) -> str:
        return cast(str, self._call("group_line", queue, group))


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
