"""The ready index of a fifo queue: one message of a key at a time, in order, whatever throttles each.

A key is one lane. What its first message needs is known when its body is read: the lane then waits for the
tokens like any other, and remembers of which keys until that message is delivered, or is the first no more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.backends.embedded.lanes import Lane, Place, ReadyRow
from penstock.backends.embedded.newcomers import Newcomers
from penstock.backends.embedded.ready import ReadyIndex, name_of, weight_of

if TYPE_CHECKING:
    from penstock.backends.embedded.engine import Engine, Transaction
    from penstock.backends.embedded.turns import Turn


class FifoIndex(ReadyIndex):
    """Whose turn it is in one fifo queue."""

    def __init__(self, engine: Engine, qid: int) -> None:
        super().__init__(engine, qid, per_key=1)
        self.add, self.add_all = self._add, self._add_all

    def newcomers(self) -> Newcomers:
        """Straight into none: a lane that waits for tokens may need others for a new first row."""
        return Newcomers(lambda lane: None, 0)

    def _set_aside(self, turn: Turn, now_ns: int) -> None:
        super()._set_aside(turn, now_ns)
        turn.credit = 0  # One message a turn, whatever their weights.

    def started(self, lane_bytes: bytes) -> None:
        """A message of this key is leased, or waits for its retry."""
        self._in_flight[name_of(lane_bytes)] = 1

    def undelivered(self, txn: Transaction, lane: Lane) -> None:
        super().undelivered(txn, lane)
        self._head_may_differ(lane.lane)  # What comes after it may need others.

    def draw(self, txn: Transaction, lane: Lane, row: ReadyRow, throttle_keys: Sequence[str]) -> bool:
        """A row that was taken needs tokens of these keys.

        If there are none, it is the first of its lane again, which waits for them: False.
        """
        has = {claim.gate.bucket.key for claim in lane.claims}
        if has != set(throttle_keys):
            # It was never here, or waited for a message that has gone since.
            self._give_back(txn, lane)
            self._gates.retire(lane)
            self._gates.equip(lane, lane.turn or self._join(lane), dict.fromkeys(throttle_keys))
            if not self._gates.are_free(lane, txn.now_ns):
                self._put_back(txn, lane, row)
                return False
            self._take_tokens(txn, lane, 1)
            self._gates.served(lane, 1, weight_of(row))
        self._gates.retire(lane)
        return True

    def _put_back(self, txn: Transaction, lane: Lane, row: ReadyRow) -> None:
        self._lanes.put_back(txn, lane, row)
        self._unserve(lane)
        self.ended(lane.lane)
        if lane.place == Place.NOWHERE:  # It had no other row, and left the line when that was taken.
            self._enlist(lane)

    # -- what changes the head ------------------------------------------------------------------

    def forget(self, lane_bytes: bytes) -> None:
        self._lanes.forget(lane_bytes)
        self._head_may_differ(lane_bytes)

    def _add(self, txn: Transaction, lane_bytes: bytes, rows: list[ReadyRow]) -> None:
        """Rows, in key order, that this transaction puts; the first may be the lane's first."""
        self._lanes.add(txn, lane_bytes, rows)
        lane = self._lanes.get(lane_bytes)
        if lane is not None and lane.claims and (not lane.rows or lane.rows[lane.at] is rows[0]):
            self._head_may_differ(lane_bytes)

    def add_stored(self, txn: Transaction, lane_bytes: bytes, first: bytes, count: int) -> None:
        super().add_stored(txn, lane_bytes, first, count)
        self._head_may_differ(lane_bytes)

    def _add_all(self, txn: Transaction, new: Newcomers) -> None:
        for lane_bytes, rows in new.others.items():
            if rows:
                self._add(txn, lane_bytes, rows)

    def _head_may_differ(self, lane_bytes: bytes) -> None:
        """A lane that waits for tokens may have another first row now, which may need others."""
        lane = self._lanes.get(lane_bytes)
        if lane is None or not lane.claims:
            return
        place, now_ns = lane.place, self._engine.now_ns()
        if place == Place.IN_LINE:
            self._gates.left(lane, now_ns)
        elif place == Place.WAITING:
            self._gates.withdraw(lane, now_ns)
        self._gates.retire(lane)
        if place == Place.WAITING:
            self._enlist(lane)
