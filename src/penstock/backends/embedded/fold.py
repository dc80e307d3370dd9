"""The journal folded: what the events alone say must be what the queue holds."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.backends.embedded.engine import Engine
from penstock.backends.embedded.history import frames
from penstock.backends.embedded.keys import StateCode
from penstock.backends.embedded.lookup import STATES, find_many
from penstock.backends.embedded.queue_state import QueueState
from penstock.codec.frame import decode_events
from penstock.event import Event
from penstock.message import TRANSITIONS, State, state_after

#: Events that one pass keeps the messages of: a longer journal is folded in several passes, each over a
#: part of the ids, so that memory stays bounded.
EVENTS_PER_PASS = 500_000
_CHUNK = 1000

_WAITING = (State.DELAYED, State.READY)

#: what is wrong, the message
Finding = tuple[str, bytes]


def fold(engine: Engine, q: QueueState) -> Iterator[Finding]:
    """Whatever the journal and the stored states do not agree on.

    From the base on: a message without an event since then is taken as given.
    """
    c = q.counters
    whole = c.base_seq == 0
    passes = (c.next_seq - 1 - c.base_seq) // EVENTS_PER_PASS + 1
    alive = 0
    for part in range(passes):
        states: dict[bytes, State | None] = {}
        for _, raw in frames(engine, q.qid, c.base_seq):
            for event in decode_events(raw):
                if event.raw_id[-1] % passes == part:
                    yield from _step(states, event, whole)
        yield from _compare(engine, q, states)
        alive += sum(state is not None for state in states.values())
    if whole and alive != sum(c.counts):
        yield f"the journal leaves {alive} messages; the counters say {sum(c.counts)}", b""


def _step(states: dict[bytes, State | None], event: Event, whole: bool) -> Iterator[Finding]:
    before, after = states.get(event.raw_id), state_after(event)
    if whole or event.raw_id in states:
        # A delay may have passed since: no event records it.
        befores = _WAITING if before == State.DELAYED else (before,)
        if not any(after in TRANSITIONS.get((state, event.kind), ()) for state in befores):
            yield f"event {event.seq} takes it from {before} by {event.kind} to {after}", event.raw_id
    states[event.raw_id] = after


def _compare(engine: Engine, q: QueueState, states: dict[bytes, State | None]) -> Iterator[Finding]:
    ids = list(states)
    for at in range(0, len(ids), _CHUNK):
        chunk = ids[at : at + _CHUNK]
        for raw_id, found in zip(chunk, find_many(engine, q, chunk), strict=True):
            stored = None if found is None or found.code == StateCode.GONE else STATES[found.code]
            folded = states[raw_id]
            if stored != folded and not (stored in _WAITING and folded in _WAITING):
                yield f"the journal leaves it {folded}; it is stored as {stored}", raw_id
