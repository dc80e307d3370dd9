"""What a store holds, read through the public calls, and whether its journals tell the same story."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from penstock.errors import HistoryTruncated
from penstock.event import Event, Kind
from penstock.message import TRANSITIONS, State
from tests.crash.load import THREADS, WORLD
from tests.crash.record import parse_payload
from tests.crash.system import System

ALL = 1 << 40


@dataclass(frozen=True)
class Seen:
    """One message where it was found."""

    queue: str
    state: State
    tag: str
    version: int


@dataclass
class Truth:
    """Everything that the oracle looks at."""

    problems: list[str] = field(default_factory=list)
    messages: dict[str, list[Seen]] = field(default_factory=dict)
    journals: dict[str, list[Event]] = field(default_factory=dict)
    bases: dict[str, int] = field(default_factory=dict)
    cursors: dict[tuple[str, str], int] = field(default_factory=dict)
    state: dict[str, str] = field(default_factory=dict)
    entries: dict[str, str] = field(default_factory=dict)


def read_truth(system: System) -> Truth:
    truth = Truth()
    report = system.check()
    truth.problems += [f"check: {p.what} (queue {p.queue!r}, {p.where})" for p in report.problems]
    for settings in system.queues():
        _read_queue(system, settings.name, truth)
    for name in (f"key-{thread}" for thread in range(THREADS)):
        value = system.state.get(name)
        if value is not None:
            truth.state[name] = value.decode()
    truth.entries = {entry.id or "": entry.body.decode() for entry in system.journal(WORLD).scan()}
    for queue, events in truth.journals.items():
        truth.problems += disagreements(truth, queue, events)
    return truth


def _read_queue(system: System, name: str, truth: Truth) -> None:
    queue = system.queue(name)
    counted = 0
    for message in queue.iter():
        counted += 1
        try:
            tag, version = parse_payload(message.payload)
        except ValueError as error:
            truth.problems.append(f"message {message.id} of {name!r}: {error}")
            continue
        truth.messages.setdefault(message.id, []).append(Seen(name, message.state, tag, version))
    stats = queue.stats()
    total = stats.delayed + stats.ready + stats.leased + stats.done + stats.dead
    if counted != total:
        truth.problems.append(f"{name!r} lists {counted} messages; its counters say {total}")
    truth.bases[name] = stats.first_seq - 1
    truth.journals[name] = list(queue.events(limit=ALL))
    for cursor in queue.cursors():
        truth.cursors[(name, cursor.name)] = cursor.position
        if cursor.required:
            try:
                queue.cursor(cursor.name).read(1)
            except HistoryTruncated as error:
                truth.problems.append(f"required cursor {cursor.name!r} of {name!r}: {error}")


def disagreements(truth: Truth, queue: str, events: list[Event]) -> Iterator[str]:
    """Where the journal breaks the table of transitions, or ends elsewhere than the messages are."""
    folded: dict[str, State | None] = {}
    for expected_seq, event in enumerate(events, start=truth.bases[queue] + 1):
        if event.seq != expected_seq:
            yield f"journal of {queue!r} has {event.seq} where {expected_seq} belongs"
            return
        if event.kind is Kind.REPAIRED:
            yield f"journal of {queue!r}: {event.message_id} had to be repaired: {event.reason}"
        before = folded.get(event.message_id)
        known = event.message_id in folded or truth.bases[queue] == 0
        if known and not _legal(before, event):
            yield f"journal of {queue!r}: {event} from {before}, which is not in the table"
        folded[event.message_id] = _after(event)
    for message_id, state in folded.items():
        found = [seen.state for seen in truth.messages.get(message_id, []) if seen.queue == queue]
        if found != ([] if state is None else [state]) and not _only_time_passed(state, found):
            yield f"journal of {queue!r} leaves {message_id} {state}, but it is {found}"
    if truth.bases[queue] == 0:
        for message_id, places in truth.messages.items():
            if message_id not in folded and any(seen.queue == queue for seen in places):
                yield f"{message_id} is in {queue!r}, but its journal knows nothing of it"


def _legal(before: State | None, event: Event) -> bool:
    # A delay passes without an event: what the journal left DELAYED may be READY.
    return any((state, event.kind) in TRANSITIONS for state in {before, _due(before)})


def _due(state: State | None) -> State | None:
    return State.READY if state is State.DELAYED else state


def _only_time_passed(state: State | None, found: list[State]) -> bool:
    return state is State.DELAYED and found == [State.READY]


_GONE = (Kind.MOVED, Kind.EXPIRED, Kind.PURGED, Kind.REMOVED, Kind.DROPPED)
_WAITING = (Kind.ENQUEUED, Kind.UPDATED, Kind.NACKED, Kind.RELEASED)


def _after(event: Event) -> State | None:
    """The state that an event leaves its message in, in this queue."""
    if event.kind in _WAITING:
        return State.DELAYED if event.due_ns > event.at_ns else State.READY
    if event.kind in (Kind.LEASED, Kind.EXTENDED):
        return State.LEASED
    if event.kind is Kind.ACKED:
        return State.DONE if event.due_ns else None
    if event.kind is Kind.DEAD:
        return None if event.extra else State.DEAD
    if event.kind is Kind.REDRIVEN:
        return None if event.extra else State.READY
    assert event.kind in _GONE, event
    return None
