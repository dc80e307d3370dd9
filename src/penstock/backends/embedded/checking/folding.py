"""The journal folded: what the events alone say of each message, to be compared with what is stored."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from penstock.backends.embedded.checking.findings import Findings
from penstock.backends.embedded.checking.standing import Placed, Standing
from penstock.backends.embedded.keys import StateCode
from penstock.backends.embedded.lookup import CODES, STATES
from penstock.backends.embedded.queue_state import QueueState
from penstock.codec.frame import Run
from penstock.event import HOLE, NOBODY, Event, Kind
from penstock.message import TRANSITIONS, State, state_after

#: Events that one fold takes on: a longer journal is folded in parts by id, so that memory stays bounded.
EVENTS_PER_PART = 1_000_000

#: A fold keeps one number a message: state code, whether it has a state row, whether its attempts are not
#: known, and attempts above them.
_GONE, _UNKNOWN = int(StateCode.GONE), 7
_ROW = 8
_ATTEMPTS_UNKNOWN = 16
_ATTEMPTS_SHIFT = 5

#: Events after which a READY message has a state row.
_BACK_IN_LINE = (Kind.NACKED, Kind.RELEASED, Kind.REDRIVEN)


def _code(state: State | None) -> int:
    return _GONE if state is None else int(CODES[state])


def _legal() -> dict[tuple[Kind, int], frozenset[int]]:
    """(event, code after) -> codes before. A delay may have passed since: no event records it."""
    table: dict[tuple[Kind, int], set[int]] = {}
    for (before, kind), afters in TRANSITIONS.items():
        for after in afters:
            befores = table.setdefault((kind, _code(after)), {_UNKNOWN})
            befores |= {_code(before)} | ({int(StateCode.DELAYED)} if before == State.READY else set())
    return {key: frozenset(befores) for key, befores in table.items()}


LEGAL = _legal()
_WAITING = (int(StateCode.DELAYED), int(StateCode.READY))


def is_hole(run: Run) -> bool:
    """Whether these events stand for some that were lost."""
    return run.kind is Kind.REPAIRED and bool(run.ids) and run.ids[0] == NOBODY and run.extras[0] == HOLE


def has_state_row(event: Event) -> bool:
    """Whether the message has a state row after this event."""
    state = state_after(event)
    return state is not None and (state != State.READY or event.kind in _BACK_IN_LINE or event.attempt > 0)


def _number(event: Event) -> int:
    code = _code(state_after(event))
    if code == _GONE:
        return code
    # What older versions recorded of a repair had no attempts.
    unknown = event.kind is Kind.REPAIRED and not event.attempt
    flags = (_ROW if has_state_row(event) else 0) | (_ATTEMPTS_UNKNOWN if unknown else 0)
    return code | flags | event.attempt << _ATTEMPTS_SHIFT


class Fold:
    """One part of the ids of a queue, followed through its journal.

    A message without an event since the journal's base, or since a hole in it, is taken as given.
    """

    def __init__(self, part: int, parts: int, *, whole: bool) -> None:
        self._part, self._parts = part, parts
        #: Whether the journal is known from the first event on: then it knows every message.
        self.whole = whole
        self._states: dict[bytes, int] = {}
        self._complaints: dict[bytes, str] = {}
        #: enqueued, acked, failed: what the events make of a queue's totals.
        self.totals = [0, 0, 0]

    def lose(self) -> None:
        """Events are missing here: start anew."""
        self.whole = False
        self._states.clear()
        self._complaints.clear()

    def add(self, run: Run) -> None:
        if is_hole(run):
            self.lose()
            return
        kind, ids = run.kind, run.ids
        alike = run.uniform and kind not in (Kind.UPDATED, Kind.REPAIRED) and _same(run.attempts)
        number = _number(run.event(0)) if alike else 0
        legal = LEGAL[kind, number & 7] if alike else frozenset[int]()
        absent = _GONE if self.whole else _UNKNOWN
        states, part, parts = self._states, self._part, self._parts
        for row, raw_id in enumerate(ids):
            if parts > 1 and hash(raw_id) % parts != part:
                continue
            if raw_id == NOBODY:
                continue
            before = states.get(raw_id, absent)
            if not alike:
                number = _number(run.event(row))
                legal = LEGAL.get((kind, number & 7), frozenset())
            if before & 7 not in legal:
                self._complain(run.event(row), before & 7)
            if kind is Kind.REPAIRED:
                self._complaints.pop(raw_id, None)
            if number == _GONE and self.whole:
                states.pop(raw_id, None)
            else:
                states[raw_id] = number
            self._count(kind, before)

    def _count(self, kind: Kind, before: int) -> None:
        if kind is Kind.ENQUEUED:
            self.totals[0] += 1
        elif kind is Kind.ACKED:
            self.totals[1] += 1
        elif kind in (Kind.NACKED, Kind.RELEASED, Kind.DEAD, Kind.DROPPED) or (
            kind is Kind.EXPIRED and before & 7 == StateCode.LEASED
        ):
            self.totals[2] += 1

    def _complain(self, event: Event, before: int) -> None:
        was = _name(before)
        what = f"event {event.seq} takes it from {was} by {event.kind} to {state_after(event)}"
        self._complaints.setdefault(event.raw_id, what)

    def covers(self, raw_id: bytes) -> bool:
        """Whether an id is of this part."""
        return self._parts == 1 or hash(raw_id) % self._parts == self._part

    def says_gone(self, standing: Standing) -> bool:
        """Whether a body without a state row is of a message that the journal does not have any more."""
        absent = _GONE if self.whole else _UNKNOWN
        return not standing.states and self._states.get(standing.raw_id, absent) & 7 == _GONE

    def says_state_row(self, standing: Standing) -> bool:
        """Whether a message without a state row should have one."""
        return not standing.states and bool(self._states.get(standing.raw_id, 0) & _ROW)

    def compare(self, q: QueueState, standing: Standing, placed: Placed | None, findings: Findings) -> None:
        """Whether the journal agrees with how a message stands; each is asked about once."""
        raw_id = standing.raw_id
        if not self.covers(raw_id):
            return
        folded = self._states.pop(raw_id, _GONE if self.whole else _UNKNOWN)
        if standing.body is None or folded & 7 == _UNKNOWN:
            return
        for kind, what in _disagreement(folded, standing, placed):
            findings.message(kind, what, q.name, q.qid, raw_id)

    def finish(self, q: QueueState, findings: Findings) -> None:
        """After every message was compared: what the journal has and the store has not."""
        for raw_id, number in self._states.items():
            if number & 7 != _GONE:
                what = f"the journal leaves it {_name(number & 7)}; it is not stored"
                findings.message("body_missing", what, q.name, q.qid, raw_id)
        for raw_id, what in self._complaints.items():
            findings.message("fold_illegal", what, q.name, q.qid, raw_id)


def _same(values: Collection[int]) -> bool:
    return len(set(values)) == 1


def _name(code: int) -> str:
    return str(STATES[StateCode(code)]) if code < _GONE else "not there" if code == _GONE else "not known"


def _disagreement(folded: int, standing: Standing, placed: Placed | None) -> Iterator[tuple[str, str]]:
    if placed is None:
        return  # Said already: its state row is damaged.
    if placed.fresh:
        if folded & 7 == _GONE:
            yield "body_left", "the journal does not have it (any more), but its body is here"
        elif folded & _ROW:
            yield "state_missing", f"the journal leaves it {_name(folded & 7)}; its state row is missing"
        return
    stored = int(placed.code)
    if stored != folded & 7 and not (stored in _WAITING and folded & 7 in _WAITING):
        what = f"the journal leaves it {_name(folded & 7)}; it is stored as {_name(stored)}"
        yield "fold_differs", what
    elif not folded & _ATTEMPTS_UNKNOWN and (attempts := folded >> _ATTEMPTS_SHIFT) != placed.row.attempts:
        yield "fold_differs", f"the journal counts {attempts} attempts; {placed.row.attempts} are stored"
