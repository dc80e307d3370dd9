"""A fairness key's turn: its lanes that may be served, and how much of the turn is left."""

from __future__ import annotations

import heapq
from collections import deque

from penstock.backends.embedded.lanes import Lane, Place


class Turn:
    """A fairness key at one priority. It has a lane for each set of throttle keys that its messages name."""

    __slots__ = (
        "aside",
        "credit",
        "full",
        "key",
        "lane",
        "line",
        "listed",
        "ring",
        "served",
        "size",
        "undiscovered_from",
    )

    def __init__(self, key: bytes, ring: deque[Turn]) -> None:
        #: Level, length of the fairness key, the fairness key.
        self.key = key
        #: Its level's, and whether it is in it.
        self.ring = ring
        self.listed = False
        #: The lane in line, if it is the only one: most keys never have another.
        self.lane: Lane | None = None
        #: The lanes in line, if they are several, by the first rows that they were last seen with. Entries
        #: that are not a lane's own `head`, or of one that is not in line, are void.
        self.line: list[tuple[bytes, Lane]] = []
        #: Whether the key has enough in flight. What was in line then is aside, under the same heads, and
        #: comes back when it is looked for: most of many lanes never are before the key is full again.
        self.full = False
        self.aside: list[tuple[bytes, Lane]] = []
        self.credit = 0
        #: Deliveries of the window that is counted now, since it was last looked at.
        self.served = 0
        self.size = 0
        #: Where its lanes that are not known yet start; None when all are.
        self.undiscovered_from: bytes | None = b""

    def enter(self, lane: Lane) -> None:
        """A lane stands in line."""
        lane.place = Place.IN_LINE
        if lane.rows:
            lane.head = lane.first
        if self.lane is None and not self.line:
            self.lane = lane
            return
        if self.lane is not None:
            heapq.heappush(self.line, (self.lane.head, self.lane))
            self.lane = None
        heapq.heappush(self.line, (lane.head, lane))

    def earliest(self) -> Lane | None:
        """The lane in line whose first row was the earliest, when it was last seen."""
        line = self.line
        while line:
            head, lane = line[0]
            if lane.place == Place.IN_LINE and head == lane.head:
                if len(line) == 1:
                    self.lane = lane
                    line.clear()
                return lane
            heapq.heappop(line)
        return self.lane

    def is_behind(self, lane: Lane) -> bool:
        """Whether the earliest lane's first row is not what it was: another may be earlier by now."""
        if self.lane is lane or lane.first == lane.head:
            return False
        lane.head = lane.first
        heapq.heapreplace(self.line, (lane.head, lane))
        return True

    def leave(self, lane: Lane) -> None:
        """The earliest lane stands in line no more."""
        lane.place = Place.NOWHERE
        if self.lane is lane:
            self.lane = None
        else:
            heapq.heappop(self.line)

    def remove(self, lane: Lane) -> None:
        """A lane, wherever it stands, stands in line no more."""
        lane.place = Place.NOWHERE
        if self.lane is lane:
            self.lane = None

    def clear(self) -> list[Lane]:
        """Nothing stands in line; what did."""
        lanes = [lane for head, lane in self.line if lane.place == Place.IN_LINE and head == lane.head]
        lanes = [self.lane] if self.lane is not None else list(dict.fromkeys(lanes))
        self.lane, self.line = None, []
        return lanes

    def set_aside(self, lane: Lane) -> None:
        lane.place = Place.ASIDE
        if lane.rows:
            lane.head = lane.first
        heapq.heappush(self.aside, (lane.head, lane))

    def back_before(self, other: Lane | None) -> Lane | None:
        """A lane that is aside no more, for it may come before the first one in line."""
        aside = self.aside
        while aside:
            head, lane = aside[0]
            valid = lane.place == Place.ASIDE and head == lane.head
            if valid and other is not None and other.first < head:
                return None
            heapq.heappop(aside)
            if valid:
                lane.place = Place.NOWHERE
                return lane
        return None

    def note(self, lane: Lane, head: bytes) -> None:
        """The lane has a row that may be before its first one."""
        if head >= lane.head:
            return
        lane.head = head
        if lane.place == Place.IN_LINE and self.lane is not lane:
            heapq.heappush(self.line, (head, lane))
        elif lane.place == Place.ASIDE:
            heapq.heappush(self.aside, (head, lane))
