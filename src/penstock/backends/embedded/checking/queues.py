"""One queue: bodies, states, ready rows, counters and journal, read once and held against each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from penstock.backends.embedded import keys
from penstock.backends.embedded.checking.findings import Finding, Findings
from penstock.backends.embedded.checking.folding import Fold
from penstock.backends.embedded.checking.journals import Walk, check_numbers
from penstock.backends.embedded.checking.ledger import Difference, Ledger
from penstock.backends.embedded.checking.meter import Meter
from penstock.backends.embedded.checking.recount import parts_of
from penstock.backends.embedded.checking.standing import (
    Placed,
    Standing,
    body_of,
    index_rows,
    place,
    standing_of,
    standings,
    usable_row,
)
from penstock.backends.embedded.checking.view import View
from penstock.backends.embedded.keys import StateCode
from penstock.backends.embedded.queue_state import QueueState
from penstock.backends.embedded.rows import decode_state
from penstock.codec.body import Body, decode_body
from penstock.codec.frame import Run
from penstock.errors import StorageCorrupt
from penstock.kv.base import Row

_CODES = tuple(StateCode)


class QueueCheck:
    """The pass over one queue. Rows that it expects in indexes of all queues go to the ledgers given."""

    def __init__(self, view: View, q: QueueState, findings: Findings, meter: Meter) -> None:
        self._view = view
        self._q = q
        self._findings = findings
        self._meter = meter
        self._counts = [0] * len(_CODES)
        self.messages = self.events = 0

    def run(self, ledgers: Mapping[str, Ledger]) -> None:
        view, q, findings = self._view, self._q, self._findings
        all_ledgers = {**ledgers, "ready": Ledger()}
        parts, totals, whole = parts_of(view, q), [0, 0, 0], True
        for part in range(parts):
            fold = self._folded(part, parts)
            for standing in self._meter.over(standings(view, q), f"messages of {q.name}", self._expected()):
                body = body_of(standing.body)
                placed = place(q, standing, body)
                if part == 0:
                    self._examine(standing, body, placed, all_ledgers)
                fold.compare(q, standing, placed, findings)
            fold.finish(q, findings)
            totals = [a + b for a, b in zip(totals, fold.totals, strict=True)]
            whole = whole and fold.whole
        self._check_counters(tuple(totals) if whole else None)
        self._check_ready(all_ledgers["ready"])
        self._check_lane_hints()

    def _expected(self) -> int:
        return sum(self._q.counters.counts) + self._q.counters.held

    # -- journal ------------------------------------------------------------------------------------

    def _folded(self, part: int, parts: int) -> Fold:
        q, first = self._q, part == 0
        c = q.counters
        fold = Fold(part, parts, whole=c.base_seq == 0)
        walk = Walk(self._view, q.name, q.qid, c.base_seq, self._findings if first else None)
        for run in self._meter.over(_runs(walk, fold), f"journal of {q.name}", c.next_seq - 1 - c.base_seq):
            fold.add(run)
            self.events += len(run.ids) if first else 0
        if walk.end(c.next_seq - 1):
            fold.lose()
        if first:
            check_numbers(q, walk, self._findings)
        return fold

    # -- messages -----------------------------------------------------------------------------------

    def _examine(
        self, standing: Standing, body: Body | None, placed: Placed | None, ledgers: Mapping[str, Ledger]
    ) -> None:
        if body is None or standing.states:
            self._examine_closely(standing, body, placed)
        if placed is not None:
            for space, key, value in index_rows(self._q, placed):
                ledgers[space].add(key, value)
        if standing.body is None:
            return
        self.messages += 1
        if placed is not None:
            self._counts[placed.code] += 1
        else:  # It is counted as what it was, until a repair has decided.
            self._counts[standing.states[0][0] if standing.states else StateCode.READY] += 1

    def _examine_closely(self, standing: Standing, body: Body | None, placed: Placed | None) -> None:
        raw_id, states = standing.raw_id, standing.states
        names = ", ".join(code.name.lower() for code, _ in states)
        if standing.body is None:
            self._say("body_missing", f"state row ({names}) without a body", raw_id)
        elif body is None:
            self._say("body_damaged", _why(standing.body), raw_id)
        if len(states) > 1:
            self._say("state_double", f"{len(states)} states: {names}", raw_id)
        for code, raw in states:
            if usable_row(self._q, code, raw, body) is None:
                self._say(*_why_unusable(code, raw), raw_id)
        if placed is None:
            self._findings.unplaced.add(raw_id)

    def _say(self, kind: str, what: str, raw_id: bytes) -> None:
        self._findings.message(kind, what, self._q.name, self._q.qid, raw_id)

    # -- counters -----------------------------------------------------------------------------------

    def _check_counters(self, totals: tuple[int, ...] | None) -> None:
        c = self._q.counters
        for code in _CODES[:5]:
            if self._counts[code] != c.counts[code]:
                name = code.name.lower()
                self._count(f"counter of {name} is {c.counts[code]}, but {self._counts[code]} are there")
        if self._counts[StateCode.GONE] != c.held:
            self._count(f"counter of held bodies is {c.held}, but {self._counts[5]} are there")
        stored = (c.enqueued_total, c.acked_total, c.failed_total)
        if totals is not None and totals != stored:
            self._count(f"enqueued, acked and failed are {totals}; the counters say {stored}")

    def _count(self, what: str) -> None:
        self._findings.add(Finding("counters_differ", what, self._q.name, "counters", self._q.qid))

    # -- ready rows ---------------------------------------------------------------------------------

    def _check_ready(self, ledger: Ledger) -> None:
        view, q = self._view, self._q

        def found() -> Iterator[Row]:
            return view.rows("ready", q.prefix, keys.u32(q.qid + 1))

        total = q.counters.counts[StateCode.READY]
        for key, value in self._meter.over(found(), f"ready rows of {q.name}", total):
            ledger.add(key, value)
        for difference in ledger.differences(lambda: expected_rows(view, q, "ready"), found):
            self._name(difference)

    def _name(self, difference: Difference) -> None:
        key, expected, found = difference
        raw_id = key[-16:]
        if raw_id in self._findings.unplaced:
            return
        if found is None:
            kind, what = "ready_missing", "ready row is missing"
        elif expected is not None:
            kind, what = "ready_differs", "ready row differs"
        else:
            kind, what = "ready_stray", self._why_stray(raw_id)
        self._findings.row(kind, what, self._q.name, self._q.qid, "ready", key, raw_id)

    def _why_stray(self, raw_id: bytes) -> str:
        try:
            standing = standing_of(self._view, self._q, raw_id)
        except StorageCorrupt:
            return "ready row of a message that cannot be read"
        if standing.body is None:
            return "ready row without a body"
        placed = place(self._q, standing, body_of(standing.body))
        if placed is not None and placed.code != StateCode.READY:
            return f"ready row of a message that is {placed.code.name.lower()}"
        return "second ready row"

    def _check_lane_hints(self) -> None:
        """A lane's written-down head has no live row before it: such a row would never be handed out."""
        view, q = self._view, self._q
        prefix = keys.lane_hint(q.qid, b"")
        for key, value in view.rows("meta", prefix, keys.after_prefix(prefix)):
            lane = q.prefix + key[len(prefix) :]
            what = ""
            if not value[1:].startswith(lane):
                what = "lane hint that points elsewhere"
            elif next(view.rows("ready", lane, max(lane, value[1:])), None) is not None:
                what = "ready row before its lane's hint"
            if what:
                self._findings.row("lane_hint", what, q.name, q.qid, "meta", key)


def expected_rows(view: View, q: QueueState, wanted: str) -> Iterator[Row]:
    """The rows of one index that a queue's messages make one expect."""
    for standing in standings(view, q):
        placed = place(q, standing, body_of(standing.body))
        if placed is not None:
            for space, key, value in index_rows(q, placed):
                if space == wanted:
                    yield key, value


def _runs(walk: Walk, fold: Fold) -> Iterator[Run]:
    for runs in walk.runs():
        if runs is None:
            fold.lose()
        else:
            yield from runs


def _why(body: bytes) -> str:
    try:
        decode_body(body)
    except StorageCorrupt as error:
        return str(error)
    return ""


def _why_unusable(code: StateCode, raw: bytes) -> tuple[str, str]:
    try:
        decode_state(raw)
    except StorageCorrupt as error:
        return "state_damaged", str(error)
    return "state_differs", f"state row ({code.name.lower()}) fits neither its body nor the journal"
