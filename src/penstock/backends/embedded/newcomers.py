"""Rows of one batch, each behind all that its lane has: straight into those lanes that are wholly cached."""

from __future__ import annotations

from collections.abc import Callable

from penstock.backends.embedded.lanes import Lane, ReadyRow


class Shape:
    """What plain messages of one queue, fairness key, priority and weight share."""

    __slots__ = ("key_prefix", "lane", "lane_bytes", "tail", "value")

    def __init__(self, lane_bytes: bytes, tail: bytes, key_prefix: bytes, value: bytes) -> None:
        self.lane_bytes = lane_bytes
        #: The lane itself, once it is known.
        self.lane: Lane | None = None
        #: A body between order and payload, a ready key before the order, a ready value.
        self.tail = tail
        self.key_prefix = key_prefix
        self.value = value


class Newcomers:
    """The transaction that is under way puts them, or everything in memory is read anew."""

    __slots__ = ("_known", "empty", "grown", "lanes_known", "others", "queued", "rows")

    def __init__(self, known: Callable[[bytes], Lane | None], lanes_known: int) -> None:
        self._known = known
        self.lanes_known = lanes_known
        #: All of them, in the order in which they came.
        self.rows: list[ReadyRow] = []
        #: Lanes that they are in by now: those that had some, and those that had none.
        self.grown: list[Lane] = []
        self.empty: list[Lane] = []
        #: What comes to lanes of which only a part is cached.
        self.queued: list[tuple[Lane, list[ReadyRow]]] = []
        #: By lane, those that are in none yet.
        self.others: dict[bytes, list[ReadyRow]] = {}

    def behind(self, shape: Shape) -> list[ReadyRow]:
        """Where the lane's next row goes, and those that follow until another lane is asked for."""
        lane = shape.lane
        if lane is None:
            lane = shape.lane = self._known(shape.lane_bytes)
        elif not lane.complete:  # As `_behind` does, uncalled: many are so where lines are long.
            rows: list[ReadyRow] = []
            self.queued.append((lane, rows))
            return rows
        return self._behind(lane, shape.lane_bytes)

    def _behind(self, lane: Lane | None, lane_bytes: bytes) -> list[ReadyRow]:
        if lane is None:
            return self.others.setdefault(lane_bytes, [])
        if not lane.complete:
            rows: list[ReadyRow] = []
            self.queued.append((lane, rows))
            return rows
        (self.grown if lane.rows else self.empty).append(lane)
        return lane.rows

    def add(self, lane_bytes: bytes, row: ReadyRow) -> None:
        self._behind(self._known(lane_bytes), lane_bytes).append(row)
        self.rows.append(row)
