"""Queue: what users hold. It has no rules of its own: every call is one call of the backend's."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import cast

from penstock.backends.base import (
    CursorInfo,
    GroupedBackend,
    GroupInfo,
    KeyStats,
    QueueBackend,
    QueueStats,
    WatchedBackend,
)
from penstock.errors import InvalidMessage, MessageNotFound, QueueNotFound, Unsupported
from penstock.event import Event, Kind
from penstock.journal import Cursor, Moment, check_names, filtered, moment_ns
from penstock.message import (
    DEFAULT_PRIORITY,
    STORED_STATES,
    Delivery,
    EnqueueResult,
    Message,
    NewMessage,
    Outcome,
    Page,
    State,
    check_count,
    checked_batch,
)
from penstock.settings import QueueSettings

#: What a purge removes, if it is not told otherwise.
WAITING = (State.DELAYED, State.READY)
_PAGE = 500
_KINDS = [str(kind) for kind in Kind]
#: Backends that have consumer groups.
HAVING_GROUPS = ("redis-streams",)
#: Where a backend does not tell that something came.
LOOK_AGAIN_S = 0.1


class Queue:
    """One queue. Safe to share between threads."""

    def __init__(self, backend: QueueBackend, name: str) -> None:
        self._backend = backend
        self.name = name

    def __repr__(self) -> str:
        return f"Queue({self.name!r})"

    # -- producing

    def enqueue(
        self,
        payload: bytes,
        *,
        headers: dict[str, str] | None = None,
        fairness_key: str = "",
        weight: int = 1,
        throttle_keys: list[str] | tuple[str, ...] = (),
        priority: int = DEFAULT_PRIORITY,
        delay_s: float = 0,
        ttl_s: float | None = None,
        dedup_id: str | None = None,
        id: str | None = None,
    ) -> str:
        """Store one message and return its id once it is durable."""
        message = NewMessage(
            payload,
            {} if headers is None else headers,
            fairness_key,
            weight,
            throttle_keys,
            priority,
            delay_s,
            ttl_s,
            dedup_id,
            id,
        )
        result = self._backend.enqueue(self.name, [message])[0]
        if result.error is not None or result.id is None:
            raise result.error or InvalidMessage("the message was not stored")
        return result.id

    def enqueue_many(self, messages: Sequence[NewMessage]) -> list[EnqueueResult]:
        """Store a batch; each item has its own result, in order."""
        return self._backend.enqueue(self.name, checked_batch(messages, "messages"))

    def upsert(self, messages: Sequence[NewMessage]) -> list[EnqueueResult]:
        """Create, or replace waiting messages of the same id."""
        return self._backend.upsert(self.name, checked_batch(messages, "messages"))

    # -- consuming

    def lease(
        self,
        max_messages: int = 1,
        lease_s: float | None = None,
        wait_s: float = 0,
        consumer: str = "",
        group: str | None = None,
    ) -> list[Delivery]:
        """Take up to `max_messages`, each under its own lease; waits up to `wait_s` for the first.

        Without `lease_s`, the queue's own setting counts. Each `group` sees every message, and one that is
        new everything that is not processed yet.
        """
        if group is not None:
            grouped = self._grouped("lease(group=…)")
            return grouped.lease_group(self.name, group, max_messages, lease_s, wait_s, consumer)
        return self._backend.lease(self.name, max_messages, lease_s, wait_s, consumer)

    def watch(self, told: Callable[[], None]) -> Callable[[], None]:
        """Call `told`, from any thread, when there may be something to lease; the answer ends it.

        For servers of many who wait: where a backend cannot tell, `lease_or_due` says to look again soon.
        """
        watch = getattr(self._backend, "watch", None)
        return (lambda: None) if watch is None else cast(WatchedBackend, self._backend).watch(self.name, told)

    def lease_or_due(
        self, max_messages: int = 1, lease_s: float | None = None, consumer: str = ""
    ) -> tuple[list[Delivery], float]:
        """As `lease` without waiting; if nothing came of it, in how many seconds to look again."""
        if not hasattr(self._backend, "lease_or_due"):
            return self._backend.lease(self.name, max_messages, lease_s, 0, consumer), LOOK_AGAIN_S
        backend = cast(WatchedBackend, self._backend)
        return backend.lease_or_due(self.name, max_messages, lease_s, consumer)

    def ack(self, receipts: Sequence[str]) -> list[Outcome]:
        """These are done."""
        return self._backend.ack(self.name, checked_batch(receipts, "receipts"))

    def nack(self, receipts: Sequence[str], delay_s: float | None = None, reason: str = "") -> list[Outcome]:
        """These failed: try again after `delay_s`, or when the queue's retry policy says."""
        return self._backend.nack(self.name, checked_batch(receipts, "receipts"), delay_s, reason)

    def reject(self, receipts: Sequence[str], reason: str = "") -> list[Outcome]:
        """These must not be tried again."""
        return self._backend.reject(self.name, checked_batch(receipts, "receipts"), reason)

    def extend(self, receipts: Sequence[str], lease_s: float) -> list[Outcome]:
        """Hold these for `lease_s` from now."""
        return self._backend.extend(self.name, checked_batch(receipts, "receipts"), lease_s)

    # -- consumer groups

    def create_group(self, name: str) -> None:
        """A group of consumers, which sees every message from what is not processed yet on."""
        self._grouped("create_group").create_group(self.name, name)

    def groups(self) -> Sequence[GroupInfo]:
        """The queue's groups, with what is leased and what waits in each."""
        return self._grouped("groups").groups(self.name)

    def drop_group(self, name: str) -> None:
        """Remove a group; what it alone had not processed goes."""
        self._grouped("drop_group").drop_group(self.name, name)

    def group(self, name: str) -> Queue:
        """The queue as a group has it: `stats`, `list`, `events`, `redrive` and the like of its own."""
        return Queue(self._backend, self._grouped("group").group_line(self.name, name))

    def _grouped(self, what: str) -> GroupedBackend:
        if not self._backend.capabilities.consumer_groups:
            raise Unsupported(what, "consumer_groups", self._backend.name, HAVING_GROUPS)
        return cast(GroupedBackend, self._backend)

    # -- looking

    def get(self, id: str) -> Message:
        """One message, or `MessageNotFound`."""
        message = self._backend.get_many(self.name, [id])[0]
        if message is None:
            raise MessageNotFound(id, self.name)
        return message

    def peek(self, limit: int = 10, offset: int = 0) -> list[Message]:
        """Ready messages in index order, without leasing them."""
        return self._backend.peek(self.name, limit, offset)

    def iter(self, state: str | None = None) -> Iterator[Message]:
        """Every message, or every one of a state, page by page."""
        for each in STORED_STATES if state is None else (state,):
            after: str | None = None
            while True:
                page = self.list(each, after=after, limit=_PAGE)
                yield from page.items
                if page.next is None:
                    break
                after = page.next

    def settings(self) -> QueueSettings:
        """Everything that is set for the queue, or `QueueNotFound`."""
        found = self._backend.queue(self.name)
        if found is None:
            raise QueueNotFound(self.name)
        return found

    def stats(self) -> QueueStats:
        return self._backend.stats(self.name)

    def key_stats(self, limit: int = 100) -> Sequence[KeyStats]:
        """Numbers of the fairness keys that have most waiting, first."""
        return self._backend.key_stats(self.name, limit)

    def length(self) -> int:
        """Delayed, ready and leased messages together."""
        stats = self._backend.stats(self.name)
        return stats.delayed + stats.ready + stats.leased

    # -- bulk

    def move(self, ids: Sequence[str], target: str) -> Sequence[Outcome]:
        """Waiting and dead messages go to another queue under their own ids, and start anew there."""
        return self._backend.move(self.name, checked_batch(ids, "ids"), target)

    def redrive(self, limit: int = 100, target: str | None = None) -> int:
        """Send dead messages back to their origin, or to `target`; how many went."""
        return self._backend.redrive(self.name, limit, target)

    def purge(self, state: str | None = None) -> int:
        """Remove delayed and ready messages, or those of one state; how many went."""
        return self._backend.purge(self.name, WAITING if state is None else (state,))

    # -- history

    def events(
        self,
        after: int = 0,
        limit: int = 1000,
        kinds: Collection[str] = (),
        since: Moment = None,
        until: Moment = None,
    ) -> Sequence[Event]:
        """What happened, after a seq: up to `limit` events that fit all filters, in order."""
        check_names(kinds, "kinds")
        for kind in kinds:
            if kind not in _KINDS:
                raise InvalidMessage(f"no event is {kind!r:.40}; kinds: {', '.join(_KINDS)}")
        since_ns, until_ns = moment_ns(since, "since"), moment_ns(until, "until")
        if not kinds and since_ns is None and until_ns is None:
            return self._backend.events(self.name, after, limit)
        check_count(limit, "limit")
        found: list[Event] = []
        page = self._backend.events(self.name, after, _PAGE)
        while page and len(found) < limit:
            found += filtered(page, kinds, since_ns, until_ns)
            page = self._backend.events(self.name, page[-1].seq, _PAGE)
        return found[:limit]

    def cursor(self, name: str, required: bool = False) -> Cursor:
        """A named durable position in this queue's journal."""
        return Cursor(self._backend, self.name, name, required=required)

    def cursors(self) -> Sequence[CursorInfo]:
        return self._backend.cursors(self.name)

    # Last: inside a class, its name hides the builtin from every annotation that follows.
    def list(
        self,
        state: str = "ready",
        fairness_key: str | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> Page:
        """A page of the messages of one state; pass its `next` as `after` for the following one."""
        return self._backend.page(self.name, state, fairness_key, after, limit)
