"""What is kept in memory of one queue: settings, counters, ready lanes, waiters. All of it derived."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.backends.embedded import keys
from penstock.backends.embedded.keys import Meta, StateCode
from penstock.backends.embedded.ready import ReadyIndex
from penstock.backends.embedded.rows import Counters, decode_counters, decode_cursor, decode_state
from penstock.message import DEFAULT_PRIORITY
from penstock.settings import QueueSettings

if TYPE_CHECKING:
    from penstock.backends.embedded.engine import Engine

RATE_WINDOW_S = 60


class Rates:
    """Enqueues, acks and failures of the last minute, in buckets of a second."""

    def __init__(self) -> None:
        self._buckets: dict[int, list[int]] = {}

    def add(self, now_ns: int, which: int, count: int) -> None:
        second = now_ns // 1_000_000_000
        bucket = self._buckets.get(second)
        if bucket is None:
            bucket = self._buckets[second] = [0, 0, 0]
            if len(self._buckets) > RATE_WINDOW_S + 1:
                self._buckets = {s: b for s, b in self._buckets.items() if s > second - RATE_WINDOW_S}
                self._buckets[second] = bucket
        bucket[which] += count

    def per_second(self, now_ns: int) -> list[float]:
        """Over the last minute, for enqueues, acks and failures."""
        since = now_ns // 1_000_000_000 - RATE_WINDOW_S
        recent = [b for s, b in self._buckets.items() if s > since]
        return [sum(b[i] for b in recent) / RATE_WINDOW_S for i in range(3)]


ENQUEUED, ACKED, FAILED = 0, 1, 2


class QueueState:
    """One queue. `load` reads what is derived from the store; `unload` forgets it after a failed write."""

    def __init__(self, qid: int, settings: QueueSettings, lock: threading.RLock) -> None:
        self.qid = qid
        self.prefix = keys.u32(qid)
        self.settings = settings
        self.arrived = threading.Condition(lock)
        self.rates = Rates()
        self.waiters = 0
        self.loaded = False
        self.runs: list[bytes] = []
        self.pending = 0

    @property
    def name(self) -> str:
        return self.settings.name

    def load(self, engine: Engine) -> None:
        raw = engine.kv.get(keys.meta(Meta.COUNTERS, self.prefix), engine.meta)
        self.counters = decode_counters(raw) if raw else Counters()
        self.required = {
            key[5:].decode(): row.position
            for key, row in (
                (key, decode_cursor(value))
                for key, value in engine.kv.scan(
                    engine.meta, keys.cursor(self.qid, b""), keys.cursor(self.qid + 1, b"")
                )
            )
            if row.required
        }
        #: No body is held before this one: they are held, and freed, in the order of events.
        self.held_from = self.prefix
        self.ready = ReadyIndex(engine, self.qid, fifo=self.settings.fifo)
        if self.settings.fifo:
            for code in (StateCode.LEASED, StateCode.DELAYED):
                prefix = keys.state_prefix(self.qid, code)
                for _, value in engine.kv.scan(engine.state, prefix, keys.after_prefix(prefix)):
                    self.ready.block(decode_state(value).lane)
        self.runs, self.pending = [], 0
        self.loaded = True

    def unload(self) -> None:
        self.loaded = False
        self.runs, self.pending = [], 0

    def lease_may_succeed(self) -> bool:
        """Something may be ready, and not only behind fifo keys in flight."""
        return self.counters.counts[StateCode.READY] > 0 and self.ready.may_have_next()

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
