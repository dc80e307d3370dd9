"""What is kept in memory of one queue: settings, counters, ready lanes, waiters. All of it derived."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from penstock.backends.embedded import keys
from penstock.backends.embedded.fifo import FifoIndex
from penstock.backends.embedded.keys import Meta, StateCode
from penstock.backends.embedded.known_leases import KnownLeases
from penstock.backends.embedded.ready import ReadyIndex
from penstock.backends.embedded.rows import (
    Counters,
    CursorRow,
    decode_counters,
    decode_cursor,
    decode_state,
    line_since,
)
from penstock.backends.meters import QueueMeter
from penstock.clock import to_ns
from penstock.errors import StorageCorrupt
from penstock.hooks.scripts import Script
from penstock.message import DEFAULT_PRIORITY
from penstock.scheduling.throttle import NEVER_NS
from penstock.settings import QueueSettings

if TYPE_CHECKING:
    from penstock.backends.embedded.engine import Engine


#: States of a message that may be in flight; in a fifo queue, one that waits for its retry is too.
_IN_FLIGHT = (StateCode.LEASED, StateCode.DELAYED)


class Arrivals(threading.Condition):
    """What is notified when a lease may succeed. Some wait for it, others are called: with the lock held,
    from whichever thread, so that they may only pass it on.
    """

    def __init__(self, lock: threading.RLock) -> None:
        super().__init__(lock)
        self.told: list[Callable[[], None]] = []

    def notify(self, n: int = 1) -> None:
        super().notify(n)
        for tell in self.told:
            tell()


class QueueState:
    """One queue. `load` reads what is derived from the store; `unload` forgets it after a failed write."""

    def __init__(
        self, qid: int, settings: QueueSettings, lock: threading.RLock, created_at_ns: int = 0
    ) -> None:
        self.qid = qid
        self.created_at_ns = created_at_ns
        self.prefix = keys.u32(qid)
        self.settings = settings
        self.arrived = Arrivals(lock)
        self.meter = QueueMeter()
        self.waiters = 0
        #: Those who wait know of no token that comes after this: one of them may not know of an earlier one.
        self.waiters_know_ns = 0
        self.loaded = False
        self.runs: list[bytes] = []
        self.pending = 0
        #: From when it is loaded; most queues of a store with many never are.
        self.leases: KnownLeases
        #: What its hooks were, when they were last run, and how they fare.
        self.scripts: dict[str, Script] = {}

    @property
    def name(self) -> str:
        return self.settings.name

    def load(self, engine: Engine, counters: Counters | None = None) -> None:
        """Read what is derived; with counters that were counted anew, all but those."""
        engine.ahead.clear()
        self.counters = counters or self._stored_counters(engine)
        self.required = self._required_cursors(engine)
        #: No body is held before this one: they are held, and freed, in the order of events.
        self.held_from = self.prefix
        self._load_ready(engine)
        self.runs, self.pending, self.leases = [], 0, KnownLeases()
        self.loaded = True

    def _load_ready(self, engine: Engine) -> None:
        """Where keys are limited, what is in flight of each is counted: as many rows as are in flight."""
        settings = self.settings
        self.ready = (
            FifoIndex(engine, self.qid)
            if settings.fifo
            else ReadyIndex(engine, self.qid, per_key=settings.max_leased_per_key)
        )
        #: Messages that wait for the queue's delay, and since when the last of them does, at most.
        self.in_line = self._last_since_ns = 0
        #: Whether that one left, and whether what is stored of the line is not what it is by now.
        self._last_left = self._line_changes = False
        if not self.limits_keys:
            return
        for code in _IN_FLIGHT if settings.fifo else _IN_FLIGHT[:1]:
            prefix = keys.state_prefix(self.qid, code)
            for _, value in engine.kv.scan(engine.state, prefix, keys.after_prefix(prefix)):
                with contextlib.suppress(StorageCorrupt):  # A damaged one blocks no key: check names it.
                    if code == StateCode.DELAYED and (since_ns := line_since(value)):
                        self.in_line += 1
                        self._last_since_ns = max(self._last_since_ns, since_ns)
                    else:
                        self.ready.started(decode_state(value).lane)

    def _stored_counters(self, engine: Engine) -> Counters:
        raw = engine.kv.get(keys.meta(Meta.COUNTERS, self.prefix), engine.meta)
        counters = decode_counters(raw) if raw else Counters()
        # A new queue has none yet. Where events are beyond the counters, these are lost or were set back:
        # the next event would overwrite those.
        lower, upper = keys.journal(self.qid, counters.next_seq), keys.u32(self.qid + 1)
        for _ in engine.kv.scan(engine.journal, lower, upper, limit=1):
            raise StorageCorrupt(f"its counters end before event {counters.next_seq}, its journal does not")
        return counters

    def _required_cursors(self, engine: Engine) -> dict[str, int]:
        lower, upper = keys.cursor(self.qid, b""), keys.cursor(self.qid + 1, b"")
        required = {}
        for key, value in engine.kv.scan(engine.meta, lower, upper):
            try:
                row = decode_cursor(value)
            except StorageCorrupt:
                row = CursorRow(0, True)  # Where it stands is not known: nothing is removed before a repair.
            if row.required:
                required[key[5:].decode(errors="replace")] = row.position
        return required

    def change(self, settings: QueueSettings) -> None:
        """New settings: those who wait may find that they need not."""
        if settings.max_leased_per_key != self.settings.max_leased_per_key:
            self.unload()
        if settings != self.settings:
            self.settings = settings
            self.arrived.notify_all()

    def unload(self) -> None:
        self.loaded = False
        self.runs, self.pending, self.leases = [], 0, KnownLeases()

    def room(self, wanted: int) -> int:
        """How many more may be leased, up to what is wanted."""
        most = self.settings.max_leased
        return wanted if most is None else max(0, min(wanted, most - self.counters.counts[StateCode.LEASED]))

    def lease_may_succeed(self, now_ns: int) -> bool:
        """Something may be ready that nothing stands in the way of."""
        ready = self.counters.counts[StateCode.READY] > 0
        return ready and self.room(1) > 0 and self.ready.may_have_next(now_ns)

    def next_release_ns(self) -> int:
        """A time before which nothing is handed out that only waits for tokens."""
        return self.ready.next_release_ns() if self.room(1) else NEVER_NS

    def watched_release_ns(self) -> int:
        """The same, for one who is about to wait for it."""
        release_ns = self.next_release_ns()
        self.waiters_know_ns = max(self.waiters_know_ns, release_ns) if self.waiters else release_ns
        return release_ns

    def tell_waiters(self) -> None:
        """After a lease: a token may come earlier than those who wait thought. Not all were told of what it
        is for, and who was may have gone.
        """
        if self.waiters and self.next_release_ns() < self.waiters_know_ns:
            self.waiters_know_ns = 0
            self.arrived.notify_all()

    @property
    def delay_ns(self) -> int:
        return to_ns(self.settings.delay_s)

    @property
    def lines_up(self) -> bool:
        """Whether what comes in waits first: for the queue's delay, or behind others that still do."""
        return self.in_line > 0 or self.settings.delay_s > 0

    def entered_line(self, since_ns: int) -> None:
        self.in_line += 1
        self._last_since_ns = max(self._last_since_ns, since_ns)
        self._line_changes = True

    def left_line(self, since_ns: int) -> None:
        self.in_line -= 1
        self._line_changes = True
        if self.in_line == 0:
            self._last_since_ns = 0
        elif since_ns == self._last_since_ns:
            self._last_left = True

    def line_written(self) -> None:
        """With the write under way what is stored of the line is what is known of it."""
        self._line_changes = False

    def waits_since(self, engine: Engine, now_ns: int) -> int:
        """Since when one that comes in waits: no earlier than one before it, whatever the clock says."""
        if self._last_left and self._last_since_ns > now_ns and not self._line_changes:
            # The clock was set back: one that is gone holds up nobody.
            with contextlib.suppress(StorageCorrupt):  # Damaged: check names it, and a repair reads all anew.
                self._last_since_ns, self._last_left = engine.lines.last_since_ns(self.qid), False
        return max(self._last_since_ns, now_ns)

    def line_due_ns(self, since_ns: int, now_ns: int) -> int:
        """When one that comes in is due, for its event: later, if only because of those before it."""
        return max(since_ns + self.delay_ns, now_ns + 1)

    @property
    def limits_keys(self) -> bool:
        return self.settings.fifo or self.settings.max_leased_per_key is not None

    def left_flight(self, code: StateCode, count: int, lanes: Iterable[bytes]) -> None:
        """Messages of these lanes are leased, or wait for their retry, no more: others may go."""
        if code == StateCode.DELAYED and not self.settings.fifo:
            return
        if self.limits_keys:
            for lane in lanes:
                self.ready.ended(lane)
        if self.limits_keys or self.settings.max_leased is not None:
            self.arrived.notify(count)

    def lane(self, priority: int, fairness_key: str, throttle_keys: Sequence[str]) -> bytes:
        """The lane of a message. A fifo key is one lane: its order holds whatever else differs."""
        if self.settings.fifo:
            return keys.lane(DEFAULT_PRIORITY, fairness_key.encode(), ())
        return keys.lane(priority, fairness_key.encode(), tuple(key.encode() for key in throttle_keys))

    def next_order_ns(self, now_ns: int, count: int = 1) -> int:
        """The first of `count` places in line, after every place given out before."""
        first = max(now_ns, self.counters.last_order_ns + 1)
        self.counters.last_order_ns = first + count - 1
        return first
