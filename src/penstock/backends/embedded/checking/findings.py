"""What a check finds: kinds of problems, how bad each is, and a bounded list of them."""

from __future__ import annotations

from collections import Counter

import msgspec

from penstock.backends.base import Problem
from penstock.message import format_id

#: Problems that a report lists; all are counted.
LISTED = 10_000

#: Every kind of problem. `index`: derived, rebuilt without loss; `orphan`: a row that belongs to nothing;
#: `damage`: content or history is not what it was.
SEVERITIES = {
    "ready_missing": "index",
    "ready_differs": "index",
    "ready_stray": "index",
    "due_missing": "index",
    "due_differs": "index",
    "due_stray": "index",
    "held_missing": "index",
    "held_differs": "index",
    "held_stray": "index",
    "entry_missing": "index",
    "entry_differs": "index",
    "entry_stray": "index",
    "lane_hint": "index",
    "due_hint": "index",
    "counters_differ": "index",
    "counters_damaged": "index",
    "world_counters": "index",
    "next_number": "index",
    "cursor_ahead": "index",
    "orphan_rows": "orphan",
    "key_malformed": "orphan",
    "row_unknown": "orphan",
    "body_left": "orphan",
    "body_damaged": "damage",
    "body_missing": "damage",
    "state_damaged": "damage",
    "state_differs": "damage",
    "state_double": "damage",
    "state_missing": "damage",
    "fold_differs": "damage",
    "fold_illegal": "damage",
    "frame_damaged": "damage",
    "frame_missing": "damage",
    "frame_misplaced": "damage",
    "dedup_damaged": "damage",
    "queue_damaged": "damage",
    "world_damaged": "damage",
    "cursor_damaged": "damage",
    "throttle_damaged": "damage",
    "throttle_missing": "damage",
    "row_damaged": "damage",
    "load_cut_off": "damage",
    "unreadable": "damage",
    "lost": "damage",
}

#: What was lost since the last repair: of no row that is there.
LOST = "lost"


class Finding(msgspec.Struct):
    """A problem, with what a repair needs to find it again; `action` is what a repair did."""

    kind: str
    what: str
    queue: str = ""
    where: str = ""
    number: int = 0
    raw_id: bytes = b""
    space: str = ""
    key: bytes = b""
    #: First and last seq of what a journal lacks.
    span: tuple[int, int] = (0, 0)
    #: What the row should be, where a repair cannot tell from the row itself.
    value: bytes = b""
    action: str = ""

    @property
    def problem(self) -> Problem:
        return Problem(self.what, self.queue, self.where, self.kind, SEVERITIES[self.kind], self.action)


class Findings:
    """The findings of one pass: all counted, the first `limit` kept."""

    def __init__(self, limit: int = LISTED) -> None:
        self._limit = limit
        self.counts: Counter[str] = Counter()
        self.kept: list[Finding] = []
        #: Messages that cannot be placed: what their index rows should be is not known.
        self.unplaced: set[bytes] = set()

    def add(self, finding: Finding) -> None:
        self.counts[finding.kind] += 1
        if len(self.kept) < self._limit:
            self.kept.append(finding)

    def add_first(self, finding: Finding) -> None:
        """A cause, before what may be its consequences: it is listed however many those are."""
        self.counts[finding.kind] += 1
        self.kept.insert(0, finding)

    def message(self, kind: str, what: str, queue: str, number: int, raw_id: bytes) -> None:
        """Something about one message."""
        where = f"message {format_id(raw_id)}"
        self.add(Finding(kind, what, queue, where, number, raw_id))

    def row(
        self, kind: str, what: str, queue: str, number: int, space: str, key: bytes, raw_id: bytes = b""
    ) -> None:
        """Something about one row; with an id, of that message."""
        where = f"message {format_id(raw_id)}" if raw_id else f"{space} row {key.hex()}"
        self.add(Finding(kind, what, queue, where, number, raw_id, space, key))
