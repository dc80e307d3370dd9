"""An open snapshot: which queues and worlds it has, and how a script asks for what it shows."""

from __future__ import annotations

from collections.abc import Collection
from itertools import pairwise
from typing import Any

import msgspec

from penstock.backends.bulk import BulkRequest, Snapshot, Span
from penstock.backends.redis import snapshots
from penstock.backends.redis.connecting import Arg
from penstock.backends.redis.engine import CHANGED, MOST_CHANGES, NOT_FOUND, PATIENCE_S, Engine, Known
from penstock.backends.redis.records import CODES, GONE, Counters, decode_counters
from penstock.backends.redis.worlds import unpacked_world
from penstock.backends.tables.requests import parts_of, wanted_states
from penstock.errors import BackendUnavailable, QueueNotFound
from penstock.message import STORED_STATES, State
from penstock.settings import QueueSettings

ENDED = -3
#: Parts that one call finds in an index.
MOST_PARTS = 1000


class QueueView(msgspec.Struct, frozen=True):
    """A queue as the snapshot has it. `required_seq`: read by all required cursors, if there are any."""

    name: str
    known: Known
    counters: Counters
    required_seq: int | None
    created_at_ns: int

    @property
    def settings(self) -> QueueSettings:
        return self.known.settings

    @property
    def first_seq(self) -> int:
        return self.counters.base_seq + 1

    @property
    def last_seq(self) -> int:
        return self.counters.seq

    @property
    def counts(self) -> dict[int, int]:
        """Messages by the code of their state, those of which only the body is held among them."""
        c = self.counters
        of_states = (c.delayed, c.ready, c.leased, c.done, c.dead)
        return {**{CODES[state]: n for state, n in zip(STORED_STATES, of_states, strict=True)}, GONE: c.held}


class WorldView(msgspec.Struct, frozen=True):
    """A world as the snapshot has it."""

    name: str
    first_seq: int
    last_seq: int
    created_at_ns: int = 0


class View:
    """`requests.Source` of an open snapshot."""

    def __init__(self, engine: Engine, snapshot: Snapshot, row: snapshots.SnapshotRow) -> None:
        self.engine = engine
        self._snapshot = snapshot
        self._mark = row.mark
        self._contents = snapshots.contents_of(engine, snapshot)
        #: Queues that are there under other names alone.
        self._deleted: set[str] = set()

    def close(self) -> None:
        self.engine.server.close()

    def names(self, *, of_worlds: bool) -> Collection[str]:
        return self._contents.worlds if of_worlds else self._contents.queues

    def queue(self, name: str) -> QueueView:
        raw, counters, required = self._contents.queues[name]
        row = self.engine.decoded_row(name, raw)
        known = Known(name, row.number, row.changed, row.settings, self.engine.keys.queue(name), None)
        return QueueView(
            name,
            known,
            decode_counters(counters),
            None if required < 0 else required,
            row.created_us * 1000,
        )

    def world(self, name: str) -> WorldView:
        """Any: a world comes to be by what is appended to it."""
        row = unpacked_world(self._contents.worlds.get(name))
        return WorldView(name, row.base_seq + 1, row.next_seq - 1)

    def rows(self, request: BulkRequest, one: QueueView | WorldView) -> int:
        if isinstance(one, WorldView) or request.table == "events":
            return one.last_seq - one.first_seq + 1
        if request.table == "queues":
            return 1
        whole = one.counts
        if request.table == "dead":
            return whole[CODES[State.DEAD]]
        return sum(whole.values()) - (0 if request.table == "bodies" else whole[GONE])

    def spans(self, request: BulkRequest, one: QueueView | WorldView, rows: int) -> list[Span]:
        """Parts of what is in each of the states, as its index has it."""
        assert isinstance(one, QueueView)
        states = wanted_states(request)
        codes = sorted(CODES.values()) if states is None else [CODES[State(state)] for state in states]
        if request.table == "bodies":
            codes.append(GONE)
        found: list[Span] = []
        for code in dict.fromkeys(codes):
            count, start = one.counts[code], bytes((code,))
            parts = min(parts_of(request, count), MOST_PARTS)
            cuts = self.call("cuts", one.known, code, parts)[2] if count and parts > 1 else []
            bounds = [start, *sorted({start + cut for cut in cuts}), start]
            found += [Span(one.name, low, high, count // (len(bounds) - 1)) for low, high in pairwise(bounds)]
        return found

    def call(self, name: str, q: Known, *args: Arg) -> list[Any]:
        """A script that answers what the snapshot shows of a queue."""
        engine = self.engine
        for _ in range(MOST_CHANGES):
            sent = [*engine.head(), q.number, self._mark, *args]
            keys = engine.keys.deleted(q.name, q.number) if q.name in self._deleted else q.keys
            reply: list[Any] = engine.server.run(engine.script(name), keys, sent)
            if reply[0] == NOT_FOUND:
                if q.name in self._deleted:
                    raise QueueNotFound(q.name)
                self._deleted.add(q.name)
                continue
            if reply[0] == ENDED:
                raise snapshots.not_found(self._snapshot)
            if reply[0] != CHANGED:
                return reply
            engine.closed.wait(PATIENCE_S)  # A repair is at it.
        raise BackendUnavailable(f"queue {q.name!r} is being repaired; try again")
