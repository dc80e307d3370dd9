"""The embedded backend: opens a store, verifies it, and answers the backend contract from its parts."""

from __future__ import annotations

import contextlib
import logging
import random
import threading
from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeVar

import msgspec

from penstock.backends.base import BackendHealth, BackendInfo, CheckReport, CursorInfo, QueueStats
from penstock.backends.embedded import history, keys, leases, reads
from penstock.backends.embedded.admin import Admin
from penstock.backends.embedded.arguments import check_lease_s, check_reason, checked_state
from penstock.backends.embedded.bulk import Bulk
from penstock.backends.embedded.check import Checker
from penstock.backends.embedded.engine import Durability, Engine, Transaction
from penstock.backends.embedded.enqueue import Enqueuer
from penstock.backends.embedded.housekeeper import housekeepers
from penstock.backends.embedded.keys import Due, Meta, StateCode
from penstock.backends.embedded.lookup import CODES
from penstock.backends.embedded.queue_state import QueueState
from penstock.backends.embedded.rows import MARK
from penstock.backends.embedded.sweep import SLICE, apply_due, apply_waiting, release_for
from penstock.backends.embedded.upkeep import Upkeep
from penstock.backends.embedded.worlds import Worlds
from penstock.capabilities import Capabilities
from penstock.clock import Clock, SystemClock, to_ns
from penstock.codec.body import check_duration
from penstock.errors import InvalidMessage, StorageError
from penstock.event import Entry, Event
from penstock.kv.base import Store
from penstock.message import (
    MAX_PAYLOAD_BYTES,
    Delivery,
    DueItem,
    EnqueueResult,
    Message,
    NewMessage,
    Outcome,
    Page,
    check_count,
    checked_name,
    parse_id,
)
from penstock.settings import QueueSettings

T = TypeVar("T")

log = logging.getLogger("penstock")

FORMAT_VERSION = 1
CAPABILITIES = Capabilities(
    atomic_ack=True,
    replay=True,
    idempotent_enqueue=True,
    transactions=True,
    persistence=True,
    time_to_live=True,
    prioritization=True,
    batch_operations=True,
    delay=True,
    fairness=True,
    journal=True,
    fifo=True,
)


class EmbeddedBackend:
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
    ) -> None:
        self.name = "embedded"
        self.capabilities = msgspec.structs.replace(CAPABILITIES, persistence=path is not None)
        self._path = path
        self._engine_name = engine_name
        self._kv = kv
        self._verify_format()
        self._engine = Engine(kv, clock or SystemClock(), rng or random.Random(), durability)
        self._worlds = Worlds(self._engine)
        self._admin = Admin(self._engine, self._worlds, self.name)
        self._admin.load()
        self._enqueuer = Enqueuer(self._engine, self.name)
        self._bulk = Bulk(self._engine)
        self.upkeep = Upkeep(self._engine, self._bulk, self._worlds)
        self._closed = threading.Event()
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

    def _verify_format(self) -> None:
        """The format row is the first thing read of a store, and the first thing written to a new one."""
        meta = self._kv.space("meta")
        key = keys.meta(Meta.FORMAT)
        raw = self._kv.get(key, meta)
        if raw is None:
            batch = self._kv.batch()
            batch.put(key, MARK + keys.u32(FORMAT_VERSION), meta)
            self._kv.write(batch, sync=True)
        elif (version := int.from_bytes(raw[1:], "big")) > FORMAT_VERSION:
            self._kv.close()
            raise StorageError(
                f"store {self._path or 'in memory'} has format {version}; this Penstock reads up to "
                f"{FORMAT_VERSION}: open it with a newer Penstock"
            )

    # -- queues ---------------------------------------------------------------------------------

    def create_queue(self, settings: QueueSettings) -> None:
        self._engine.durably(lambda: self._admin.change(lambda: self._admin.create(settings)))

    def update_queue(self, settings: QueueSettings) -> None:
        self._engine.durably(lambda: self._admin.change(lambda: self._admin.update(settings)))

    def delete_queue(self, name: str) -> None:
        self._engine.durably(lambda: self._admin.change(lambda: self._admin.delete(name)))
        # The queue is gone; its rows are housekeeping, and a failure there is left to the sweep.
        with contextlib.suppress(StorageError):
            self._bulk.resume(slices=1)

    def replace_queues(self, settings: Sequence[QueueSettings]) -> None:
        self._engine.durably(lambda: self._admin.change(lambda: self._admin.replace(settings)))

    def queues(self) -> list[QueueSettings]:
        return self._admin.settings()

    def queue(self, name: str) -> QueueSettings | None:
        return self._admin.get(name)

    # -- messages -------------------------------------------------------------------------------

    def enqueue(self, queue: str, messages: Sequence[NewMessage]) -> list[EnqueueResult]:
        return self._engine.durably_merged(
            queue, messages, lambda batch: self._enqueuer.enqueue(queue, batch)
        )

    def upsert(self, queue: str, messages: Sequence[NewMessage]) -> list[EnqueueResult]:
        def command() -> list[EnqueueResult]:
            with self._engine.lock:
                apply_waiting(self._engine)
                return self._enqueuer.upsert(queue, messages)

        return self._engine.durably(command)

    def lease(
        self, queue: str, max_messages: int, lease_s: float | None, wait_s: float, consumer: str
    ) -> list[Delivery]:
        check_duration(wait_s, "wait_s")
        if lease_s is not None:
            check_lease_s(lease_s)
        check_count(max_messages, "max_messages")
        if consumer != "":
            checked_name(consumer, "consumer")
        engine = self._engine
        if max_messages == 0:
            return []
        deadline_ns = engine.clock.now_ns() + to_ns(wait_s)
        while True:
            deliveries = engine.durably(lambda: self._lease_now(queue, max_messages, lease_s, consumer))
            if deliveries or engine.clock.now_ns() >= deadline_ns:
                return deliveries
            self._wait(queue, deadline_ns)

    def _lease_now(
        self, queue: str, max_messages: int, lease_s: float | None, consumer: str
    ) -> list[Delivery]:
        engine = self._engine
        apply_due(engine, Due.TTL)
        while True:
            release_for(engine, queue, max_messages)
            with engine.lock:  # Kept until they are set aside: someone else would take them too.
                try:
                    deliveries = self._hand_out(queue, max_messages, lease_s, consumer)
                except leases.DamagedBodies as damaged:
                    if not damaged.rows:
                        raise
                    log.error("%s: set aside as dead", damaged)
                    with engine.transaction() as txn:
                        leases.set_aside(txn, engine.queue(queue), damaged.rows)
                    continue
            if deliveries is not None:
                return deliveries

    def _hand_out(
        self, queue: str, max_messages: int, lease_s: float | None, consumer: str
    ) -> list[Delivery] | None:
        """None: what seemed ready had expired, and is removed; there may be more to release."""
        with self._engine.transaction() as txn:
            q = self._engine.queue(queue)
            counts = q.counters.counts
            lease_ns = to_ns(q.settings.lease_s if lease_s is None else lease_s)
            deliveries: list[Delivery] = []
            removed = 0
            while len(deliveries) < max_messages and (ready := counts[StateCode.READY]) > 0:
                deliveries += leases.lease(txn, q, max_messages - len(deliveries), lease_ns, consumer)
                if counts[StateCode.READY] == ready:
                    break  # What is ready is blocked: a fifo key has a message in flight.
                removed += ready - counts[StateCode.READY]
                if removed - len(deliveries) >= SLICE:
                    break  # Enough for one write.
            return deliveries if deliveries or not removed else None

    def _wait(self, queue: str, deadline_ns: int) -> None:
        """Sleep until work arrives, something falls due, or the deadline passes."""
        engine = self._engine
        with engine.lock:
            engine.check_usable()
            q = engine.queue(queue)
            until_ns = min(deadline_ns, engine.earliest_due_ns())
            if q.lease_may_succeed() or until_ns <= engine.clock.now_ns():
                return
            engine.waiting.add(q)
            q.waiters += 1
            try:
                engine.clock.wait(q.arrived, until_ns - engine.clock.now_ns())
            finally:
                q.waiters -= 1
                if not q.waiters:
                    engine.waiting.discard(q)

    def ack(self, queue: str, receipts: Sequence[str]) -> list[Outcome]:
        return self._change(queue, lambda txn, q: leases.ack(txn, q, receipts))

    def nack(self, queue: str, receipts: Sequence[str], delay_s: float | None, reason: str) -> list[Outcome]:
        check_reason(reason)
        if delay_s is not None:
            check_duration(delay_s, "delay_s")
        delay_ns = None if delay_s is None else to_ns(delay_s)
        apply_waiting(self._engine)
        return self._change(queue, lambda txn, q: leases.nack(txn, q, receipts, delay_ns, reason))

    def reject(self, queue: str, receipts: Sequence[str], reason: str) -> list[Outcome]:
        check_reason(reason)
        apply_waiting(self._engine)
        return self._change(queue, lambda txn, q: leases.reject(txn, q, receipts, reason))

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
        with self._engine.lock:
            q = self._as_time_left_it(queue)
            return reads.stats(self._engine, q)

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
        row = self._change(queue, lambda txn, q: history.open_cursor(txn, q, name, required=required))
        return CursorInfo(name, row.position, row.required)

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
        row_key = keys.meta(Meta.USER_STATE, checked_name(key, "state key"))
        if not isinstance(value, bytes) or len(value) > MAX_PAYLOAD_BYTES:
            raise InvalidMessage(f"state value must be bytes, {MAX_PAYLOAD_BYTES} at most")

        def command() -> None:
            with self._engine.lock, self._engine.transaction() as txn:
                txn.changed = True
                txn.put(row_key, MARK + value, self._engine.meta)

        self._engine.durably(command)

    def get_state(self, key: str) -> bytes | None:
        row_key = keys.meta(Meta.USER_STATE, checked_name(key, "state key"))
        with self._engine.lock:
            self._engine.check_usable()
            raw = self._engine.kv.get(row_key, self._engine.meta)
        return None if raw is None else raw[1:]

    def delete_state(self, key: str) -> None:
        row_key = keys.meta(Meta.USER_STATE, checked_name(key, "state key"))

        def command() -> None:
            with self._engine.lock, self._engine.transaction() as txn:
                txn.changed = True
                txn.delete(row_key, self._engine.meta)

        self._engine.durably(command)

    # -- the backend itself ---------------------------------------------------------------------

    def info(self) -> BackendInfo:
        return BackendInfo(
            backend=self.name,
            engine=self._engine_name,
            path=self._path,
            durability=self._engine.durability,
            format_version=FORMAT_VERSION,
            capabilities=self.capabilities,
        )

    def health(self) -> BackendHealth:
        engine = self._engine
        if self._closed.is_set() or engine.stopped is not None:
            return BackendHealth("unhealthy", [f"the store has stopped: {engine.stopped or 'closed'}"])
        if engine.write_failure is not None:
            return BackendHealth("unhealthy", [f"the last write failed: {engine.write_failure}"])
        with engine.lock:
            reasons = self.upkeep.reasons()
            for number in history.queues_with_cursors(engine):
                q = engine.queue_by_number(number)
                if q is not None and q.counters.held:
                    reasons.append(f"queue {q.name!r}: required cursors hold back {q.counters.held} bodies")
                if q is not None and history.keeps_too_much(engine, q, engine.clock.now_ns()):
                    reasons.append(f"queue {q.name!r}: required cursors keep its journal past its retention")
        return BackendHealth("degraded" if reasons else "healthy", reasons)

    def check(self) -> CheckReport:
        with self._engine.lock:
            self._engine.check_usable()
            return Checker(self._engine, self._worlds).run()

    def sweep(self, budget: int) -> int:
        check_count(budget, "budget")
        self._engine.check_usable()
        if self._engine.durability == "interval":
            self._engine.sync()
        return self.upkeep.tidy(budget)

    def close(self) -> None:
        if self._closed.is_set() or self._engine.inherited:
            return
        self._closed.set()
        for thread in self._housekeepers:
            thread.join()
        with self._engine.lock:
            if self._engine.stopped is None:
                self._engine.stop(StorageError("it was closed"))
            self._engine.release_handles()
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
                return change(txn, self._engine.queue(queue))

        return self._engine.durably(command)

    def _as_time_left_it(self, queue: str) -> QueueState:
        """The queue, for a look at it with the lock held."""
        self._engine.check_usable()
        apply_waiting(self._engine)
        return self._engine.queue(queue)
