"""The ready index: which message is next. Lanes in memory, rows in the store.

A *lane* is (priority, fairness key, throttle set): one contiguous range of ready rows in order of
visibility. Its next rows are cached, and what is enqueued behind a wholly cached lane is appended to the
cache, so that a busy queue leases without reading its index. Lanes are found by seeking from one to the
next, a slice per call, so that opening a store reads nothing.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

from sortedcontainers import SortedDict

from penstock.backends.embedded import keys
from penstock.backends.embedded.rows import MARK
from penstock.kv.base import Row

if TYPE_CHECKING:
    from penstock.backends.embedded.engine import Engine, Transaction

#: Rows cached over all lanes of a queue, and the least that a lane may cache of its own.
CACHED_ROWS = 65_536
CACHED_ROWS_MIN = 8
FILL_ROWS = 1024
#: Lanes discovered by one call.
DISCOVERY_SLICE = 2000
#: Rows taken from a lane after which its head is written down, so that reopening never walks over more
#: tombstones than this.
HINT_EVERY = 4096
#: Empty lanes whose count of rows taken is remembered.
TAKEN_KEPT = 10_000
#: A lower priority that has work gets at least one in this many deliveries.
STARVATION_BOUND = 20
LEVELS = 10


class Lane:
    """One lane: `rows` are its next ones; while not `complete`, the store has more from `more_from` on."""

    __slots__ = ("complete", "credit", "end", "lane", "more_from", "prefix", "queued", "rows", "taken")

    def __init__(self, prefix: bytes, lane: bytes, more_from: bytes, *, complete: bool) -> None:
        self.prefix = prefix
        self.lane = lane
        self.end = keys.after_prefix(prefix)
        self.rows: deque[Row] = deque()
        self.more_from = more_from
        self.complete = complete
        self.credit = 0
        self.queued = False
        self.taken = 0


class ReadyIndex:
    """The lanes of one queue."""

    def __init__(self, engine: Engine, qid: int, *, fifo: bool) -> None:
        self._engine = engine
        self._qid = qid
        self._prefix = keys.u32(qid)
        self._end = keys.after_prefix(self._prefix)
        self._fifo = fifo
        self._lanes: dict[bytes, Lane] = {}
        self._rings: list[deque[Lane]] = [deque() for _ in range(LEVELS)]
        self._waited = [0] * LEVELS
        self._blocked: set[bytes] = set()
        #: Rows taken from lanes that are empty now, since their last hint.
        self._taken: dict[bytes, int] = {}
        self._ages: list[tuple[bytes, bytes]] = []
        self._undiscovered_from: bytes | None = self._prefix
        hint_prefix = keys.lane_hint(qid, b"")
        #: lane -> first row that may be live: what the store has written down.
        self._hints = SortedDict(
            (key[5:], value[1:])
            for key, value in engine.kv.scan(engine.meta, hint_prefix, keys.after_prefix(hint_prefix))
        )

    # -- changes --------------------------------------------------------------------------------

    def add(self, txn: Transaction, lane_bytes: bytes, rows: list[Row]) -> None:
        """Rows, in key order, that this transaction puts."""
        hint = self._hints.get(lane_bytes)
        if hint is not None and rows[0][0] < hint:
            self._write_hint(txn, lane_bytes, rows[0][0])
        prefix = self._prefix + lane_bytes
        lane = self._lanes.get(lane_bytes)
        if lane is None:
            if self._undiscovered_from is not None and prefix >= self._undiscovered_from:
                return
            lane = self._lanes[lane_bytes] = Lane(prefix, lane_bytes, prefix, complete=True)
            lane.taken = self._taken.pop(lane_bytes, 0)
        cached = lane.rows
        if not cached or rows[0][0] < cached[0][0]:
            self._note_age(lane, rows[0][0])
        if not cached and not lane.complete:
            lane.more_from = min(lane.more_from, rows[0][0])
        elif not cached or rows[0][0] > cached[-1][0]:
            if lane.complete and len(cached) + len(rows) <= self._lane_capacity():
                cached.extend(rows)
            elif lane.complete:
                # From the end of the cache, not from these rows: one that is added later may fall between.
                lane.complete = False
                lane.more_from = cached[-1][0] + b"\0" if cached else rows[0][0]
        elif len(rows) == 1 and rows[0][0] < cached[0][0]:
            cached.appendleft(rows[0])
        else:
            self._forget_rows(lane, min(cached[0][0], rows[0][0]))
        self._enlist(lane)

    def forget(self, lane_bytes: bytes) -> None:
        """Rows of this lane are being deleted out of turn: read it from the store again."""
        lane = self._lanes.get(lane_bytes)
        if lane is not None and lane.rows:
            self._forget_rows(lane, lane.rows[0][0])

    def _forget_rows(self, lane: Lane, more_from: bytes) -> None:
        lane.rows.clear()
        lane.complete = False
        lane.more_from = more_from

    def block(self, lane_bytes: bytes) -> None:
        """A fifo key has a message in flight: nothing of it is handed out."""
        self._blocked.add(lane_bytes)

    def unblock(self, lane_bytes: bytes) -> None:
        self._blocked.discard(lane_bytes)
        lane = self._lanes.get(lane_bytes)
        if lane is not None:
            self._enlist(lane)

    def take(self, txn: Transaction, count: int) -> list[tuple[Lane, Row]]:
        """The next rows by priority, then fair turns over lanes; the caller deletes them."""
        if self._undiscovered_from is not None:
            self._discover_some()
        out: list[tuple[Lane, Row]] = []
        while len(out) < count:
            if self._may_find_higher():
                self._discover_some()
                continue
            level, allowance = self._next_level(count - len(out))
            if level < 0:
                if self._undiscovered_from is None:
                    break
                self._discover_some()
                continue
            before = len(out)
            self._take_from_ring(txn, self._rings[level], allowance, out)
            self._note_service(level, len(out) - before)
        return out

    def _may_find_higher(self) -> bool:
        """Whether lanes are yet to be discovered above, or at, the highest level that has any in line."""
        at = self._undiscovered_from
        if at is None or len(at) <= len(self._prefix):
            return False
        top = next((level for level in range(LEVELS) if self._rings[level]), LEVELS)
        return at[len(self._prefix)] < top

    def may_have_next(self) -> bool:
        """False only if `take` would find nothing."""
        return self._undiscovered_from is not None or any(self._rings)

    # -- reading --------------------------------------------------------------------------------

    def oldest_order_ns(self) -> int | None:
        """When the longest-waiting ready message became visible.

        Amortized: what a call corrects, a lease has moved before.
        """
        while self._undiscovered_from is not None:
            self._discover_some()
        ages = self._ages
        while ages:
            noted, lane_bytes = ages[0]
            lane = self._lanes.get(lane_bytes)
            head = self._head(lane) if lane is not None else None
            if head is None:
                heapq.heappop(ages)
            elif head[-keys.ORDER_AND_ID_BYTES :] != noted:
                heapq.heapreplace(ages, (head[-keys.ORDER_AND_ID_BYTES :], lane_bytes))
            else:
                return int.from_bytes(noted[:8], "big")
        return None

    def scan(self, after: bytes | None, lane_prefix: bytes = b"") -> Iterator[Row]:
        """Ready rows after a key, in key order, never walking over what was consumed long ago."""
        lower = self._prefix + lane_prefix
        upper = keys.after_prefix(lower)
        if after is not None:
            lower = max(lower, after + b"\0")
        for start, end in self._live_ranges(lower, upper):
            yield from self._engine.kv.scan(self._engine.ready, start, end)

    # -- lanes ----------------------------------------------------------------------------------

    def _lane_capacity(self) -> int:
        return max(CACHED_ROWS_MIN, min(FILL_ROWS * 8, CACHED_ROWS // max(1, len(self._lanes))))

    def _enlist(self, lane: Lane) -> None:
        if not lane.queued and lane.lane not in self._blocked:
            lane.queued = True
            self._rings[lane.lane[0]].append(lane)

    def _note_age(self, lane: Lane, key: bytes) -> None:
        """A lane that was empty, or a row before its head: it may be older than what is noted of it."""
        heapq.heappush(self._ages, (key[-keys.ORDER_AND_ID_BYTES :], lane.lane))
        if len(self._ages) > 2 * len(self._lanes) + 64:
            # Lanes come and go: keep one note each. b"" sorts first and is corrected when it is read.
            self._ages = [
                (lane.rows[0][0][-keys.ORDER_AND_ID_BYTES :] if lane.rows else b"", lane.lane)
                for lane in self._lanes.values()
            ]
            heapq.heapify(self._ages)

    def _head(self, lane: Lane) -> bytes | None:
        if not lane.rows:
            self._fill(lane)
        return lane.rows[0][0] if lane.rows else None

    def _fill(self, lane: Lane) -> None:
        if lane.complete:
            return
        limit = min(FILL_ROWS, self._lane_capacity())
        # Read first, then taken on: a read that fails half-way must not leave half of it here.
        rows = list(self._engine.kv.scan(self._engine.ready, lane.more_from, lane.end, limit=limit))
        lane.rows.extend(rows)
        lane.complete = len(rows) < limit
        if rows:
            lane.more_from = rows[-1][0] + b"\0"

    def _discover_some(self) -> None:
        """Find further lanes in the store, in key order; first of all, one of each priority.

        So a lower priority gets its turns from the first lease on, however many lanes are above it.
        """
        if self._undiscovered_from == self._prefix:
            for level in range(LEVELS):
                lower = self._prefix + bytes((level,))
                self._discover_in(lower, self._prefix + bytes((level + 1,)))
        for _ in range(DISCOVERY_SLICE):
            if self._undiscovered_from is None:
                return
            lane = self._discover_in(self._undiscovered_from, self._end)
            self._undiscovered_from = None if lane is None else lane.end

    def _discover_in(self, lower: bytes, upper: bytes | None) -> Lane | None:
        """The first lane in a range that has rows."""
        kv, space = self._engine.kv, self._engine.ready
        for start, end in self._live_ranges(lower, upper):
            for key, _ in kv.scan(space, start, end, limit=1):
                prefix = key[: -keys.ORDER_AND_ID_BYTES]
                lane_bytes = prefix[len(self._prefix) :]
                lane = self._lanes.get(lane_bytes)
                if lane is None:
                    lane = self._lanes[lane_bytes] = Lane(prefix, lane_bytes, key, complete=False)
                    self._note_age(lane, key)
                    self._enlist(lane)
                return lane
        return None

    def _live_ranges(self, lower: bytes, upper: bytes | None) -> Iterator[tuple[bytes, bytes | None]]:
        """The range, less the parts before the heads that the hints have written down."""
        hints, skip = self._hints, len(self._prefix)
        # The last lane that starts at or before `lower` may reach into the range.
        first = max(0, hints.bisect_right(lower[skip:]) - 1)
        for lane_bytes in hints.islice(first):
            start, head = self._prefix + lane_bytes, hints[lane_bytes]
            if head <= lower:
                continue
            if upper is not None and start >= upper:
                break
            if lower < start:
                yield lower, start
            lower = head
        if upper is None or lower < upper:
            yield lower, upper

    # -- turns ----------------------------------------------------------------------------------

    def _next_level(self, wanted: int) -> tuple[int, int]:
        """(level to serve, how many); level -1 when nothing is ready."""
        active = [level for level in range(LEVELS) if self._rings[level]]
        if len(active) < 2:
            return (active[0], wanted) if active else (-1, 0)
        # By deadline: the top level may go on as long as every other still gets its turn in time.
        starving = sorted(active[1:], key=self._waited.__getitem__, reverse=True)
        slack = min(
            STARVATION_BOUND - 1 - self._waited[level] - turns_before
            for turns_before, level in enumerate(starving)
        )
        return (active[0], min(wanted, slack)) if slack > 0 else (starving[0], 1)

    def _note_service(self, level: int, count: int) -> None:
        for other in range(LEVELS):
            if other == level or not self._rings[other]:
                self._waited[other] = 0
            else:
                self._waited[other] += count

    def _take_from_ring(
        self, txn: Transaction, ring: deque[Lane], count: int, out: list[tuple[Lane, Row]]
    ) -> None:
        while count > 0 and ring:
            lane = ring[0]
            if lane.lane in self._blocked:
                ring.popleft()
                lane.queued = False
                continue
            if not lane.rows:
                self._fill(lane)
            rows = lane.rows
            if not rows:
                ring.popleft()
                lane.queued = False
                self._drop_empty(lane)
                continue
            if lane.credit <= 0:
                lane.credit = int.from_bytes(rows[0][1][2:4], "big")
            share = min(count, len(rows), 1 if self._fifo else count if len(ring) == 1 else lane.credit)
            txn.changed = True
            out.extend((lane, rows.popleft()) for _ in range(share))
            count -= share
            lane.credit -= share
            lane.taken += share
            if lane.taken >= HINT_EVERY:
                self._write_hint_after(txn, lane, out[-1][1][0])
            if self._fifo:
                ring.popleft()
                lane.queued = False
                self._blocked.add(lane.lane)
                if not rows and lane.complete:
                    self._drop_empty(lane)
            elif lane.credit <= 0:
                ring.rotate(-1)

    def _drop_empty(self, lane: Lane) -> None:
        # Ahead of the discovery it stays known: the rows just taken are still in the store until the write.
        if self._undiscovered_from is None or lane.prefix < self._undiscovered_from:
            del self._lanes[lane.lane]
            # A queue that is always drained leaves as many tombstones as one that never is.
            if len(self._taken) >= TAKEN_KEPT:
                self._taken.clear()
            self._taken[lane.lane] = lane.taken

    def _write_hint_after(self, txn: Transaction, lane: Lane, taken: bytes) -> None:
        lane.taken = 0
        self._write_hint(txn, lane.lane, taken + b"\0")

    def _write_hint(self, txn: Transaction, lane_bytes: bytes, key: bytes) -> None:
        self._hints[lane_bytes] = key
        txn.put(keys.lane_hint(self._qid, lane_bytes), MARK + key, self._engine.meta)
