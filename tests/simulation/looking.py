"""Looking at a system: everything that it says of itself is what the model says."""

from __future__ import annotations

from collections import Counter

import pytest

from penstock import Event, InvalidMessage, ManualClock, MessageNotFound, Penstock, Queue, State
from penstock.backends.base import QueueBackend
from penstock.backends.embedded import history
from penstock.backends.embedded.backend import EmbeddedBackend
from penstock.message import STORED_STATES
from penstock.testing.folding import fold
from tests.simulation.comparing import DRIFT_NS, agree, compare_messages, of_item, of_message
from tests.simulation.line import Line
from tests.simulation.model import Model
from tests.simulation.operations import IDS, UNKNOWN_ID


class Looking:
    """An open system, its model, and what was read of its journals."""

    clock: ManualClock
    model: Model
    ps: Penstock
    #: By queue: events read, the last seq of them, and the bodies that outlive their message.
    events: dict[str, list[Event]]
    last_seq: dict[str, int]
    held: dict[str, dict[str, int]]

    @property
    def backend(self) -> EmbeddedBackend:
        backend = self.ps._default
        assert isinstance(backend, EmbeddedBackend)
        return backend

    def first_seq(self, name: str) -> int:
        with self.backend.engine.lock:
            return self.backend.engine.queue(name).counters.base_seq + 1

    def read_events(self, name: str) -> list[Event]:
        """New events, read without what every other look does first: letting time act."""
        store, after = self.backend.engine, self.last_seq[name]
        with store.lock:
            q = store.queue(name)
            new = history.events(store, q, after, 1_000_000)
            last_seq, first_seq = q.counters.next_seq - 1, q.counters.base_seq + 1
        # A sweep may remove events that it has just made: nobody can have read them.
        lost = first_seq > after + 1
        self.events[name] = new if lost else self.events[name] + new
        expected = list(range(max(after + 1, first_seq), last_seq + 1))
        agree(f"seqs of {name}", [event.seq for event in new], expected)
        self.last_seq[name] = last_seq
        for event in new:
            state = fold([event], from_start=False).states[event.message_id]
            if state is not None:
                self.held[name].pop(event.message_id, None)
            elif any(required for _, required in self.model.lines[name].cursors.values()):
                self.held[name][event.message_id] = event.seq
        return new

    # -- looking --------------------------------------------------------------------------------

    def known_ids(self) -> list[str]:
        lines = self.model.lines.values()
        return [*(key for line in lines for key in line.items), *IDS, UNKNOWN_ID, "x"]

    def look_around(self, name: str, n: int, limit: int, state: State) -> None:
        line = self.model.lines.get(name)
        if line is None:
            return
        q, known = self.ps.queue(name), self.known_ids()
        message_id = known[n % len(known)]
        if message_id in line.items:
            agree("message", of_message(q.get(message_id)), of_item(line.items[message_id], name))
        else:
            with pytest.raises(InvalidMessage if message_id == "x" else MessageNotFound):
                q.get(message_id)
        listed = [message.id for message in q.iter("ready")]
        agree("peek", [one.id for one in q.peek(limit, n % 4)], listed[n % 4 :][:limit])
        self.list_pages(q, line, state, limit)

    def list_pages(self, q: Queue, line: Line, state: State, limit: int) -> None:
        """Small pages of one key are what the whole list has of that key."""
        listed = [message.id for message in q.iter(state)]
        found: list[str] = []
        after: str | None = None
        while True:
            page = q.list(state, fairness_key="k", after=after, limit=limit)
            found += [message.id for message in page.items]
            if (after := page.next) is None:
                break
        agree("listed", found, [one for one in listed if line.items[one].new.fairness_key == "k"])

    def look(self) -> None:
        """The open store itself, its memory included, against the model; and its journal."""
        self.compare(self.backend)
        for name, line in self.model.lines.items():
            self.read_events(name)
            self.compare_journal(name, line)
        agree("check", self.ps.check().problems, [])
        due = [(one.at_ns, one.what, one.queue, one.message_id or "") for one in self.ps.due(limit=10_000)]
        agree("due", sorted(due), sorted(self.model.due()))
        agree("order of due", [one[0] for one in due], sorted(one[0] for one in due))

    def compare_journal(self, name: str, line: Line) -> None:
        stats, last_seq, events = self.ps.queue(name).stats(), self.last_seq[name], self.events[name]
        agree("last seq", stats.last_seq, last_seq)
        agree("held bodies", stats.held_bodies, len(self.held[name]))
        agree("unread by required", stats.unread_by_required, last_seq - line.read_by_all(last_seq))
        if events and events[0].seq > 1:
            return
        recorded = sorted((event.kind, event.message_id) for event in events)
        agree(f"events of {name}", recorded, sorted(line.log))
        folded = {
            key: _waiting_as_one(state) for key, state in fold(events, fifo=line.settings.fifo).states.items()
        }
        states = {key: _waiting_as_one(item.state) for key, item in line.items.items()}
        agree(f"journal of {name}", {key: state for key, state in folded.items() if state}, states)

    def compare(self, backend: QueueBackend) -> None:
        """Every queue's messages and numbers."""
        agree("queues", backend.queues(), [line.settings for _, line in sorted(self.model.lines.items())])
        throttles = [(one.key, one.rate_per_s, one.burst, one.tokens) for one in backend.throttles()]
        agree("throttles", throttles, self.model.buckets.shown())
        for name, line in self.model.lines.items():
            q = Queue(backend, name)
            compare_messages(name, line, {state: list(q.iter(state)) for state in STORED_STATES})
            self.compare_stats(q, line)

    def compare_stats(self, q: Queue, line: Line) -> None:
        stats, waiting = q.stats(), line.of(State.READY)
        counts = {state: getattr(stats, state) for state in STORED_STATES}
        agree("counts", counts, {state: len(line.of(state)) for state in STORED_STATES})
        agree("length", q.length(), len(line.of(State.DELAYED, State.READY, State.LEASED)))
        totals = (stats.enqueued_total, stats.acked_total, stats.failed_total)
        agree("totals", totals, (line.enqueued, line.acked, line.failed))
        by_key = {one.key: one.ready for one in q.key_stats() if one.ready}
        agree("ready by key", by_key, dict(Counter(item.new.fairness_key for item in waiting)))
        agree("nothing is ready", stats.oldest_ready_age_s is None, not waiting)
        if stats.oldest_ready_age_s is not None and not line.settings.fifo:
            oldest_ns = self.clock.now_ns() - min(item.visible_ns for item in waiting)
            assert abs(stats.oldest_ready_age_s * 1e9 - oldest_ns) < DRIFT_NS, "age of the oldest"


def _waiting_as_one(state: State | None) -> State | None:
    return State.READY if state == State.DELAYED else state
