"""A queue's journal, folded: what the events alone say must be what the queue holds."""

from __future__ import annotations

from collections import Counter

import msgspec

from penstock import Event, Kind, Queue, State
from penstock.message import STORED_STATES, TRANSITIONS, state_after

#: Events that one read asks for: odd, so that reads end inside frames.
EVENTS_PER_READ = 997

WAITING = (State.DELAYED, State.READY)

#: (state before, event, state after); None: not in this queue.
Step = tuple[State | None, Kind, State | None]


class Fold(msgspec.Struct):
    """Where the events leave each message, and every step that they took."""

    states: dict[str, State | None] = msgspec.field(default_factory=dict)
    steps: Counter[Step] = msgspec.field(default_factory=Counter)

    def totals(self) -> tuple[int, int, int]:
        """How often messages were enqueued, acked, and failed: given back, released, killed or too late."""
        kinds: Counter[Kind] = Counter()
        for (before, kind, _), count in self.steps.items():
            kinds[kind] += count if kind != Kind.EXPIRED or before == State.LEASED else 0
        failures = (Kind.NACKED, Kind.RELEASED, Kind.DEAD, Kind.DROPPED, Kind.EXPIRED)
        return kinds[Kind.ENQUEUED], kinds[Kind.ACKED], sum(kinds[kind] for kind in failures)


def read_events(q: Queue, after: int = 0) -> list[Event]:
    """Every event that the journal has after a seq."""
    out: list[Event] = []
    while page := q.events(after=after, limit=EVENTS_PER_READ):
        out += page
        after = page[-1].seq
    return out


def kinds_of(q: Queue, message_id: str) -> list[str]:
    """What happened to one message, in order."""
    return [str(event.kind) for event in read_events(q) if event.message_id == message_id]


def fold(events: list[Event], *, from_start: bool = True, fifo: bool = False) -> Fold:
    """Follow every message through the table of transitions; a step that is not in it fails.

    Without `from_start`, a message's first event is taken as it is: what came before is not known. Of a
    `fifo` queue, an event names the time by the delay that the queue had then: it may be another by now.
    What time has done stays done, should the clock be set back.
    """
    out = Fold()
    latest_ns = 0
    visible_at_ns: dict[str, int] = {}
    for event in events:
        key = event.message_id
        known = key in out.states or from_start
        before = out.states.get(key)
        latest_ns = max(latest_ns, event.at_ns)
        if before == State.DELAYED and visible_at_ns[key] <= latest_ns:
            before = State.READY  # By the passing of time: no event records it.
        after = state_after(event)
        if known:
            legal = TRANSITIONS.get((before, event.kind))
            assert legal is not None, f"{event.kind} of a message that is {before}: {event}"
            assert after in legal, f"{event.kind} took a message from {before} to {after}: {event}"
            out.steps[before, event.kind, after] += 1
        out.states[key] = after
        if after == State.DELAYED:
            has_own_time = not fifo or event.kind in (Kind.NACKED, Kind.RELEASED)
            visible_at_ns[key] = event.due_ns if has_own_time else event.at_ns
    return out


def prove_journal(q: Queue, *, fifo: bool = False) -> Fold:
    """Gap-free, legal, and in agreement with what is listed and what is counted."""
    listed = {message.id: message.state for message in q.iter()}
    events, stats = read_events(q), q.stats()
    assert [event.seq for event in events] == list(range(stats.first_seq, stats.last_seq + 1)), q.name
    folded = fold(events, from_start=stats.first_seq == 1, fifo=fifo)
    for message_id, state in folded.states.items():
        actual = listed.get(message_id)
        same = actual == state or (actual in WAITING and state in WAITING)
        assert same, f"queue {q.name!r}: the journal leaves {message_id} {state}, listed as {actual}"
    if stats.first_seq == 1:
        assert listed.keys() <= folded.states.keys(), "a listed message has no event"
        totals = (stats.enqueued_total, stats.acked_total, stats.failed_total)
        assert totals == folded.totals(), f"queue {q.name!r}: the events make {folded.totals()}, but {stats}"
    for state in STORED_STATES:
        count = sum(one == state for one in listed.values())
        assert getattr(stats, state) == count, f"queue {q.name!r}: {count} {state}, but {stats}"
    return folded
