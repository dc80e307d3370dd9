"""The contract of a queue backend. Everything is a batch; one item is a batch of one.

The docstrings are the specification; `penstock.testing` proves them. A call that needs a capability which
is off raises `Unsupported`. Where a batch is answered item by item, a bad item never fails its neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol

import msgspec

from penstock.capabilities import Capabilities
from penstock.event import Entry, Event
from penstock.message import Delivery, DueItem, EnqueueResult, Message, NewMessage, Outcome, Page
from penstock.settings import QueueSettings

#: Told now and then how far something long is: what, how much of it is done, of how much.
Progress = Callable[[str, int, int], None]


class QueueStats(msgspec.Struct, frozen=True, kw_only=True):
    """A queue's numbers. Rates are per second over the last minute, since the store was opened.

    `created_at_ns` is 0 where it is not known: a repair has made the queue's row anew.
    """

    delayed: int
    ready: int
    leased: int
    done: int
    dead: int
    oldest_ready_age_s: float | None
    enqueued_total: int
    acked_total: int
    failed_total: int
    enqueue_rate_per_s: float
    ack_rate_per_s: float
    fail_rate_per_s: float
    first_seq: int
    last_seq: int
    journal_bytes: int
    held_bodies: int
    unread_by_required: int
    durability: str
    created_at_ns: int = 0


class KeyStats(msgspec.Struct, frozen=True, kw_only=True):
    """One fairness key of a queue.

    `weight` is that of its oldest message. `served` counts its deliveries since the store was opened, and
    `share` is its part of the queue's. `leased` is known where `max_leased_per_key` is set. `throttled` of
    its messages wait for tokens of the keys in `throttled_by`, one of which has one in `token_in_s`.
    """

    key: str
    weight: int | None
    ready: int
    leased: int | None
    oldest_ready_age_s: float | None
    served: int
    share: float
    throttled: int
    throttled_by: list[str]
    token_in_s: float | None


class Throttle(msgspec.Struct, frozen=True):
    """A limit: so many deliveries a second, `burst` of them at once at most; `tokens` are left now."""

    key: str
    rate_per_s: float
    burst: int
    tokens: float


class BackendInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a backend is and where it keeps its data.

    `sealed_with` is the key that new records are encrypted with, if any. `rekey_from` is what others may be
    encrypted with until a rekey is over; "" stands for not at all.
    """

    backend: str
    engine: str
    path: str | None
    durability: str
    format_version: int
    capabilities: Capabilities
    #: The process that owns the store, where it is not this one.
    attached_to: int | None = None
    sealed_with: str | None = None
    rekey_from: list[str] = []


class Histogram(msgspec.Struct, frozen=True):
    """How often a value fell between two bounds; the last count is of those above them all."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float


class QueueMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """A queue's numbers, and what happened in it since the store was opened."""

    stats: QueueStats
    events: dict[str, int]
    wait_s: Histogram
    service_s: Histogram
    cursors: list[CursorInfo]
    #: Those with most waiting, up to a number.
    keys: list[KeyStats] = []


class BackendMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is measured, by queue, and what the queues of a backend share."""

    queues: dict[str, QueueMetrics]
    store_bytes: int
    sync_s: Histogram
    group_commit_calls: Histogram
    throttles: list[Throttle] = []


class Problem(msgspec.Struct, frozen=True):
    """One thing that `check` found wrong: what, in which queue, and where.

    `severity` is `index` (derived, can be rebuilt without loss), `orphan` (a row that belongs to nothing)
    or `damage` (content or history is not what it was). `action` is what a repair did about it.
    """

    what: str
    queue: str
    where: str
    kind: str = ""
    severity: str = "damage"
    action: str = ""


class CheckReport(msgspec.Struct, frozen=True):
    """What `check` looked at and what it found.

    `counts` is exact, by kind; of very many problems only the first are listed. After a repair, `remaining`
    is what is still wrong.
    """

    problems: list[Problem]
    queues: int
    messages: int
    events: int
    counts: dict[str, int] = {}
    remaining: int | None = None

    @property
    def ok(self) -> bool:
        """Nothing is wrong, or nothing is any more."""
        return not (self.problems if self.remaining is None else self.remaining)


class QuarantineItem(msgspec.Struct, frozen=True):
    """A row that a repair took out of the store: where it was, why, and how many bytes it has."""

    id: str
    at_ns: int
    queue: str
    space: str
    key: bytes
    reason: str
    size_bytes: int


class RekeyReport(msgspec.Struct, frozen=True):
    """What `rekey` looked at, what it sealed anew, and what does not open and was left as it is."""

    records: int = 0
    rewritten: int = 0
    unreadable: int = 0


class HealthNumbers(msgspec.Struct, frozen=True, kw_only=True):
    """What a backend is judged by. None: it does not apply, or is not known.

    Latencies and `error_rate` are of the calls of the last minute or two in the process that asks (of an
    attached store: in its owner), `calls` of them; rates are per second over the last minute, of all queues.
    `depth` is what waits, ready or delayed. `consumer_lag` is what the required cursor, or the group, that is
    furthest behind has yet to read. Memory is that of the server, or of the process that owns the store.
    """

    reachable: bool
    latency_p50_ms: float | None = None
    latency_p99_ms: float | None = None
    calls: int = 0
    error_rate: float = 0.0
    queues: int | None = None
    depth: int | None = None
    leased: int | None = None
    oldest_ready_age_s: float | None = None
    enqueue_rate_per_s: float | None = None
    ack_rate_per_s: float | None = None
    fail_rate_per_s: float | None = None
    memory_bytes: int | None = None
    memory_limit_bytes: int | None = None
    #: Of what the fullest server may have, how much it has.
    memory_ratio: float | None = None
    pool_in_use: int | None = None
    pool_size: int | None = None
    stream_length: int | None = None
    consumer_lag: int | None = None
    shards: int | None = None


class BackendHealth(msgspec.Struct, frozen=True):
    """`status` is healthy, degraded or unhealthy; `reasons` say why it is not healthy.

    `warnings` tell what can be lost by the way that a backend is set up, though all is well now.
    """

    status: str
    reasons: list[str]
    numbers: HealthNumbers | None = None
    warnings: list[str] = []


class CursorInfo(msgspec.Struct, frozen=True):
    """A named position in a queue's journal."""

    name: str
    position: int
    required: bool


class GroupInfo(msgspec.Struct, frozen=True):
    """A consumer group of a queue: what is leased in it, and what waits for it."""

    name: str
    pending: int
    lag: int
    consumers: int = 0


class QueueBackend(Protocol):
    """A place that queues live in. Safe to call from any thread."""

    name: str
    capabilities: Capabilities

    # -- queues

    def create_queue(self, settings: QueueSettings) -> None: ...

    def update_queue(self, settings: QueueSettings, was: QueueSettings) -> bool:
        """False, and nothing is changed, if the queue's settings are not (any more) what they `was`."""
        ...

    def delete_queue(self, name: str) -> None:
        """The queue and everything in it."""
        ...

    def replace_queues(self, settings: Sequence[QueueSettings]) -> None:
        """Exactly these queues exist afterwards, in one step."""
        ...

    def declare_queues(self, settings: Sequence[QueueSettings]) -> None:
        """These queues exist afterwards, in one step; all others stay as they are."""
        ...

    def queues(self) -> list[QueueSettings]:
        """By name."""
        ...

    def queue(self, name: str) -> QueueSettings | None:
        """One queue's settings, or None; the cost does not grow with the number of queues."""
        ...

    # -- messages

    def enqueue(self, queue: str, messages: Sequence[NewMessage]) -> list[EnqueueResult]:
        """Durable when it returns. A repeated dedup id or a given id that exists stores nothing."""
        ...

    def upsert(self, queue: str, messages: Sequence[NewMessage]) -> list[EnqueueResult]:
        """Create, or replace body and settings of a waiting message; a leased one is left unchanged."""
        ...

    def lease(
        self, queue: str, max_messages: int, lease_s: float | None, wait_s: float, consumer: str
    ) -> list[Delivery]:
        """Releases what is due, then hands out, each message under its own lease.

        With nothing to hand out, waits up to `wait_s`, waking when work arrives or falls due.
        """
        ...

    def ack(self, queue: str, receipts: Sequence[str]) -> list[Outcome]: ...

    def nack(self, queue: str, receipts: Sequence[str], delay_s: float | None, reason: str) -> list[Outcome]:
        """A failure: back in line, or dead once `max_attempts` deliveries have failed."""
        ...

    def reject(self, queue: str, receipts: Sequence[str], reason: str) -> list[Outcome]:
        """Dead at once."""
        ...

    def extend(self, queue: str, receipts: Sequence[str], lease_s: float) -> list[Outcome]:
        """The lease ends `lease_s` from now."""
        ...

    def move(self, queue: str, ids: Sequence[str], target: str) -> list[Outcome]: ...

    def redrive(self, queue: str, limit: int, target: str | None) -> int:
        """Dead messages go back to where they came from, or to `target`; how many went."""
        ...

    def purge(self, queue: str, states: Collection[str]) -> int: ...

    # -- looking

    def get_many(self, queue: str, ids: Sequence[str]) -> list[Message | None]: ...

    def peek(self, queue: str, limit: int, offset: int) -> list[Message]: ...

    def page(self, queue: str, state: str, fairness_key: str | None, after: str | None, limit: int) -> Page:
        """In index order, stable while others write; the cost depends on the page alone."""
        ...

    def stats(self, queue: str) -> QueueStats: ...

    def key_stats(self, queue: str, limit: int) -> list[KeyStats]:
        """The fairness keys that have most waiting, first."""
        ...

    def due(
        self, since_ns: int, until_ns: int | None, limit: int, after: str | None
    ) -> Sequence[DueItem]: ...

    # -- journal

    def events(self, queue: str, after: int, limit: int) -> Sequence[Event]: ...

    def open_cursor(self, queue: str, name: str, required: bool) -> CursorInfo: ...

    def read_cursor(self, queue: str, name: str, limit: int) -> Sequence[Event]: ...

    def commit_cursor(self, queue: str, name: str, seq: int) -> None: ...

    def drop_cursor(self, queue: str, name: str) -> None: ...

    def cursors(self, queue: str) -> Sequence[CursorInfo]: ...

    def append_entries(self, world: str, entries: Sequence[Entry]) -> Sequence[str]:
        """All of them or, if one is not valid, none; their ids."""
        ...

    def scan_entries(self, world: str, **filters: Any) -> Sequence[Entry]: ...

    def get_entries(self, ids: Sequence[str]) -> Sequence[Entry | None]: ...

    def world_stats(self, world: str) -> dict[str, int]: ...

    def configure_world(self, world: str, retention_s: float | None, max_bytes: int | None) -> None: ...

    # -- state that hooks and users share

    def put_state(self, key: str, value: bytes) -> None: ...

    def get_state(self, key: str) -> bytes | None: ...

    def delete_state(self, key: str) -> None: ...

    # -- token buckets, shared by all queues

    def set_throttle(self, key: str, rate_per_s: float, burst: float) -> None:
        """Limit deliveries of messages that name the key; what it has left stays, a new one starts full."""
        ...

    def get_throttle(self, key: str) -> Throttle | None: ...

    def throttles(self) -> list[Throttle]:
        """By key."""
        ...

    def delete_throttle(self, key: str) -> None: ...

    # -- the backend itself

    def info(self) -> BackendInfo: ...

    def health(self) -> BackendHealth: ...

    def metrics(self) -> BackendMetrics: ...

    def check(self, repair: bool = False, progress: Progress | None = None) -> CheckReport:
        """Read everything and report what does not hold; with `repair`, mend it, and say what was done."""
        ...

    def reindex(self, progress: Progress | None = None) -> CheckReport:
        """Rebuild everything that is derived; the problems are what could not be used."""
        ...

    def quarantine(self, limit: int, after: str | None) -> Sequence[QuarantineItem]:
        """What repairs have taken out, oldest first; `after` is the id of an item."""
        ...

    def quarantine_get(self, item_id: str) -> bytes:
        """The bytes of an item as they were."""
        ...

    def quarantine_drop(self, ids: Sequence[str]) -> int:
        """Forget items for good; how many there were."""
        ...

    def rekey(self, progress: Progress | None = None) -> RekeyReport:
        """Encrypt everything with the active key, or decrypt it if there is none; nothing, if it is so.

        Goes on beside other calls, and after a crash without being called again.
        """
        ...

    def sweep(self, budget: int) -> int:
        """Do up to `budget` slices of housekeeping; how many it did."""
        ...

    def close(self) -> None: ...


class GroupedBackend(QueueBackend, Protocol):
    """What a backend with `consumer_groups` has besides.

    Every group sees every message, settles it for itself, and has a line of its own: numbers, journal, dead
    letters. Receipts tell their group: `ack` and the like are those of every backend.
    """

    def lease_group(
        self, queue: str, group: str, max_messages: int, lease_s: float | None, wait_s: float, consumer: str
    ) -> list[Delivery]:
        """As `lease`, in a group. One that is new sees everything that is not processed yet."""

    def create_group(self, queue: str, group: str) -> None:
        """Make a group, if there is none of that name."""

    def groups(self, queue: str) -> list[GroupInfo]:
        """In the order in which they came."""

    def drop_group(self, queue: str, group: str) -> None:
        """Remove a group; what it alone still had goes."""

    def group_line(self, queue: str, group: str) -> str:
        """What names a group's line in the place of a queue's name, for every other call."""


class WatchedBackend(QueueBackend, Protocol):
    """What a backend has besides that tells when something came, so that many can wait without a thread."""

    def watch(self, queue: str, told: Callable[[], None]) -> Callable[[], None]:
        """Call `told`, from any thread, when there may be something to lease; the answer ends it.

        `told` does nothing but pass it on: locks are held meanwhile. Who is told looks for itself.
        """

    def lease_or_due(
        self, queue: str, max_messages: int, lease_s: float | None, consumer: str
    ) -> tuple[list[Delivery], float]:
        """As `lease` without waiting. If nothing is handed out: in how many seconds to look again.

        Until then there is nothing, unless those who watch are told.
        """
