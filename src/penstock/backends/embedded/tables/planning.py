"""How an embedded snapshot is cut: by id, or where few of all are asked for, by state."""

from __future__ import annotations

from collections.abc import Collection
from itertools import pairwise

from penstock.backends.bulk import BulkPlan, BulkRequest, Snapshot, Span
from penstock.backends.embedded import keys
from penstock.backends.embedded.keys import StateCode
from penstock.backends.embedded.lookup import CODES
from penstock.backends.embedded.tables.view import QueueView, View, WorldView
from penstock.backends.tables import requests
from penstock.backends.tables.requests import parts_of, wanted_states
from penstock.message import State

#: Messages are found by their state rows where those are so few of all.
_FEW = 4

_FIRST_ID, _BEHIND_IDS = bytes(16), b"\xff" * 16 + b"\xff"


def planned(view: View, snapshot: Snapshot, request: BulkRequest) -> BulkPlan:
    return requests.planned(_Source(view), snapshot, request)


def wanted_codes(request: BulkRequest) -> list[StateCode] | None:
    """The states that are asked for; None: all."""
    states = wanted_states(request)
    return None if states is None else [CODES[State(state)] for state in states]


class _Source:
    """`requests.Source` of an open snapshot."""

    def __init__(self, view: View) -> None:
        self._view = view

    def names(self, *, of_worlds: bool) -> Collection[str]:
        return self._view.world_rows if of_worlds else self._view.queue_rows

    def queue(self, name: str) -> QueueView | WorldView:
        return self._view.queue(name)

    def world(self, name: str) -> QueueView | WorldView:
        return self._view.world(name)

    def rows(self, request: BulkRequest, one: QueueView | WorldView) -> int:
        if isinstance(one, WorldView) or request.table == "events":
            return one.last_seq - one.first_seq + 1
        counts = one.counters.counts
        if request.table == "dead":
            return counts[StateCode.DEAD]
        if request.table == "queues":
            return 1
        return sum(counts) + (one.counters.held if request.table == "bodies" else 0)

    def spans(self, request: BulkRequest, one: QueueView | WorldView, rows: int) -> list[Span]:
        codes = wanted_codes(request)
        assert isinstance(one, QueueView)
        if codes is None or StateCode.READY in codes:
            return self._cut_ids(one, "messages", b"", rows, parts_of(request, rows))
        counts = {code: one.counters.counts[code] for code in codes}
        if sum(counts.values()) * _FEW > sum(one.counters.counts):
            return self._cut_ids(one, "messages", b"", rows, parts_of(request, rows))
        found: list[Span] = []
        for code, few in counts.items():
            found += self._cut_ids(one, "state", bytes((code,)), few, parts_of(request, few))
        return found

    def _cut_ids(self, one: QueueView, space: str, start: bytes, rows: int, parts: int) -> list[Span]:
        """Parts of a queue by id. `start` comes before the id in a key of the space, behind the queue."""
        kv = self._view.kv
        prefix = keys.u32(one.number) + start
        upper = keys.after_prefix(prefix)
        inner = [] if parts == 1 else kv.split(kv.space(space), prefix, upper, parts)
        ids = sorted({cut[len(prefix) : len(prefix) + 16] for cut in inner} - {_FIRST_ID})
        bounds = [_FIRST_ID, *ids, _BEHIND_IDS]
        share = rows // (len(bounds) - 1)
        return [Span(one.name, start + low, start + high, share) for low, high in pairwise(bounds)]
