"""What a report should say, in plain Python: the same history gone through the obvious way."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from penstock.spark.jobs.reporting.buckets import Buckets
from penstock.spark.jobs.states import NOBODY_ID
from tests.spark.jobs.stored import Row

FAILED = ("nacked", "released", "dead", "dropped")
#: Queue and priority.
Line = tuple[str, int]
_WAITING_AFTER = ("enqueued", "updated", "nacked", "released", "redriven")


class Wait(NamedTuple):
    """A message that waited: from when on, and until when; None: it still does."""

    queue: str
    message_id: str
    visible_ns: int
    left_ns: int | None


class Replay:
    """Histories that are whole, with neither repairs nor moves in them."""

    def __init__(self, events: Iterable[Row], without: Sequence[str] = ()) -> None:
        self.events = [
            row for row in events if row["queue"] not in without and row["message_id"] != NOBODY_ID
        ]
        self.waits: list[Wait] = []
        self.leases: list[Wait] = []
        #: (queue, message id, at, how long)
        self.waited: list[tuple[str, str, int, int]] = []
        self.worked: list[tuple[str, str, int, int]] = []
        by_message: dict[tuple[str, str], list[Row]] = defaultdict(list)
        for row in sorted(self.events, key=lambda row: row["seq"]):
            if row["kind"] != "extended":
                by_message[row["queue"], row["message_id"]].append(row)
        for (queue, message_id), rows in by_message.items():
            self._follow(queue, message_id, rows)

    def _follow(self, queue: str, message_id: str, rows: list[Row]) -> None:
        for row, after in zip(rows, [*rows[1:], None], strict=True):
            end_ns: int | None = None if after is None else after["at_ns"]
            if row["kind"] in _WAITING_AFTER:
                wait = Wait(queue, message_id, max(row["at_ns"], row["due_ns"]), end_ns)
                self.waits.append(wait)
                if after is not None and end_ns is not None and after["kind"] == "leased":
                    self.waited.append((queue, message_id, end_ns, max(0, end_ns - wait.visible_ns)))
            if row["kind"] == "leased":
                self.leases.append(Wait(queue, message_id, row["at_ns"], end_ns))
                if end_ns is not None:
                    self.worked.append((queue, message_id, end_ns, end_ns - row["at_ns"]))

    def count(self, kinds: Sequence[str], first_ns: int, end_ns: int, queue: str | None = None) -> int:
        return sum(
            row["kind"] in kinds and first_ns <= row["at_ns"] < end_ns and queue in (None, row["queue"])
            for row in self.events
        )

    def waiting(self, edge_ns: int, queue: str | None = None) -> int:
        """Delayed ones included, once the event is in the past."""
        since = {}
        for row in sorted(self.events, key=lambda row: row["seq"]):
            if row["at_ns"] < edge_ns and queue in (None, row["queue"]) and row["kind"] != "extended":
                since[row["queue"], row["message_id"]] = row["kind"]
        return sum(kind in _WAITING_AFTER for kind in since.values())

    def leased(self, edge_ns: int) -> int:
        return sum(one.visible_ns < edge_ns and (one.left_ns or edge_ns) >= edge_ns for one in self.leases)

    def oldest_ns(self, edge_ns: int, queue: str | None = None) -> int:
        """How long the oldest had waited; 0 where none was ready."""
        ready = [
            edge_ns - one.visible_ns
            for one in self.waits
            if one.visible_ns <= edge_ns and (one.left_ns is None or one.left_ns > edge_ns)
            if queue in (None, one.queue)
        ]
        return max(ready, default=0)

    def shares(self, buckets: Buckets, keys: dict[str, tuple[str, int, int]]) -> dict[str, tuple[int, float]]:
        """What each key got while one went short, and what was due; `keys`: id -> key, weight, priority."""
        weights = {key: weight for key, weight, _ in keys.values()}
        found: dict[str, tuple[int, float]] = defaultdict(lambda: (0, 0.0))
        for piece in range(buckets.count):
            begin_ns, end_ns = buckets.edge_ns(piece), buckets.edge_ns(piece + 1)
            got: dict[Line, Counter[str]] = defaultdict(Counter)
            missed: dict[Line, Counter[str]] = defaultdict(Counter)
            for lease in self.leases:
                key, _, priority = keys[lease.message_id]
                if begin_ns <= lease.visible_ns < end_ns:
                    got[lease.queue, priority][key] += 1
            for wait in self.waits:
                key, _, priority = keys[wait.message_id]
                if wait.visible_ns <= begin_ns and (wait.left_ns is None or wait.left_ns > end_ns):
                    missed[wait.queue, priority][key] += 1
            for line in set(got) & set(missed):
                asked = got[line] + missed[line]
                if len(asked) > 1:
                    for key, due in _shared_out(got[line].total(), asked, weights).items():
                        found[key] = (found[key][0] + got[line][key], found[key][1] + due)
        return dict(found)


def _shared_out(total: float, asked: Counter[str], weights: dict[str, int]) -> dict[str, float]:
    """By weight, and to none more than it asked for: who is content leaves, the others share what is left."""
    due: dict[str, float] = {}
    while open_ := [key for key in asked if key not in due]:
        level = (total - sum(due.values())) / sum(weights[key] for key in open_)
        content = [key for key in open_ if asked[key] <= level * weights[key]]
        due |= {key: float(asked[key]) for key in content}
        if not content:
            due |= {key: level * weights[key] for key in open_}
    return due


def percentile(values: Sequence[int], part: float) -> int | None:
    """The least value that so many are not above."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(part * len(ordered)) - 1)] if ordered else None
