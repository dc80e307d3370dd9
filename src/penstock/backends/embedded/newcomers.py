"""Rows of one batch, each behind all that its lane has: straight into those lanes that are wholly cached."""

from __future__ import annotations

from collections.abc import Callable

from penstock.backends.embedded.lanes import Lane, ReadyRow


class Newcomers:
    """The transaction that is under way puts them, or everything in memory is read anew."""

    __slots__ = ("_known", "empty", "grown", "lanes_known", "others", "queued", "rows")

    def __init__(self, known: Callable[[bytes], Lane | None], lanes_known: int) -> None:
        self._known = known
        self.lanes_known = lanes_known
        #: All of them, in the order in which they came.
        self.rows: list[ReadyRow] = []
        #: Lanes that they are in by now, and which of those had none.
        self.grown: list[Lane] = []
        self.empty: list[Lane] = []
        #: What comes to lanes of which only a part is cached.
        self.queued: list[tuple[Lane, list[ReadyRow]]] = []
        #: By lane, those that are in none yet.
        self.others: dict[bytes, list[ReadyRow]] = {}

    def behind(self, lane_bytes: bytes) -> list[ReadyRow]:
        """Where the lane's next row goes, and those that follow until another lane is asked for."""
        lane = self._known(lane_bytes)
        if lane is None:
            return self.others.setdefault(lane_bytes, [])
        if not lane.complete:
            rows: list[ReadyRow] = []
            self.queued.append((lane, rows))
            return rows
        self.grown.append(lane)
        if not lane.rows:
            self.empty.append(lane)
        return lane.rows

    def add(self, lane_bytes: bytes, row: ReadyRow) -> None:
        self.behind(lane_bytes).append(row)
        self.rows.append(row)
