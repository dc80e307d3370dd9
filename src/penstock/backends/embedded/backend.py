"""The embedded backend: opens a store, verifies it, and answers the backend contract from its parts."""

from __future__ import annotations

import contextlib
import logging
import random
import threading
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from typing import Any, TypeVar

from penstock.backends.arguments import check_lease_s, checked_state
from penstock.backends.base import (
    BackendHealth,
    BackendInfo,
    BackendMetrics,
    CheckReport,
    CursorInfo,
    KeyStats,
    Progress,
    QuarantineItem,
    QueueStats,
    RekeyReport,
    Throttle,
)
from penstock.backends.bulk import SNAPSHOT_LIFETIME_S, Snapshot, StoredMessage
from penstock.backends.embedded import history, leases, measuring, quarantine, reads
from penstock.backends.embedded.admin import Admin
from penstock.backends.embedded.bulk import Bulk
from penstock.backends.embedded.capabilities import CAPABILITIES, IN_MEMORY
from penstock.backends.embedded.checking.checkup import Checkup
from penstock.backends.embedded.complaints import complaints
from penstock.backends.embedded.engine import Durability, Engine, Transaction
from penstock.backends.embedded.enqueue import Enqueuer
from penstock.backends.embedded.failures import Failures
from penstock.backends.embedded.founding import FORMAT_VERSION, found
from penstock.backends.embedded.hooking import Hooking
from penstock.backends.embedded.housekeeper import housekeepers
from penstock.backends.embedded.keystats import discovered, key_stats
from penstock.backends.embedded.loads import Loads
from penstock.backends.embedded.lookup import CODES
from penstock.backends.embedded.polling import Polling
from penstock.backends.embedded.queue_state import QueueState
from penstock.backends.embedded.rekey import Rekey
from penstock.backends.embedded.restoring import restore
from penstock.backends.embedded.served import Served
from penstock.backends.embedded.snapshots import Snapshots
from penstock.backends.embedded.sweep import apply_waiting
from penstock.backends.embedded.throttles import Throttles
from penstock.backends.embedded.upkeep import Upkeep
from penstock.backends.embedded.user_state import UserState
from penstock.backends.embedded.worlds import Worlds
from penstock.backends.judging import judged, silent
from penstock.clock import Clock, SystemClock, to_ns
from penstock.config import EncryptionSettings, HookSettings, StorageSettings
from penstock.errors import InvalidMessage, StorageError
from penstock.event import Entry, Event
from penstock.keyring import EnvironmentKeys, KeyProvider
from penstock.kv.base import Store
from penstock.message import (
    Delivery,
    DueItem,
    EnqueueResult,
    Message,
    NewMessage,
    Outcome,
    Page,
    check_count,
    parse_id,
)
from penstock.settings import HealthSettings, QueueSettings

T = TypeVar("T")

log = logging.getLogger("penstock")

#: How long `close` waits for another thread that is closing already.
CLOSING_S = 10.0


class EmbeddedBackend(Served):
    """Queues on an ordered store in this process."""

    def __init__(
        self,
        kv: Store,
        *,
        engine_name: str,
        path: str | None = None,
        durability: Durability = "sync",
        interval_ms: int = 50,
        clock: Clock | None = None,
        rng: random.Random | None = None,
        encryption: EncryptionSettings | None = None,
        provider: KeyProvider | None = None,
        hooks: HookSettings | None = None,
        health: HealthSettings | None = None,
    ) -> None:
        self.name = "embedded"
        self.capabilities = CAPABILITIES if path is not None else IN_MEMORY
        self._path = path
        self._engine_name = engine_name
        self._thresholds = health or StorageSettings().health
        raw_kv = kv
        self._kv = kv = found(
            kv, path, rng, encryption or EncryptionSettings(), provider or EnvironmentKeys()
        )
        self._engine = Engine(kv, clock or SystemClock(), rng or random.Random(), durability)
        self._worlds = Worlds(self._engine)
        self._admin = Admin(self._engine, self._worlds)
        self._admin.load()
        self._enqueuer = Enqueuer(self._engine)
        self._state = UserState(self._engine)
        self._throttles = Throttles(self._engine, self._worlds)
        self._hooking = Hooking(self._engine, hooks or HookSettings(), self._state.get)
        self._failures = Failures(self._engine, self._hooking)
        self._polling = Polling(self._engine, self._failures)
        self._bulk = Bulk(self._engine)
        self._rekey = Rekey(self._engine)
        self._loads = Loads(self._engine, self._enqueuer, raw_kv, path)
        self.begin_write, self.commit_write = self._loads.begin, self._loads.commit
        self.abort_write = self._loads.abort
        self._loads.recover()
        self._checkup = Checkup(self._engine, self._worlds, self._admin, self._loads)
        self._snapshots = Snapshots(self._engine, path, self.name)
        self._snapshots.sweep()
        self.upkeep = Upkeep(
            self._engine,
            self._failures,
            self._bulk,
            self._worlds,
            self._rekey,
            self._snapshots,
            self._loads,
        )
        self._checkup.finish_reindex()
        self._closed, self._ended = threading.Event(), threading.Event()
        #: What stands before the store (its listener) and what is let go after it: closed with it.
        self.before_close = ExitStack()
        self.before_close.callback(self._hooking.scripts.close)
        self.after_close = ExitStack()
        log.info(
            "opened engine=%s path=%s durability=%s format=%d queues=%d",
            engine_name,
            path or "-",
            durability,
            FORMAT_VERSION,
            len(self._engine.queues),
        )
        # Where time is injected, so is the moment of every sweep: the caller's.
        self._housekeepers = [] if clock else housekeepers(self, interval_ms / 1000)

    # -- queues ---------------------------------------------------------------------------------

    def create_queue(self, settings: QueueSettings) -> None:
        self._hooking.check([settings])
        self._engine.durably(lambda: self._admin.change(lambda: self._admin.create(settings)))

    def update_queue(self, settings: QueueSettings, was: QueueSettings) -> bool:
        self._hooking.check([settings])
        return self._engine.durably(lambda: self._admin.change(lambda: self._admin.update(settings, was)))

    def delete_queue(self, name: str) -> None:
        self._engine.durably(lambda: self._admin.change(lambda: self._admin.delete(name)))
        # The queue is gone; its rows are housekeeping, and a failure there is left to the sweep.
        with contextlib.suppress(StorageError):
            self._bulk.resume(slices=1)

    def replace_queues(self, settings: Sequence[QueueSettings]) -> None:
        self._hooking.check(settings)
        self._engine.durably(lambda: self._admin.change(lambda: self._admin.replace(settings)))

    def declare_queues(self, settings: Sequence[QueueSettings]) -> None:
        self._hooking.check(settings)
        self._engine.durably(lambda: self._admin.change(lambda: self._admin.declare(settings)))

    def queues(self) -> list[QueueSettings]:
        return self._admin.settings()

    def queue(self, name: str) -> QueueSettings | None:
        return self._admin.get(name)

    # -- messages -------------------------------------------------------------------------------

    def enqueue(self, queue: str, messages: Sequence[NewMessage]) -> list[EnqueueResult]:
        messages = self._hooking.enqueued(queue, messages)
        return self._engine.durably_merged(
            queue, messages, lambda batch: self._enqueuer.enqueue(queue, batch)
        )

    def upsert(self, queue: str, messages: Sequence[NewMessage]) -> list[EnqueueResult]:
        messages = self._hooking.enqueued(queue, messages)

        def command() -> list[EnqueueResult]:
            with self._engine.lock:
                apply_waiting(self._engine)
                return self._enqueuer.upsert(queue, messages)

        return self._engine.durably(command)

    def lease(
        self, queue: str, max_messages: int, lease_s: float | None, wait_s: float, consumer: str
    ) -> list[Delivery]:
        return self._polling.lease(_always, queue, max_messages, lease_s, wait_s, consumer)

    def lease_while(self, listening: Callable[[], bool], queue: str, *args: Any) -> list[Delivery]:
        """The same for a consumer that may go away while it waits: nothing is leased to one that has gone."""
        return self._polling.lease(listening, queue, *args)

    def lease_or_due(
        self, queue: str, max_messages: int, lease_s: float | None, consumer: str
    ) -> tuple[list[Delivery], float]:
        found = self.lease(queue, max_messages, lease_s, 0, consumer)
        return found, 0.0 if found else self._polling.due_in_s(queue)

    def watch(self, queue: str, told: Callable[[], None]) -> Callable[[], None]:
        return self._polling.watch(queue, told)

    def ack(self, queue: str, receipts: Sequence[str]) -> list[Outcome]:
        return self._change(queue, lambda txn, q: leases.ack(txn, q, receipts))

    def nack(self, queue: str, receipts: Sequence[str], delay_s: float | None, reason: str) -> list[Outcome]:
        return self._change(queue, self._failures.nack(queue, receipts, delay_s, reason))

    def reject(self, queue: str, receipts: Sequence[str], reason: str) -> list[Outcome]:
        return self._change(queue, self._failures.reject(queue, receipts, reason))

    def extend(self, queue: str, receipts: Sequence[str], lease_s: float) -> list[Outcome]:
        check_lease_s(lease_s)
        return self._change(queue, lambda txn, q: leases.extend(txn, q, receipts, to_ns(lease_s)))

    def move(self, queue: str, ids: Sequence[str], target: str) -> list[Outcome]:
        apply_waiting(self._engine)
        outcomes = self._bulk.move(queue, ids, target)
        return self._engine.durably(lambda: outcomes)

    def redrive(self, queue: str, limit: int, target: str | None) -> int:
        check_count(limit, "limit")
        apply_waiting(self._engine)
        redriven = self._bulk.redrive(queue, limit, target)
        return self._engine.durably(lambda: redriven)

    def purge(self, queue: str, states: Collection[str]) -> int:
        codes = [CODES[checked_state(state)] for state in states]
        apply_waiting(self._engine)
        purged = self._bulk.purge(queue, codes)
        return self._engine.durably(lambda: purged)

    # -- looking --------------------------------------------------------------------------------

    def get_many(self, queue: str, ids: Sequence[str]) -> list[Message | None]:
        raw_ids = [parse_id(text) for text in ids]
        with self._engine.lock:
            q = self._as_time_left_it(queue)
            return reads.get_many(self._engine, q, raw_ids)

    def peek(self, queue: str, limit: int, offset: int) -> list[Message]:
        check_count(limit, "limit")
        check_count(offset, "offset")
        with self._engine.lock:
            q = self._as_time_left_it(queue)
            return reads.peek(self._engine, q, limit, offset)

    def page(self, queue: str, state: str, fairness_key: str | None, after: str | None, limit: int) -> Page:
        if limit == 0:
            raise InvalidMessage("limit is 0; accepted: whole numbers from 1")
        check_count(limit, "limit")
        if fairness_key is not None and not isinstance(fairness_key, str):
            raise InvalidMessage(f"fairness_key must be a str, not {type(fairness_key).__name__}")
        with self._engine.lock:
            q = self._as_time_left_it(queue)
            return reads.page(self._engine, q, checked_state(state), fairness_key, after, limit)

    def stats(self, queue: str) -> QueueStats:
        discovered(self._engine, queue)
        with self._engine.lock:
            q = self._as_time_left_it(queue)
            return reads.stats(self._engine, q)

    def key_stats(self, queue: str, limit: int) -> list[KeyStats]:
        check_count(limit, "limit")
        apply_waiting(self._engine)
        return key_stats(self._engine, queue, limit)

    def due(self, since_ns: int, until_ns: int | None, limit: int, after: str | None) -> list[DueItem]:
        check_count(limit, "limit")
        with self._engine.lock:
            self._engine.check_usable()
            apply_waiting(self._engine)
            return reads.due(self._engine, since_ns, until_ns, limit, after)

    # -- journal --------------------------------------------------------------------------------

    def events(self, queue: str, after: int, limit: int) -> list[Event]:
        check_count(after, "after")
        check_count(limit, "limit")
        with self._engine.lock:
            q = self._as_time_left_it(queue)
            return history.events(self._engine, q, after, limit) if limit else []

    def open_cursor(self, queue: str, name: str, required: bool) -> CursorInfo:
        def change(txn: Transaction, q: QueueState) -> CursorInfo:
            row = history.open_cursor(txn, q, name, required=required)
            return CursorInfo(name, row.position, row.required)

        return self._change(queue, change)

    def read_cursor(self, queue: str, name: str, limit: int) -> list[Event]:
        check_count(limit, "limit")
        with self._engine.lock:
            q = self._as_time_left_it(queue)
            return history.read_cursor(self._engine, q, name, limit) if limit else []

    def commit_cursor(self, queue: str, name: str, seq: int) -> None:
        self._change(queue, lambda txn, q: history.commit_cursor(txn, q, name, seq))

    def drop_cursor(self, queue: str, name: str) -> None:
        self._change(queue, lambda txn, q: history.drop_cursor(txn, q, name))

    def cursors(self, queue: str) -> list[CursorInfo]:
        with self._engine.lock:
            q = self._as_time_left_it(queue)
            rows = history.cursors(self._engine, q)
            return [CursorInfo(name, row.position, row.required) for name, row in rows.items()]

    def append_entries(self, world: str, entries: Sequence[Entry]) -> list[str]:
        return self._engine.durably(lambda: self._worlds.append(world, entries))

    def scan_entries(self, world: str, **filters: Any) -> list[Entry]:
        with self._engine.lock:
            self._engine.check_usable()
            return self._worlds.scan(world, **filters)

    def get_entries(self, ids: Sequence[str]) -> list[Entry | None]:
        with self._engine.lock:
            self._engine.check_usable()
            return self._worlds.get(ids)

    def world_stats(self, world: str) -> dict[str, int]:
        with self._engine.lock:
            self._engine.check_usable()
            return self._worlds.stats(world)

    def configure_world(self, world: str, retention_s: float | None, max_bytes: int | None) -> None:
        self._engine.durably(lambda: self._worlds.configure(world, retention_s, max_bytes))

    # -- user state -----------------------------------------------------------------------------

    def put_state(self, key: str, value: bytes) -> None:
        self._state.put(key, value)

    def get_state(self, key: str) -> bytes | None:
        return self._state.get(key)

    def delete_state(self, key: str) -> None:
        self._state.delete(key)

    # -- throttles ------------------------------------------------------------------------------

    def set_throttle(self, key: str, rate_per_s: float, burst: float) -> None:
        self._engine.durably(lambda: self._throttles.set(key, rate_per_s, burst))

    def get_throttle(self, key: str) -> Throttle | None:
        return self._throttles.get(key)

    def throttles(self) -> list[Throttle]:
        return self._throttles.all()

    def delete_throttle(self, key: str) -> None:
        self._engine.durably(lambda: self._throttles.delete(key))

    # -- the backend itself ---------------------------------------------------------------------

    def info(self) -> BackendInfo:
        return BackendInfo(
            backend=self.name,
            engine=self._engine_name,
            path=self._path,
            durability=self._engine.durability,
            format_version=FORMAT_VERSION,
            capabilities=self.capabilities,
            sealed_with=self._rekey.active,
            rekey_from=self._rekey.others(),
        )

    def health(self) -> BackendHealth:
        engine = self._engine
        if self._closed.is_set() or engine.stopped is not None:
            return silent(f"the store has stopped: {engine.stopped or 'closed'}")
        if engine.write_failure is not None:
            return silent(f"the last write failed: {engine.write_failure}")
        numbers = measuring.health_numbers(engine)
        with engine.lock:
            reasons = [*complaints(engine), *self.upkeep.reasons(), *self._hooking.reasons()]
        return judged(numbers, self._thresholds, reasons)

    def metrics(self) -> BackendMetrics:
        return measuring.metrics(self._engine, self._throttles)

    def check(self, repair: bool = False, progress: Progress | None = None) -> CheckReport:
        report = self._checkup.check(repair=repair, progress=progress)
        if repair:
            self.upkeep.forget_damage()
        # Not run as a command itself: that would keep every other writer waiting.
        return self._engine.durably(lambda: report) if repair else report

    def reindex(self, progress: Progress | None = None) -> CheckReport:
        return self._checkup.reindex(progress)

    def quarantine(self, limit: int, after: str | None) -> list[QuarantineItem]:
        check_count(limit, "limit")
        with self._engine.lock:
            self._engine.check_usable()
            return quarantine.items(self._engine, limit, after)

    def quarantine_get(self, item_id: str) -> bytes:
        with self._engine.lock:
            self._engine.check_usable()
            return quarantine.content(self._engine, item_id)

    def quarantine_drop(self, ids: Sequence[str]) -> int:
        return self._engine.durably(lambda: self._checkup.drop(ids))

    def rekey(self, progress: Progress | None = None) -> RekeyReport:
        return self._rekey.run(progress)

    def take_snapshot(self, lifetime_s: float = SNAPSHOT_LIFETIME_S, id: str | None = None) -> Snapshot:
        return self._snapshots.take(lifetime_s, id)

    def restore(self, queue: str, messages: Sequence[StoredMessage]) -> list[EnqueueResult]:
        return self._change(queue, lambda txn, q: restore(txn, q, messages))

    def sweep(self, budget: int) -> int:
        check_count(budget, "budget")
        self._engine.check_usable()
        if self._engine.durability == "interval":
            self._engine.sync()
        return self.upkeep.tidy(budget)

    def close(self) -> None:
        if self._engine.inherited:
            return
        if self._closed.is_set():
            # Another thread is at it: an interpreter that ended meanwhile would crash. Not without bound, for
            # a signal handler may keep that thread from what it needs.
            self._ended.wait(CLOSING_S)
            return
        self._closed.set()
        try:
            self._close()
        finally:
            self._ended.set()

    def _close(self) -> None:
        self.before_close.close()
        for thread in self._housekeepers:
            thread.join()
        with self._engine.lock:
            if self._engine.stopped is None:
                self._engine.when_stopped = lambda: None
                self._engine.stop(StorageError("it was closed"))
            self._engine.release_handles()
        with self.after_close:
            self._kv.close()

    # -- plumbing -------------------------------------------------------------------------------

    @property
    def closed(self) -> threading.Event:
        return self._closed

    @property
    def engine(self) -> Engine:
        return self._engine

    def _change(self, queue: str, change: Callable[[Transaction, QueueState], T]) -> T:
        """One atomic change of a queue, durable when this returns."""

        def command() -> T:
            with self._engine.lock, self._engine.transaction() as txn:
                answer = change(txn, self._engine.queue(queue))
                txn.answered(answer)
                return answer

        return self._engine.durably(command)

    def _as_time_left_it(self, queue: str) -> QueueState:
        """The queue, for a look at it with the lock held."""
        self._engine.check_usable()
        apply_waiting(self._engine)
        return self._engine.queue(queue)


def _always() -> bool:
    return True
