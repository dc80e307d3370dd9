"""The writer of an embedded store: one lock, atomic transactions, group commit.

Everything that changes a store goes through `Engine.transaction`: state, index, counters and journal
frame become one write, or none of it happened.

The lock is taken by `with engine.lock` alone: an interrupt, which may come after any call and at the start
of any function, cannot come between it and its block. What it leaves half done, the next call undoes.
"""

from __future__ import annotations

import logging
import os
import random
import sys
import threading
from collections.abc import Callable, Hashable, Sequence
from types import FrameType, TracebackType
from typing import Literal, TypeVar

from penstock.backends.embedded import keys
from penstock.backends.embedded.ahead import ReadAhead
from penstock.backends.embedded.buckets import Buckets
from penstock.backends.embedded.calls import Calls
from penstock.backends.embedded.delayline import FAR_FUTURE_NS, DelayLines
from penstock.backends.embedded.group_commit import GroupCommit
from penstock.backends.embedded.keys import Due, Meta
from penstock.backends.embedded.queue_state import QueueState
from penstock.backends.embedded.rows import MARK, encode_counters, unmarked
from penstock.backends.embedded.undecided import Undecided
from penstock.backends.meters import Meter, StoreMeter
from penstock.clock import NS_PER_S, Clock
from penstock.codec.frame import Column, Ids, Text, encode_frame, encode_run
from penstock.errors import BackendUnavailable, QueueNotFound, StorageCorrupt, StorageError
from penstock.event import Kind
from penstock.ids import IdGenerator
from penstock.kv.base import Store
from penstock.scheduling.throttle import Bucket

log = logging.getLogger("penstock")

T = TypeVar("T")
Item = TypeVar("Item")
R = TypeVar("R")

Durability = Literal["sync", "interval", "os"]

#: Deletions in one kind of due rows after which the place where the live ones start is written down, so
#: that reopening after a crash does not walk over more of their tombstones than this.
DUE_HINT_EVERY = 4096

#: One item for each fork since the first process: asking the kernel who one is, each time, is dear.
_forks: list[None] = []
os.register_at_fork(after_in_child=lambda: _forks.append(None))


class Engine:
    """An opened store and what is kept of it in memory. Its parts are guarded by `lock`."""

    def __init__(self, kv: Store, clock: Clock, rng: random.Random, durability: Durability) -> None:
        self.kv = kv
        self.clock = clock
        self.rng = rng
        self.durability: Durability = durability
        self.lock = threading.RLock()
        self.owns_lock: Callable[[], bool] = self.lock._is_owned  # type: ignore[attr-defined]
        self.ahead = ReadAhead(self)
        self.take_handles()
        self.queues: dict[str, QueueState] = {}
        self.by_qid: dict[int, QueueState] = {}
        #: Queues that cannot be used, by name, and why: those whose rows are damaged.
        self.damaged: dict[str, str] = {}
        #: Rows that say which queues and worlds there are were lost, and no repair has been since.
        self.catalogue_lost = any(loss.space in ("meta", "") for loss in kv.losses())
        #: No live due row of a kind is earlier than this; the hints are what the store has of it.
        self.next_due_ns: dict[Due, int] = {}
        #: The row of that time at which the next slice starts: what is before it may stay where it is.
        self.next_due_row: dict[Due, bytes] = {}
        self._due_hints_ns: dict[Due, int] = {}
        self._due_deletions = dict.fromkeys(Due, 0)
        #: By queue number, ended leases of messages whose fate a script decides: that is not done with the
        #: lock held. `next_due_ns` is past them, the hint in the store is not.
        self.undecided: dict[int, Undecided] = {}
        #: The first of the due rows of a kind that are being applied, in several writes perhaps.
        self.applying_ns: dict[Due, int] = {}
        self.lines = DelayLines(self)
        self.load_due_hints()
        #: The number for the next queue or world, once read.
        self.next_number: int | None = None
        #: Queues that a long-poll waits on.
        self.waiting: set[QueueState] = set()
        #: A forked child has a copy of all this, and of a database that only its parent may write.
        self._pid, self._forks = os.getpid(), len(_forks)
        self._stopped: StorageError | None = None
        self.when_stopped: Callable[[], None] = lambda: None
        #: The transaction under way; one that an interrupt ended is still here.
        self.open_transaction: Transaction | None = None
        #: Why the last write failed, until one succeeds: some engines then refuse all others.
        self.write_failure: BaseException | None = None
        self.writes = 0
        self.synced = 0
        self.buckets = Buckets(self)
        self.calls = Calls()
        self.meter = StoreMeter(clock)
        self._group = GroupCommit(self.sync, self.calls, self.meter.group_sizes)
        self.ids = IdGenerator(rng, self._count_opening())
        secret = kv.get(keys.meta(Meta.SECRET), self.meta)
        #: What dedup ids are hashed with; a store from before there was one has none.
        self.dedup_secret = b"" if secret is None else unmarked(secret, "secret")

    def take_handles(self) -> None:
        """The store's spaces; again after one of them was cleared."""
        space = self.kv.space
        self.messages, self.ready, self.state = space("messages"), space("ready"), space("state")
        self.due, self.dedup, self.journal = space("due"), space("dedup"), space("journal")
        self.entries, self.held, self.meta = space("entries"), space("held"), space("meta")
        self.ahead.clear()

    def _count_opening(self) -> int:
        """How often the store was opened, this time included."""
        key = keys.meta(Meta.OPENINGS)
        raw = self.kv.get(key, self.meta)
        opening = int.from_bytes(raw[1:], "big") + 1 if raw else 1
        batch = self.kv.batch()
        batch.put(key, MARK + keys.u64(opening), self.meta)
        self.kv.write(batch)
        self.writes += 1
        return opening

    # -- queues ---------------------------------------------------------------------------------

    def queue(self, name: str) -> QueueState:
        """The queue, its numbers loaded. Call it with the lock held."""
        try:
            q = self.queues[name]
        except (KeyError, TypeError):
            self.check_sound(name)
            raise QueueNotFound(name) from None
        if not q.loaded:
            self._load(q)
        return q

    def check_catalogue(self) -> None:
        """Before a name is given away: what is empty must not take the place of what can be brought back."""
        if self.catalogue_lost:
            raise StorageCorrupt(
                "rows that say which queues and worlds there are were lost: none is made anew until a repair "
                "has brought back those that it can: run penstock check --repair"
            )

    def queue_by_number(self, qid: int) -> QueueState | None:
        q = self.by_qid.get(qid)
        if q is not None and not q.loaded:
            self._load(q)
        return q

    def sound_queue(self, qid: int) -> QueueState | None:
        """The same, or None for one that is damaged: work on many queues goes on with the others."""
        try:
            return self.queue_by_number(qid)
        except StorageCorrupt:
            return None

    def _load(self, q: QueueState) -> None:
        try:
            q.load(self)
        except StorageCorrupt as error:
            self.note_damage(q.name, error)
            raise
        self.damaged.pop(q.name, None)

    def note_damage(self, name: str, error: StorageCorrupt) -> None:
        """A queue cannot be used; said once, and shown by `health`."""
        if self.damaged.get(name) != str(error):
            log.error("queue %r is damaged: %s", name, error)
        self.damaged[name] = str(error)

    def check_sound(self, name: str) -> None:
        """Raise `StorageCorrupt` for a queue whose own row is damaged."""
        if isinstance(name, str) and name in self.damaged:
            raise StorageCorrupt(f"queue {name!r} is damaged: {self.damaged[name]}; run check with repair")

    # -- writing --------------------------------------------------------------------------------

    def transaction(self) -> Transaction:
        """A context, with the lock held: at its end commits, or undoes what memory had taken on."""
        return Transaction(self)

    def check_usable(self) -> None:
        """Raise, unless the store can be used. Not to be called inside a transaction."""
        if self.inherited:
            raise StorageError(f"the store was opened in process {self._pid}; open it anew in this one")
        if self.open_transaction is not None and self.owns_lock():
            if self.open_transaction.runs_below(sys._getframe()):
                raise BackendUnavailable(
                    "called in the middle of another call of this thread, by a signal handler or a finalizer "
                    "perhaps; call from elsewhere"
                )
            self.open_transaction.undo()
        if self._stopped is not None:
            raise StorageError(f"the store has stopped: {self._stopped}; reopen it") from self._stopped

    def stop(self, error: StorageError) -> None:
        """Nothing is answered from now on: what memory holds may differ from what the disk has."""
        self._stopped = error
        with self.lock:
            for q in self.by_qid.values():
                q.arrived.notify_all()
        self.when_stopped()

    def read_anew(self, read: Callable[[], None]) -> None:
        """After a failure, memory follows the store again; where that cannot be read, nothing is answered."""
        try:
            read()
        except StorageError as error:
            self.stop(error)

    def release_handles(self) -> None:
        """Drop the store's handles: the driver keeps a database open while one is alive."""
        self.messages = self.ready = self.state = self.due = self.dedup = self.journal = None
        self.entries = self.held = self.meta = None
        for q in self.by_qid.values():
            q.unload()

    @property
    def inherited(self) -> bool:
        """Whether this process is a fork of the one that opened the store."""
        return self._forks != len(_forks)

    @property
    def stopped(self) -> StorageError | None:
        return self._stopped

    def durably(self, command: Callable[[], T]) -> T:
        """Run a command and return its answer once what it wrote is as durable as the mode promises."""
        self.check_usable()
        if self.durability == "sync" and not self.calls.defers:
            return self.meter.calls.timed(lambda: self._group.run(command))
        if not self.calls.current:
            return self.meter.calls.timed(command)
        with self.calls.running(self.calls.current):
            return self.meter.calls.timed(command)

    def durably_merged(
        self, kind: Hashable, items: Sequence[Item], command: Callable[[Sequence[Item]], list[R]]
    ) -> list[R]:
        """The same for a command that answers item by item: neighbours of a kind become one batch."""
        self.check_usable()
        if self.durability == "sync" and not self.calls.defers:
            return self.meter.calls.timed(lambda: self._group.run_merged(kind, items, command))
        return self.durably(lambda: command(items))

    def sync(self) -> bool:
        """Make everything written so far survive a power cut; False if there was nothing to do for that."""
        self.check_usable()
        covered = self.writes
        if covered == self.synced:
            return False
        started_ns = self.clock.now_ns()
        try:
            self.kv.sync()
        except StorageError as error:
            # After a failed fsync the kernel may have dropped the pages: a retry could lie.
            self.stop(error)
            raise
        self.synced = max(self.synced, covered)
        self.meter.sync_s.observe(max(0, self.clock.now_ns() - started_ns) / NS_PER_S)
        return True

    def now_ns(self) -> int:
        """The time: one and the same throughout a transaction, or what it has just decided would not hold."""
        txn = self.open_transaction
        return self.clock.now_ns() if txn is None else txn.now_ns

    def bucket_changed(self, bucket: Bucket) -> None:
        """It may have tokens earlier than the queues think: those that wait for some look again."""
        now_ns = self.now_ns()
        for q in self.by_qid.values():
            if q.loaded:
                q.ready.bucket_changed(bucket, now_ns)
        for q in self.waiting:
            q.arrived.notify_all()

    # -- what falls due -------------------------------------------------------------------------

    def earliest_due_ns(self) -> int:
        """A time before which no lease ends and no delay passes."""
        return min(self.next_due_ns[kind] for kind in (Due.LEASE, Due.DELAY, Due.LINE))

    def first_due_ns(self, kind: Due) -> int:
        """No due row of a kind is earlier, those included that someone is at."""
        first_ns = min(self.next_due_ns[kind], self.applying_ns.get(kind, FAR_FUTURE_NS))
        if kind == Due.LEASE and self.undecided:
            first_ns = min(first_ns, *(waiting.from_ns for waiting in self.undecided.values()))
        return first_ns

    def load_due_hints(self) -> None:
        self.undecided.clear()
        self.lines.forget()
        self.next_due_row.clear()
        for kind in Due:
            self.next_due_ns[kind] = self._due_hints_ns[kind] = self.stored_due_hint_ns(kind)

    def stored_due_hint_ns(self, kind: Due) -> int:
        raw = self.kv.get(keys.meta(Meta.DUE_HINT, bytes((kind,))), self.meta)
        return int.from_bytes(raw[1:], "big") if raw else 0

    def put_due_hint(self, txn: Transaction, kind: Due, at_ns: int) -> None:
        self._due_hints_ns[kind] = at_ns
        txn.put(keys.meta(Meta.DUE_HINT, bytes((kind,))), MARK + keys.u64(at_ns), self.meta)

    def note_due(self, txn: Transaction, kind: Due, at_ns: int) -> None:
        """A due row was put: keep the hints below it, and wake those who would sleep past it."""
        if at_ns < self._due_hints_ns[kind]:
            self.put_due_hint(txn, kind, at_ns)
        if at_ns < self.next_due_ns[kind]:
            for q in self.waiting:
                q.arrived.notify_all()
        self.look_again(kind, at_ns)

    def look_again(self, kind: Due, at_ns: int) -> None:
        """There are due rows from a time on that the next slice must not miss."""
        if at_ns <= self.next_due_ns[kind]:
            self.next_due_ns[kind] = at_ns
            self.next_due_row.pop(kind, None)

    def count_due_deletions(self, txn: Transaction, kind: Due, count: int) -> None:
        self._due_deletions[kind] += count
        if self._due_deletions[kind] < DUE_HINT_EVERY or kind == Due.LINE:  # That is not by time.
            return
        self._due_deletions[kind] = 0
        # Rows that this very write puts are not visible to the scan: they bound the hint themselves.
        lower = keys.meta(kind, keys.u64(self.next_due_ns[kind]))
        try:
            first = next(self.kv.scan(self.due, lower, bytes((kind + 1,)), limit=1), None)
        except StorageCorrupt:
            return  # A hint can wait: what is written down stays true.
        found = txn.now_ns if first is None else keys.parse_due(first[0])[1]
        hint = max(self.next_due_ns[kind], min(found, txn.earliest_put.get(kind, found)))
        self.next_due_ns[kind] = hint
        self.put_due_hint(txn, kind, self.first_due_ns(kind))


class Transaction:
    """One atomic write in the making."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def __enter__(self) -> Transaction:
        engine = self.engine
        if not engine.owns_lock():
            raise RuntimeError("a transaction without the lock: with engine.lock, engine.transaction()")
        engine.check_usable()
        self.now_ns = engine.clock.now_ns()
        self.batch = engine.kv.batch()
        self.put = self.batch.put
        self.delete = self.batch.delete
        #: Set before anything in memory changes: a failure then reads it anew.
        self.changed = False
        #: Whether it puts bodies where others are.
        self.replaces = False
        self.earliest_put: dict[Due, int] = {}
        self.due_deletions: dict[Due, int] = {}
        #: Buckets whose tokens changed: they are part of this write.
        self.drawn: set[Bucket] = set()
        #: Those of them that some were given back to.
        self.refilled: set[Bucket] = set()
        self._marked: dict[int, QueueState] = {}
        #: queue, which rate, how many: counted once they are written.
        self.rates: list[tuple[QueueState, int, int]] = []
        self.events: list[tuple[QueueState, Kind, int]] = []
        #: A meter, and the times since when something lasted until now.
        self.timings: list[tuple[Meter, Sequence[int]]] = []
        #: Where it runs, and None once it does not.
        self._frame: FrameType | None = sys._getframe(1)
        engine.open_transaction = self
        return self

    def runs_below(self, frame: FrameType | None) -> bool:
        """Whether it is still under way there, and not one that an interrupt has left behind."""
        while frame is not None and frame is not self._frame:
            frame = frame.f_back
        return frame is not None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None and self.changed:
                self._commit()
            elif kind is not None and (self.changed or not issubclass(kind, Exception)):
                self.undo()  # An interrupt may have come in the middle of anything.
            else:
                self.engine.open_transaction = None
        finally:
            self._frame = None  # It knows this transaction: both would stay until the next collection.

    def _commit(self) -> None:
        engine = self.engine
        try:
            self._finish()
            engine.kv.write(self.batch)
        except BaseException as error:
            engine.writes += 1  # An interrupt may have come after the write.
            failed_before, engine.write_failure = engine.write_failure, error
            self.undo()
            if failed_before is not None and type(error) is StorageError:
                # A store that could not write refuses to from then on: it is for the next to open it.
                engine.stop(error)
            raise
        engine.writes += 1
        engine.open_transaction = engine.write_failure = None
        for bucket in self.refilled:
            engine.bucket_changed(bucket)
        for q, which, count in self.rates:
            q.meter.rates.add(self.now_ns, which, count)
        for q, kind, count in self.events:
            q.meter.events[kind] += count
        for meter, since_ns in self.timings:
            meter.observe_since(self.now_ns, since_ns)

    def record(
        self,
        q: QueueState,
        kind: Kind,
        ids: Ids,
        attempts: Column = 0,
        due_ns: Column = 0,
        consumer: Text = "",
        reason: Text = "",
        extra: Text = "",
    ) -> None:
        """Events for the queue's journal, numbered from `q.counters.next_seq` on."""
        q.runs.append(encode_run(kind, self.now_ns, ids, attempts, due_ns, consumer, reason, extra))
        count = len(ids) // 16 if isinstance(ids, bytes) else len(ids)
        q.counters.next_seq += count
        q.pending += count
        self.events.append((q, kind, count))
        self.mark(q)

    def answered(self, answer: object) -> None:
        """What the callers are about to be told: kept for those that are not in this process."""
        if self.changed and self.engine.calls.answering:
            self.engine.calls.keep(self, answer)

    def mark(self, q: QueueState) -> None:
        """The queue's counters change: they are part of this write."""
        self._marked[q.qid] = q
        self.changed = True

    def put_due(self, kind: Due, at_ns: int, qid: int, raw_ids: list[bytes]) -> None:
        """Due rows of one time."""
        prefix = keys.due_prefix(kind, at_ns, qid)
        put, space = self.put, self.engine.due
        for raw_id in raw_ids:
            put(prefix + raw_id, MARK, space)
        if at_ns < self.earliest_put.get(kind, FAR_FUTURE_NS):
            self.earliest_put[kind] = at_ns
        self.engine.note_due(self, kind, at_ns)

    def delete_due(self, kind: Due, at_ns: int, qid: int, raw_id: bytes) -> None:
        self.delete(keys.due(kind, at_ns, qid, raw_id), self.engine.due)
        self.due_deletions[kind] = self.due_deletions.get(kind, 0) + 1

    def _finish(self) -> None:
        for kind, count in self.due_deletions.items():
            self.engine.count_due_deletions(self, kind, count)
        for bucket in self.drawn:
            self.engine.buckets.write(self, bucket)
        for q in self._marked.values():
            self.put_counters(q)

    def put_counters(self, q: QueueState) -> None:
        engine, c = self.engine, q.counters
        if min(c.counts) < 0:
            raise StorageCorrupt(f"queue {q.name!r}: a counter would fall below 0 ({c.counts}); run check")
        self.end_frame(q)
        self.put(keys.meta(Meta.COUNTERS, q.prefix), encode_counters(c), engine.meta)
        q.line_written()
        self.changed = True

    def end_frame(self, q: QueueState) -> None:
        """What was recorded so far is a frame; the counters say what stands after it."""
        c = q.counters
        if q.pending:
            frame = encode_frame(c.next_seq - q.pending, q.pending, self.now_ns, c.counts, q.runs)
            self.put(keys.journal(q.qid, c.next_seq - 1), frame, self.engine.journal)
            c.journal_bytes += len(frame)
            q.runs, q.pending = [], 0

    def undo(self) -> None:
        """Memory follows the store again: whatever this write had changed is read anew."""
        engine = self.engine
        engine.next_number = None
        engine.buckets.forget()
        for q in engine.by_qid.values():
            q.unload()
        engine.read_anew(engine.load_due_hints)
        engine.open_transaction = None
