"""Lanes: the ready rows of a queue by priority, fairness key and throttle set.

A *lane* is one contiguous range of ready rows in order of visibility. Its next rows are cached, and what is
enqueued behind a wholly cached lane is appended to the cache, so that a busy queue leases without reading its
index. Lanes are found by seeking from one to the next, a slice per call: opening a store reads nothing.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from sortedcontainers import SortedDict

from penstock.backends.embedded import keys
from penstock.backends.embedded.rows import MARK
from penstock.kv.base import Row
from penstock.scheduling.fairness import LEVELS

if TYPE_CHECKING:
    from penstock.backends.embedded.engine import Engine, Transaction
    from penstock.backends.embedded.gates import Claim
    from penstock.backends.embedded.newcomers import Newcomers
    from penstock.backends.embedded.turns import Turn

#: A ready row that has its whole message, which is nothing but a payload and where it belongs: key and value,
#: the payload, when it was enqueued. One tuple of it all, for there are many.
WholeRow = tuple[bytes, bytes, bytes, int]
#: Or key and value, and the body where that is kept.
ReadyRow = WholeRow | tuple[bytes, bytes, bytes | None, None]

#: Bodies that a store keeps of what was just enqueued, over all queues, and how large one may be.
KEPT_BODIES = 32_768
KEPT_BODY_BYTES = 1024
#: Of small ones it keeps so many times as many: of the bytes that KEPT_BODIES of so many would have, each may
#: have its part.
KEPT_SMALL_TIMES = 4
KEPT_SMALL_BYTES = 768
#: Rows cached over all lanes of a queue, and the least that a lane may cache of its own.
CACHED_ROWS = 65_536
CACHED_ROWS_MIN = 8
FILL_ROWS = 1024
#: Lanes discovered by one call, and those of one key that are looked for before it is served.
DISCOVERY_SLICE = 2000
KEY_SLICE = 2000
#: Rows taken from a lane after which its head is written down, so that reopening never walks over more
#: tombstones than this.
HINT_EVERY = 4096
#: Empty lanes whose count of rows taken is remembered.
TAKEN_KEPT = 10_000


class Place:
    """Where a lane is: nowhere, in line, waiting at a gate, or aside because its key has enough in flight."""

    NOWHERE, IN_LINE, WAITING, ASIDE = range(4)


class Lane:
    """One lane: from `at` on, `rows` are its next ones; while not `complete`, the store has more from
    `more_from` on, `beyond` of them if they were `counted`. There are rows only if there is one that is next.

    Its key's line has it under `head`, the order and id of a row that is not behind its first one.
    """

    __slots__ = (
        "at",
        "beyond",
        "claims",
        "complete",
        "counted",
        "head",
        "lane",
        "more_from",
        "name",
        "place",
        "priority",
        "rows",
        "taken",
        "turn",
        "waits",
    )

    def __init__(self, lane: bytes, first: bytes, more_from: bytes, *, complete: bool) -> None:
        self.lane = lane
        self.priority = keys.lane_priority(lane)
        #: Its fairness key as text, once someone has asked for it.
        self.name: str | None = None
        self.rows: list[ReadyRow] = []
        self.at = 0
        self.more_from = more_from
        self.complete = complete
        #: Until they are counted, by how much they have changed since the count began.
        self.beyond = 0
        self.counted = complete
        self.taken = 0
        self.head = first[-keys.ORDER_AND_ID_BYTES :]
        self.place = Place.NOWHERE
        #: Its key's turn, once it has been in line.
        self.turn: Turn | None = None
        #: Its key's claims to the tokens that it needs, and the one that it waits for.
        self.claims: tuple[Claim, ...] = ()
        self.waits: Claim | None = None

    @property
    def fairness_key(self) -> str:
        """Raises where a damaged row made the lane."""
        if self.name is None:
            self.name = keys.lane_fairness_key(self.lane)
        return self.name

    @property
    def first(self) -> bytes:
        """Order and id of its first row, which it must have."""
        return self.rows[self.at][0][-keys.ORDER_AND_ID_BYTES :]

    @property
    def depth(self) -> int:
        """How many rows it has, as far as they are counted."""
        return len(self.rows) - self.at + (0 if self.complete else self.beyond)

    def extend(self, rows: list[ReadyRow]) -> None:
        """Rows behind those that it has."""
        if self.at > len(self.rows) >> 1:  # What was taken is still there: it goes now and then.
            self.drop_taken()
        self.rows += rows

    def drop_taken(self) -> None:
        del self.rows[: self.at]
        self.at = 0

    def keep(self, count: int) -> None:
        """No more than so many of its rows: the store has the others."""
        self.drop_taken()
        more = len(self.rows) - count
        if self.complete and more > 0:
            del self.rows[count:]
            # From the end of the cache: a row that is added later may fall between.
            self.more_from = self.rows[-1][0] + b"\0"
            self.complete, self.beyond, self.counted = False, more, True

    def pop(self, count: int) -> list[ReadyRow]:
        """So many of its rows, which it must have."""
        rows, end = self.rows[self.at : self.at + count], self.at + count
        self.at = end
        if end == len(self.rows):
            self.rows.clear()
            self.at = 0
        return rows

    def forget(self, more_from: bytes) -> None:
        """Read it from the store again, from a row on."""
        self.beyond = self.depth
        self.rows.clear()
        self.at = 0
        self.complete = False
        self.more_from = more_from

    def __lt__(self, other: Lane) -> bool:
        """In heaps, after what counts: a message that changed its lane may be noted in both."""
        return self.lane < other.lane


class Lanes:
    """The lanes of one queue. `enlist` is told of all lanes that got rows: some are in no place."""

    def __init__(self, engine: Engine, qid: int, enlist: Callable[[Iterable[Lane]], None]) -> None:
        self._engine = engine
        self._qid = qid
        self._prefix = keys.u32(qid)
        self._end = keys.after_prefix(self._prefix)
        self._enlist = enlist
        self._lanes: dict[bytes, Lane] = {}
        #: Rows taken from lanes that are empty now, since their last hint.
        self._taken: dict[bytes, int] = {}
        #: Lanes by the age of their first rows, as it was noted, and those to be noted when someone asks.
        self._ages: list[tuple[bytes, Lane]] = []
        self._unaged: list[Lane] = []
        self._undiscovered_from: bytes | None = self._prefix
        hint_prefix = keys.lane_hint(qid, b"")
        #: lane -> first row that may be live: what the store has written down.
        self._hints = SortedDict(
            (key[5:], value[1:])
            for key, value in engine.kv.scan(engine.meta, hint_prefix, keys.after_prefix(hint_prefix))
        )

    # -- changes --------------------------------------------------------------------------------

    def add_all(self, txn: Transaction, new: Newcomers) -> None:
        """A batch is in its lanes, as far as those are known and wholly cached, and now in the others too."""
        room, nowhere = self._lane_capacity(), Place.NOWHERE
        away: list[Lane] = []
        self._unaged += new.empty
        for lane in new.empty + new.grown:
            rows = lane.rows
            if len(rows) > room:
                lane.keep(room)
            elif lane.at > len(rows) >> 1:
                lane.drop_taken()
            if lane.place == nowhere:
                away.append(lane)  # Twice, perhaps.
        self._enlist(away)
        for lane, others in new.queued:
            if not others:
                continue
            if lane.rows and not lane.complete and lane.place != nowhere and lane.rows[-1][0] < others[0][0]:
                lane.beyond += len(others)  # The store has them, behind what is cached.
            else:
                self.add(txn, lane.lane, others)
        for lane_bytes, others in new.others.items():
            if others:
                self.add(txn, lane_bytes, others)
        self._bound_ages()

    def add(self, txn: Transaction, lane_bytes: bytes, rows: list[ReadyRow]) -> None:
        """Rows, in key order, that this transaction puts."""
        first = rows[0][0]
        if first < self._hints.get(lane_bytes, b""):
            self._write_hint(txn, lane_bytes, first)
        lane = self._lanes.get(lane_bytes) or self._created(lane_bytes, first)
        if lane is not None:
            self._cache(lane, rows, first)
            if lane.place == Place.NOWHERE:
                self._enlist((lane,))

    def add_stored(self, txn: Transaction, lane_bytes: bytes, first: bytes, count: int) -> None:
        """So many rows, from `first` on, that the store has already."""
        if first < self._hints.get(lane_bytes, b""):
            self._write_hint(txn, lane_bytes, first)
        lane = self._lanes.get(lane_bytes) or self._created(lane_bytes, first)
        if lane is None:
            return
        head, end = (lane.rows[lane.at][0], lane.rows[-1][0]) if lane.rows else (None, None)
        if head is None or first < head:
            self._note_age(lane)
            if lane.turn is not None:
                lane.turn.note(lane, first[-keys.ORDER_AND_ID_BYTES :])
        if end is not None and head is not None and first < end:
            lane.forget(min(head, first))
        elif lane.complete:
            lane.complete, lane.counted = False, True
            lane.beyond = 0
            lane.more_from = first if end is None else end + b"\0"
        elif end is None:
            lane.more_from = min(lane.more_from, first)
        lane.beyond += count
        if lane.place == Place.NOWHERE:
            self._enlist((lane,))

    def _created(self, lane_bytes: bytes, first: bytes) -> Lane | None:
        """A lane that was empty; None for one that is yet to be discovered."""
        prefix = self._prefix + lane_bytes
        if self._undiscovered_from is not None and prefix >= self._undiscovered_from:
            return None
        lane = self._lanes[lane_bytes] = Lane(lane_bytes, first, prefix, complete=True)
        lane.taken = self._taken.pop(lane_bytes, 0)
        return lane

    def _cache(self, lane: Lane, rows: list[ReadyRow], first: bytes) -> None:
        cached, head = lane.rows, lane.rows[lane.at][0] if lane.rows else None
        if head is None or first < head:
            self._note_age(lane)
            if lane.turn is not None:
                lane.turn.note(lane, first[-keys.ORDER_AND_ID_BYTES :])
        if head is None and not lane.complete:
            lane.more_from = min(lane.more_from, first)
            lane.beyond += len(rows)
        elif head is None or first > cached[-1][0]:
            if lane.complete and len(cached) - lane.at + len(rows) <= self._lane_capacity():
                lane.extend(rows)
            elif lane.complete:
                # From the end of the cache, not from these rows: one that is added later may fall between.
                lane.complete = False
                lane.more_from = cached[-1][0] + b"\0" if cached else first
                lane.beyond, lane.counted = len(rows), True
            else:
                lane.beyond += len(rows)
        elif len(rows) == 1 and first < head:
            cached.insert(lane.at, rows[0])
        else:
            lane.forget(min(head, first))
            lane.beyond += len(rows)

    def forget(self, lane_bytes: bytes) -> None:
        """A row of this lane is being deleted out of turn: read it from the store again."""
        lane = self._lanes.get(lane_bytes)
        if lane is None:
            return
        if lane.rows:
            lane.forget(lane.rows[lane.at][0])
        lane.beyond -= 1

    def put_back(self, txn: Transaction, lane: Lane, row: ReadyRow) -> None:
        """A row that was just taken is the first of its lane again."""
        lane.rows.insert(lane.at, row)
        lane.taken = max(0, lane.taken - 1)
        if self._hints.get(lane.lane, b"") > row[0]:
            self._write_hint(txn, lane.lane, row[0])

    def drop(self, lane: Lane) -> bool:
        """An empty lane is forgotten; False if it must stay known."""
        # Ahead of the discovery it stays: the rows just taken are still in the store until the write.
        undiscovered = self._undiscovered_from
        if undiscovered is not None and self._prefix + lane.lane >= undiscovered:
            return False
        del self._lanes[lane.lane]
        # A queue that is always drained leaves as many tombstones as one that never is.
        if len(self._taken) >= TAKEN_KEPT:
            self._taken.clear()
        self._taken[lane.lane] = lane.taken
        return True

    def write_hint_after(self, txn: Transaction, lane: Lane, taken: bytes) -> None:
        lane.taken = 0
        self._write_hint(txn, lane.lane, taken + b"\0")

    def _write_hint(self, txn: Transaction, lane_bytes: bytes, key: bytes) -> None:
        self._hints[lane_bytes] = key
        txn.put(keys.lane_hint(self._qid, lane_bytes), MARK + key, self._engine.meta)

    # -- reading --------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Lane]:
        return iter(self._lanes.values())

    def keeps_up_to_bytes(self, ready: int) -> int:
        """How large a body may be for the row that it is enqueued with to keep it; -1: none is kept.

        What is leased together lies scattered in the store if it is of many keys, and reading it there is
        dear; what is of one lane lies together. No more are kept than are `ready`: so these are what bounds
        them.
        """
        kept = ready * len(self._engine.by_qid)
        if kept >= KEPT_SMALL_TIMES * KEPT_BODIES or len(self._lanes) < 2:
            return -1
        return KEPT_BODY_BYTES if kept < KEPT_BODIES else KEPT_BODIES * KEPT_SMALL_BYTES // kept

    def __len__(self) -> int:
        return len(self._lanes)

    def get(self, lane_bytes: bytes) -> Lane | None:
        """The lane, if it is known."""
        return self._lanes.get(lane_bytes)

    def fill(self, lane: Lane) -> None:
        """Read its next rows, if it has none cached and the store may have some."""
        if lane.complete or lane.rows:
            return
        limit = min(FILL_ROWS, self._lane_capacity())
        end = keys.after_prefix(self._prefix + lane.lane)
        # Read first, then taken on: a read that fails half-way must not leave half of it here.
        found = self._engine.kv.scan(self._engine.ready, lane.more_from, end, limit=limit)
        rows: list[ReadyRow] = [(key, value, None, None) for key, value in found]
        lane.rows.extend(rows)
        lane.complete = len(rows) < limit
        lane.beyond -= len(rows)
        if lane.complete:
            lane.beyond, lane.counted = 0, True
        if rows:
            lane.more_from = rows[-1][0] + b"\0"

    def oldest_order_ns(self) -> int | None:
        """When the longest-waiting ready message became visible.

        Amortized: what a call corrects, a lease has moved before.
        """
        while self._undiscovered_from is not None:
            self.discover_some()
        self.note_ages(len(self._unaged))
        ages = self._ages
        while ages:
            noted, lane = ages[0]
            self.fill(lane)
            if not lane.rows:
                heapq.heappop(ages)
            elif lane.first != noted:
                heapq.heapreplace(ages, (lane.first, lane))
            else:
                return int.from_bytes(noted[:8], "big")
        return None

    def _note_age(self, lane: Lane) -> None:
        """A lane that was empty, or got a row before its head: it may be older than what is noted of it."""
        self._unaged.append(lane)
        self._bound_ages()

    def _bound_ages(self) -> None:
        """Lanes come and go: one note of each is enough."""
        if len(self._unaged) + len(self._ages) > 2 * len(self._lanes) + 1024:
            self._ages, self._unaged = [], list(self._lanes.values())

    def note_ages(self, count: int) -> bool:
        """Note so many that were left for when someone asks; whether there are no more."""
        some = self._unaged[:count]
        del self._unaged[:count]
        for lane in some:
            # Nothing of it is earlier than where its rows are read from: corrected if it comes to that.
            first = lane.first if lane.rows else lane.more_from[len(self._prefix) + len(lane.lane) :]
            heapq.heappush(self._ages, (first, lane))
        return not self._unaged

    def scan(self, after: bytes | None, lane_prefix: bytes = b"") -> Iterator[Row]:
        """Ready rows after a key, in key order, never walking over what was consumed long ago."""
        lower = self._prefix + lane_prefix
        upper = keys.after_prefix(lower)
        if after is not None:
            lower = max(lower, after + b"\0")
        for start, end in self._live_ranges(lower, upper):
            yield from self._engine.kv.scan(self._engine.ready, start, end)

    def _lane_capacity(self) -> int:
        return max(CACHED_ROWS_MIN, min(FILL_ROWS * 8, CACHED_ROWS // max(1, len(self._lanes))))

    def uncounted(self) -> list[tuple[Lane, bytes, bytes | None]]:
        """Lanes of which it is not known how much is beyond their cache, and where that is.

        From now on what changes of it is noted: a count of the store as it is completes it.
        """
        lanes = [lane for lane in self._lanes.values() if not lane.counted]
        for lane in lanes:
            lane.beyond = 0
        return [(lane, lane.more_from, keys.after_prefix(self._prefix + lane.lane)) for lane in lanes]

    # -- discovery ------------------------------------------------------------------------------

    @property
    def discovered(self) -> bool:
        """Whether every lane that has rows is known."""
        return self._undiscovered_from is None

    def may_find_before(self, level: int) -> bool:
        """Whether lanes of levels before this one, which is the highest in line, are yet to be found."""
        at = self._undiscovered_from
        return at is not None and len(at) > len(self._prefix) and at[len(self._prefix)] < level

    def discover_some(self) -> None:
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
            found_to = None if lane is None else keys.after_prefix(self._prefix + lane.lane)
            self._undiscovered_from = found_to

    def discover_key(self, key: bytes, at: bytes) -> bytes | None:
        """Find lanes of a key at a priority, from a place on (b"": all); where to go on, None at the end.

        Of two throttle sets of a key, the earlier message goes first: both must be known.
        """
        prefix = self._prefix + key
        upper = keys.after_prefix(prefix)
        found_to = self._undiscovered_from
        if found_to is None or (upper is not None and found_to >= upper):
            return None
        for _ in range(KEY_SLICE):
            lane = self._discover_in(at or prefix, upper)
            if lane is None:
                return None
            at = keys.after_prefix(self._prefix + lane.lane) or b""
        return at

    def _discover_in(self, lower: bytes, upper: bytes | None) -> Lane | None:
        """The first lane in a range that has rows."""
        kv, space = self._engine.kv, self._engine.ready
        for start, end in self._live_ranges(lower, upper):
            for key, _ in kv.scan(space, start, end, limit=1):
                lane_bytes = key[len(self._prefix) : -keys.ORDER_AND_ID_BYTES]
                lane = self._lanes.get(lane_bytes)
                if lane is None:
                    lane = self._lanes[lane_bytes] = Lane(lane_bytes, key, key, complete=False)
                    self._note_age(lane)
                    self._enlist((lane,))
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
