"""The ready index: which message is next, by priority, then by fair turns over keys, then by visibility.

Keys with a lane that may be served take turns in a ring, each as often as its weight says (deficit round
robin). A lane without tokens waits at a gate, a key with enough in flight is set aside: neither is in a ring,
so that a lease does not pay for what it cannot hand out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from penstock.backends.embedded import keys, lanes
from penstock.backends.embedded.gates import Gates
from penstock.backends.embedded.lanes import Lane, Lanes, Place, ReadyRow
from penstock.backends.embedded.newcomers import Newcomers, Shape
from penstock.backends.embedded.turns import Turn
from penstock.kv.base import Row
from penstock.scheduling.fairness import LEVELS, Levels
from penstock.scheduling.throttle import Bucket

if TYPE_CHECKING:
    from penstock.backends.embedded.engine import Engine, Transaction

#: Empty lanes that a queue remembers: making one anew is dear where messages come singly.
IDLE_LANES = 4096


class ReadyIndex:
    """Whose turn it is in one queue. With `per_key`, so many messages of a key may be in flight."""

    def __init__(self, engine: Engine, qid: int, *, per_key: int | None = None) -> None:
        self._engine = engine
        self._per_key = per_key
        self._lanes = Lanes(engine, qid, self._enlist_all)
        self._gates = Gates(engine)
        self._levels = Levels()
        self._rings: list[deque[Turn]] = [deque() for _ in range(LEVELS)]
        self._turns: dict[bytes, Turn] = {}
        #: Rows taken since it was loaded; and whether someone counts what there is.
        self.served = 0
        self._counting = False
        #: Lanes with tokens to use that lost rows out of turn: an empty one must not keep them from others.
        self._may_be_empty: list[Lane] = []
        #: By priority and weight, then by fairness key.
        self.shapes: dict[tuple[int, int], dict[str, Shape]] = {}
        #: How often a lane became empty, since the last look at how many are.
        self._rests = 0
        #: By fairness key: messages in flight, and turns that are set aside for it.
        self._in_flight: dict[bytes, int] = {}
        self._full: dict[bytes, list[Turn]] = {}
        self.add, self.add_all = self._lanes.add, self._lanes.add_all
        self.oldest_order_ns = self._lanes.oldest_order_ns
        self.keeps_up_to_bytes = self._lanes.keeps_up_to_bytes

    def newcomers(self) -> Newcomers:
        """For the rows of one batch, which are then to be given to `add_all`."""
        return Newcomers(self._lanes.get, len(self._lanes))

    def scan(self, after: bytes | None, lane_prefix: bytes = b"") -> Iterator[Row]:
        """Ready rows after a key, in key order."""
        return self._lanes.scan(after, lane_prefix)

    def forget(self, lane_bytes: bytes) -> None:
        """Rows of this lane are being deleted out of turn."""
        self._lanes.forget(lane_bytes)
        lane = self._lanes.get(lane_bytes)
        if lane is not None and lane.claims and self._gates.has_tokens_for(lane):
            self._may_be_empty.append(lane)

    # -- numbers by key -------------------------------------------------------------------------

    @property
    def discovered(self) -> bool:
        """Whether every lane that has rows is known."""
        return self._lanes.discovered

    def discover(self) -> bool:
        """Find some more lanes, and note the ages of some; whether that is done for all."""
        if not self._lanes.discovered:
            self._lanes.discover_some()
        return self._lanes.note_ages(lanes.DISCOVERY_SLICE) and self._lanes.discovered

    def lanes(self) -> list[Lane]:
        return list(self._lanes)

    def turns(self) -> list[Turn]:
        return list(self._turns.values())

    def start_count(self) -> list[tuple[Lane, bytes, bytes | None]]:
        """Lanes to count, and where; none while someone counts."""
        if self._counting:
            return []
        uncounted = self._lanes.uncounted()
        self._counting = bool(uncounted)
        return uncounted

    def end_count(self, counts: list[tuple[Lane, int]]) -> None:
        """What they had beyond their caches when it started."""
        self._counting = False
        for lane, count in counts:
            if not lane.counted:
                lane.beyond += count
                lane.counted = True

    def head_of(self, lane: Lane) -> tuple[int | None, int | None]:
        """Weight and place in line of its first message, if there is one."""
        self._lanes.fill(lane)
        if not lane.rows:
            return None, None
        return weight_of(lane.rows[lane.at]), int.from_bytes(lane.first[:8], "big")

    def in_flight(self, fairness_key: bytes) -> int | None:
        """Where keys are limited, what counts against the limit of one."""
        if self._per_key is None:
            return None
        return self._in_flight.get(keys.u16(len(fairness_key)) + fairness_key, 0)

    # -- what stands in the way -----------------------------------------------------------------

    def started(self, lane_bytes: bytes) -> None:
        """A message of this lane's key is in flight."""
        if self._per_key is not None:
            name = name_of(lane_bytes)
            self._in_flight[name] = self._in_flight.get(name, 0) + 1

    def ended(self, lane_bytes: bytes) -> None:
        """One less: the key may be served again."""
        if self._per_key is None:
            return
        name = name_of(lane_bytes)
        left = self._in_flight.get(name, 0) - 1
        if left > 0:
            self._in_flight[name] = left
        else:
            self._in_flight.pop(name, None)
        for turn in self._full.pop(name, ()):
            turn.full = False
            self._gates.return_to(turn, self._engine.now_ns())
            if turn.aside:
                self._list(turn)
            else:
                turn.credit = 0

    def undelivered(self, txn: Transaction, lane: Lane) -> None:
        """A row that was taken was not handed out after all: it has used no tokens and is not in flight."""
        self._unserve(lane)
        self._give_back(txn, lane)
        self.ended(lane.lane)

    def _unserve(self, lane: Lane) -> None:
        self.served -= 1
        if lane.turn is not None:
            lane.turn.served -= 1

    def _give_back(self, txn: Transaction, lane: Lane) -> None:
        for claim in lane.claims:
            bucket = claim.gate.bucket
            if bucket.burst is not None:
                bucket.give_back(1)
                txn.drawn.add(bucket)
                txn.refilled.add(bucket)  # The other queues look when it is written, and once.
                self._gates.look_again(bucket, txn.now_ns)

    def _take_tokens(self, txn: Transaction, lane: Lane, count: int) -> None:
        for claim in lane.claims:
            bucket = claim.gate.bucket
            if bucket.burst is not None:
                bucket.take(count, txn.now_ns)
                txn.drawn.add(bucket)

    def bucket_changed(self, bucket: Bucket, now_ns: int) -> None:
        """It may have tokens earlier than was thought."""
        self._gates.look_again(bucket, now_ns)

    def may_have_next(self, now_ns: int) -> bool:
        """False only if `take` would find nothing."""
        return not self._lanes.discovered or any(self._rings) or self.next_release_ns() <= now_ns

    def next_release_ns(self) -> int:
        """A time before which no throttled lane has tokens, if none is in line."""
        return self._gates.next_release_ns()

    def add_stored(self, txn: Transaction, lane_bytes: bytes, first: bytes, count: int) -> None:
        """Rows that the store has already, from a key on."""
        self._lanes.add_stored(txn, lane_bytes, first, count)

    # -- places ---------------------------------------------------------------------------------

    def _enlist_all(self, lanes: Iterable[Lane]) -> None:
        """Find places for those lanes that are in none, and have rows."""
        in_line, nowhere = Place.IN_LINE, Place.NOWHERE
        for lane in lanes:
            if lane.place != nowhere or (lane.complete and not lane.rows):
                continue
            turn = lane.turn
            if turn and not (turn.lane or turn.line or turn.credit or turn.full or lane.claims):
                # As most are. Its head from before is not behind its first row, all that it must not be.
                lane.place, turn.lane = in_line, lane
                if not turn.listed:
                    turn.listed = True
                    turn.ring.append(turn)
                continue
            if lane.claims:
                self._gates.returned(lane)
            self._place(lane)

    def _enlist(self, lane: Lane) -> None:
        self._enlist_all((lane,))

    def _place(self, lane: Lane, *, waited: bool = False) -> None:
        """Find a place for a lane that is in none."""
        turn = lane.turn or self._join(lane)
        if turn.full:
            turn.set_aside(lane)
            return
        if lane.claims and not self._gates.let_in(lane, self._engine.now_ns(), waited=waited):
            return
        turn.enter(lane)
        self._list(turn)

    def _list(self, turn: Turn) -> None:
        """The key is in its ring: at the end, or where it was if it was full in the middle of its turn."""
        if not turn.listed:
            turn.listed = True
            (turn.ring.appendleft if turn.credit > 0 else turn.ring.append)(turn)

    def _join(self, lane: Lane) -> Turn:
        """A new lane becomes one of its key's."""
        key = _key(lane.lane)
        turn = self._turns.get(key)
        if turn is None:
            turn = self._turns[key] = Turn(key, self._rings[key[0]])
        turn.size += 1
        lane.turn = turn
        if len(lane.lane) > len(key) + 2:
            self._gates.equip(lane, turn, keys.lane_throttle_keys(lane.lane))
        return turn

    def _step_out(self, turn: Turn, lane: Lane, now_ns: int) -> None:
        """The earliest lane of its key leaves the line."""
        turn.leave(lane)
        if lane.claims:
            self._gates.left(lane, now_ns)

    def _tidy(self) -> None:
        """Forget the lanes that are empty, if there are many."""
        self._rests = 0
        nowhere = [lane for lane in self._lanes if lane.place == Place.NOWHERE]
        idle = [lane for lane in nowhere if lane.complete and not lane.rows]
        if len(idle) <= IDLE_LANES:
            return
        self.shapes.clear()  # They know lanes.
        for lane in idle:
            turn = lane.turn
            if turn is not None and self._lanes.drop(lane):
                self._gates.retire(lane)
                turn.size -= 1
                if not turn.size:
                    del self._turns[turn.key]

    def _set_aside(self, turn: Turn, now_ns: int) -> None:
        """The key at the head of its ring has enough in flight. It has work: its turn is not over."""
        left = turn.credit
        self._unlist(turn)
        turn.full, turn.credit = True, left
        for lane in turn.clear():
            turn.set_aside(lane)
            if lane.claims:
                self._gates.left(lane, now_ns)
        self._full.setdefault(turn.key[1:], []).append(turn)

    def _unlist(self, turn: Turn) -> None:
        """The key at the head of its ring is out of it, and saves nothing up."""
        turn.ring.popleft()
        turn.listed = False
        turn.credit = 0

    # -- turns ----------------------------------------------------------------------------------

    def take(self, txn: Transaction, count: int) -> list[tuple[Lane, ReadyRow]]:
        """The next rows by priority, then fair turns over keys; the caller deletes them.

        A call looks for a slice of lanes at most: it may give fewer rows than there are, or none, until all
        lanes are `discovered`.
        """
        found, rings = self._lanes, self._rings
        if self._rests > IDLE_LANES + len(self._turns):
            self._tidy()
        if not found.discovered:
            found.discover_some()
        while self._may_be_empty:
            self._look_at(self._may_be_empty.pop(), txn.now_ns)
        out: list[tuple[Lane, ReadyRow]] = []
        while len(out) < count:
            if self._gates.next_release_ns() <= txn.now_ns:
                self._release(txn.now_ns)
            top = next((level for level in range(LEVELS) if rings[level]), LEVELS)
            if found.may_find_before(top):
                break
            level, allowance = self._levels.next(rings, count - len(out))
            if level < 0:
                break
            before = len(out)
            self._serve(txn, rings[level], allowance, out)
            self._levels.served(level, len(out) - before, rings)
        self.served += len(out)
        return out

    def _look_at(self, lane: Lane, now_ns: int) -> None:
        """Whether a lane with tokens to use has anything left to use them for."""
        if lane.turn is None or not self._gates.has_tokens_for(lane):
            return
        self._lanes.fill(lane)
        if lane.rows:
            return
        if lane.place == Place.IN_LINE:
            lane.turn.remove(lane)
            self._gates.left(lane, now_ns)
        else:
            self._gates.withdraw(lane, now_ns)
        self._rests += 1

    def _release(self, now_ns: int) -> None:
        """Lanes for which there are tokens stand in line again; one that is empty by now uses none."""
        for lane in self._gates.released(now_ns):
            self._lanes.fill(lane)
            if lane.rows:
                self._place(lane, waited=True)
            else:
                self._gates.withdraw(lane, now_ns)
                self._rests += 1

    def _serve(
        self, txn: Transaction, ring: deque[Turn], count: int, out: list[tuple[Lane, ReadyRow]]
    ) -> None:
        goal = len(out) + count
        while ring and len(out) < goal:
            if self._per_key is None:
                self._serve_plain(txn, ring, goal - len(out), out)
            if ring and len(out) < goal:
                self._serve_one(txn, ring, goal - len(out), out)

    def _serve_plain(
        self, txn: Transaction, ring: deque[Turn], count: int, out: list[tuple[Lane, ReadyRow]]
    ) -> None:
        """Turns of keys with one lane that has rows and needs no tokens, as most have; up to another one."""
        hint_every, from_bytes, nowhere = lanes.HINT_EVERY, int.from_bytes, Place.NOWHERE
        append, first, to_the_end = out.append, ring.popleft, ring.append
        # Rows that were enqueued alike have the same object for a value.
        known, weight = b"", 1
        while count > 0 and ring:
            turn = first()
            lane = turn.lane
            if lane is None or lane.claims or turn.undiscovered_from is not None or not (rows := lane.rows):
                ring.appendleft(turn)
                return
            txn.changed = True
            at, credit = lane.at, turn.credit
            row = rows[at]
            if credit <= 0:
                value = row[1]
                if value is not known:
                    known, weight = value, from_bytes(value[2:4], "big")
                credit = weight
            if (credit == 1 and ring) or count == 1:
                share = 1
                append((lane, row))
            else:
                share = min(count, len(rows) - at, credit if ring else count)
                out += [(lane, row) for row in rows[at : at + share]]
                row = out[-1][1]
            count -= share
            turn.served += share
            taken = lane.taken = lane.taken + share
            if taken >= hint_every:
                self._lanes.write_hint_after(txn, lane, row[0])
            at += share
            if at < len(rows):
                lane.at = at
            else:
                lane.at = 0
                rows.clear()
                if lane.complete:
                    turn.lane, lane.place = None, nowhere
                    turn.listed, turn.credit = False, 0
                    self._rests += 1
                    continue
            turn.credit = credit = credit - share
            (to_the_end if credit <= 0 else ring.appendleft)(turn)

    def _serve_one(
        self, txn: Transaction, ring: deque[Turn], count: int, out: list[tuple[Lane, ReadyRow]]
    ) -> None:
        """The first key's turn, or as much of it as may be; or the key is out of the ring."""
        turn = ring[0]
        lane = self._earliest(turn, txn.now_ns)
        if lane is None:
            self._unlist(turn)
            return
        if turn.credit <= 0:
            turn.credit = weight_of(lane.rows[lane.at])
        share = min(count, len(lane.rows) - lane.at, turn.credit if len(ring) > 1 else count)
        share = self._allowed(turn, lane, share, txn.now_ns)
        if not share:
            return
        txn.changed = True
        rows = lane.pop(share)
        out += [(lane, row) for row in rows]
        turn.credit -= share
        turn.served += share
        lane.taken += share
        if lane.taken >= lanes.HINT_EVERY:
            self._lanes.write_hint_after(txn, lane, rows[-1][0])
        if not lane.rows and lane.complete:
            self._step_out(turn, lane, txn.now_ns)
            self._rests += 1
        self._account(txn, turn, lane, share, weight_of(rows[-1]))
        if turn.credit <= 0 and turn.listed:
            ring.rotate(-1)

    def _earliest(self, turn: Turn, now_ns: int) -> Lane | None:
        """The lane in the key's line whose first row is the earliest; those that are empty leave it."""
        if turn.undiscovered_from is not None:
            turn.undiscovered_from = self._lanes.discover_key(turn.key, turn.undiscovered_from)
        while True:
            lane = turn.earliest()
            if lane is not None:
                self._lanes.fill(lane)
                if not lane.rows:
                    self._step_out(turn, lane, now_ns)
                    self._rests += 1
                    continue
                if turn.is_behind(lane):
                    continue
            back = turn.back_before(lane)
            if back is None:
                return lane
            self._enlist(back)

    def _allowed(self, turn: Turn, lane: Lane, share: int, now_ns: int) -> int:
        """How much of its share the lane may have; with 0, it has another place now."""
        if turn.line or turn.aside:
            share = 1  # The next row may be another lane's.
        if self._per_key is not None:
            room = self._per_key - self._in_flight.get(turn.key[1:], 0)
            if room <= 0:
                self._set_aside(turn, now_ns)
                return 0
            share = min(share, room)
        if lane.claims:
            tokens = min(claim.gate.free_tokens(now_ns) for claim in lane.claims)
            if tokens <= 0:
                self._step_out(turn, lane, now_ns)
                self._place(lane, waited=True)
                return 0
            share = min(share, tokens)
        return share

    def _account(self, txn: Transaction, turn: Turn, lane: Lane, share: int, weight: int) -> None:
        """What was taken uses tokens, and is in flight."""
        others_first = False
        if lane.claims:
            self._take_tokens(txn, lane, share)
            others_first = self._gates.served(lane, share, weight)
        if self._per_key is not None:
            name = turn.key[1:]
            self._in_flight[name] = in_flight = self._in_flight.get(name, 0) + share
            if in_flight >= self._per_key:
                self._set_aside(turn, txn.now_ns)
        if others_first and lane.place == Place.IN_LINE:
            self._step_out(turn, lane, txn.now_ns)
            self._place(lane)


def _key(lane_bytes: bytes) -> bytes:
    """The part of a lane that says priority and fairness key."""
    return lane_bytes[: 3 + int.from_bytes(lane_bytes[1:3], "big")]


def name_of(lane_bytes: bytes) -> bytes:
    """The part that says the fairness key."""
    return lane_bytes[1 : 3 + int.from_bytes(lane_bytes[1:3], "big")]


def weight_of(row: ReadyRow) -> int:
    return int.from_bytes(row[1][2:4], "big")
