"""A whole system beside its model: each operation is done to both, and then they are compared."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from typing import Any, TypeVar
from unittest import mock

import msgspec
import pytest

from penstock import (
    HistoryTruncated,
    InvalidConfig,
    InvalidMessage,
    Kind,
    ManualClock,
    NewMessage,
    Outcome,
    Penstock,
    PenstockError,
    Queue,
    QueueAlreadyExists,
    QueueNotFound,
    QueueSettings,
    State,
)
from penstock.backends.embedded import bulk, engine, lanes
from penstock.settings import queue_settings
from tests.simulation.comparing import (
    agree,
    of_delivery,
    of_item,
)
from tests.simulation.line import WAITING, Line
from tests.simulation.looking import Looking
from tests.simulation.model import Error, Model
from tests.simulation.operations import GARBAGE, Operation

T = TypeVar("T")
Settings = dict[str, Any]


#: Sizes at which short histories meet what only long ones would: full caches, slices, hints, jobs.
SMALL_LANES: dict[str, Any] = {
    "CACHED_ROWS": 6,
    "CACHED_ROWS_MIN": 2,
    "FILL_ROWS": 3,
    "DISCOVERY_SLICE": 2,
    "HINT_EVERY": 4,
}


class Simulation(Looking):
    """Every public method is an operation."""

    def __init__(self) -> None:
        self.small = contextlib.ExitStack()
        self.small.enter_context(mock.patch.multiple(lanes, **SMALL_LANES))
        self.small.enter_context(mock.patch.object(bulk, "SLICE", 3))
        self.small.enter_context(mock.patch.object(engine, "DUE_HINT_EVERY", 3))
        self.clock = ManualClock()
        self.model = Model(self.clock.now_ns())
        #: (queue, receipt) of every delivery ever made.
        self.receipts: list[tuple[str, str]] = []
        self.events, self.last_seq, self.held = {}, {}, {}
        self.openings = 0
        self.ps = self.open()

        self.create("dead é", {}, fifo=False)
        self.create("a", {"dead_letter": "dead é"}, fifo=False)
        self.create("fifo", {}, fifo=True)

    def do(self, operation: Operation) -> None:
        getattr(self, operation.what)(**operation.arguments)
        for name in self.model.lines:
            self.read_events(name)
        self.compare_after(operation)

    def compare_after(self, operation: Operation) -> None:
        raise NotImplementedError

    def end(self) -> None:
        self.look()
        self.close()

    def close(self) -> None:
        self.ps.close()
        self.small.close()

    # -- the system under test ------------------------------------------------------------------

    def open(self) -> Penstock:
        raise NotImplementedError

    def reopen(self) -> Penstock:
        raise NotImplementedError

    def failing(self, operation: Callable[[], T]) -> tuple[bool, T | None]:
        """Run it with its first write failing; (whether it failed, its answer)."""
        return False, operation()

    def next_rng(self) -> random.Random:
        self.openings += 1
        return random.Random(self.openings)

    def ask(self, name: str, operation: Callable[[Queue], T], fault: bool = False) -> T | None:
        """The queue's answer; None if there was no such queue, or the write was made to fail."""
        if name not in self.model.lines:
            with pytest.raises(QueueNotFound):
                self.ps.queue(name)
            self.create(name, {}, fifo=name == "fifo")
            return None
        q = self.ps.queue(name)
        if not fault:
            return operation(q)
        failed, answer = self.failing(lambda: operation(q))
        if failed:
            self.forget_turns()
        return answer

    def forget_turns(self) -> None:
        """Whose turn it is lives in memory, which starts anew."""
        for line in self.model.lines.values():
            line.unserved.clear()
            line.out_of_turn.clear()

    # -- queues ---------------------------------------------------------------------------------

    def create(self, name: str, settings: Settings, fifo: bool) -> None:
        refusal = self.refused_settings(name, settings, {*self.model.lines, name})
        if name in self.model.lines:
            refusal = InvalidConfig if settings.get("dead_letter") == name else QueueAlreadyExists
        if refusal is not None:
            with pytest.raises(refusal):
                self.ps.create_queue(name, fifo=fifo, **settings)
            return
        self.ps.create_queue(name, fifo=fifo, **settings)
        self.adopt(name, queue_settings(name, {"fifo": fifo, **settings}))

    def adopt(self, name: str, settings: QueueSettings) -> None:
        self.model.lines[name] = Line(settings)
        self.events[name], self.last_seq[name], self.held[name] = [], 0, {}

    def refused_settings(self, name: str, settings: Settings, there: set[str]) -> Error:
        dead_letter = settings.get("dead_letter")
        wrong = dead_letter is not None and (dead_letter == name or dead_letter not in there)
        return InvalidConfig if wrong else None

    def update(self, name: str, settings: Settings) -> None:
        line = self.model.lines.get(name)
        if line is None:
            with pytest.raises(QueueNotFound):
                self.ps.update_queue(name, **settings)
            return
        with pytest.raises(InvalidConfig):
            self.ps.update_queue(name, fifo=not line.settings.fifo)
        if self.refused_settings(name, settings, set(self.model.lines)):
            with pytest.raises(InvalidConfig):
                self.ps.update_queue(name, **settings)
            return
        self.ps.update_queue(name, **settings)
        old = {key: getattr(line.settings, key) for key in QueueSettings.__struct_fields__[1:]}
        self.model.change(name, queue_settings(name, {**old, **settings}))

    def delay(self, name: str, delay_s: float) -> None:
        """Give a queue a delay, which only a fifo one can have."""
        line = self.model.lines.get(name)
        if line is None or line.settings.fifo or not delay_s:
            self.update(name, {"delay_s": delay_s})
            return
        with pytest.raises(InvalidConfig):
            self.ps.update_queue(name, delay_s=delay_s)

    def delete_or_replace(self, name: str, keep: set[str] | None) -> None:
        """Delete one; or keep some, and `name`, made if need be."""
        lines = self.model.lines
        wanted = {one: line.settings for one, line in lines.items() if one != name}
        if keep is not None:
            wanted = {one: lines[one].settings for one in sorted({*keep, name}) if one in lines}
            wanted.setdefault(name, queue_settings(name, {}))
        refusal: Error = QueueNotFound if keep is None and name not in lines else None
        if any(one.dead_letter is not None and one.dead_letter not in wanted for one in wanted.values()):
            refusal = InvalidConfig

        def change() -> None:
            if keep is None:
                self.ps.delete_queue(name)
            else:
                self.ps.replace_queues(list(wanted.values()))

        if refusal is not None:
            with pytest.raises(refusal):
                change()
            return
        change()
        for gone in sorted(set(lines) - set(wanted)):
            del lines[gone]
        for new in sorted(set(wanted) - set(lines)):
            self.adopt(new, wanted[new])

    # -- producing ------------------------------------------------------------------------------

    def enqueue(self, name: str, batch: list[NewMessage], fault: bool) -> None:
        results = self.ask(name, lambda q: q.enqueue_many(batch), fault)
        for new, result in zip(batch, results or [], strict=results is not None):
            expected = self.model.enqueue(name, msgspec.structs.replace(new), result.id or "")
            agree("result", (_kind(result.error), result.id or "", result.duplicate), expected)

    def upsert(self, name: str, batch: list[NewMessage], fault: bool) -> None:
        ids = [new.id for new in batch if new.id is not None]
        # An id that comes twice makes two writes: the first would be there after the second has failed.
        fault = fault and len(ids) == len(set(ids))
        results = self.ask(name, lambda q: q.upsert(batch), fault)
        for new, result in zip(batch, results or [], strict=results is not None):
            expected = self.model.upsert(name, msgspec.structs.replace(new), result.id or "")
            agree("result", (_kind(result.error), result.id or "", result.duplicate), expected)

    # -- consuming ------------------------------------------------------------------------------

    def busiest(self, count: Callable[[str], int]) -> str:
        return max(self.model.lines, key=count, default="a")

    def lease(self, name: str | None, wanted: int, lease_s: float | None, consumer: str, fault: bool) -> None:
        name = name or self.busiest(lambda one: len(self.model.lines[one].of(State.READY)))
        self.lease_from(name, wanted, lease_s, consumer, fault)

    def lease_from(self, name: str, wanted: int, lease_s: float | None, consumer: str, fault: bool) -> None:
        got = self.ask(name, lambda q: q.lease(wanted, lease_s=lease_s, consumer=consumer), fault)
        if got is None:
            return
        self.model.release_leases()
        self.model.lease(name, wanted, lease_s, got)
        for delivery in got:
            agree("delivery", of_delivery(delivery), of_item(self.model.lines[name].items[delivery.id], name))
            assert (name, delivery.receipt) not in self.receipts
            self.receipts.append((name, delivery.receipt))

    def hand_in(
        self,
        name: str | None,
        picks: list[int],
        fault: bool,
        operation: Callable[[Queue, list[str]], list[Outcome]],
        expected: Callable[[str, list[str]], list[Error]],
    ) -> None:
        known = self.receipts or [("a", GARBAGE[0])]
        # Those that still hold their message come last, so that they are picked most.
        known = sorted(known, key=lambda one: self.model.holds(*one))
        picked = [("", GARBAGE[-n - 1]) if n < 0 else known[-1 - n % len(known)] for n in picks]
        where = name or picked[0][0] or "a"
        receipts = [receipt for _, receipt in picked]
        outcomes = self.ask(where, lambda q: operation(q, receipts), fault)
        if outcomes is not None:
            answers = [_kind(one.error) for one in outcomes]
            agree("outcomes", answers, expected(where, receipts))

    def ack(self, name: str | None, picks: list[int], fault: bool) -> None:
        self.hand_in(
            name,
            picks,
            fault,
            lambda q, receipts: q.ack(receipts),
            lambda where, receipts: [self.model.ack(where, one) for one in receipts],
        )

    def nack(
        self, name: str | None, picks: list[int], delay_s: float | None, reason: str, fault: bool
    ) -> None:
        self.hand_in(
            name,
            picks,
            fault,
            lambda q, receipts: q.nack(receipts, delay_s=delay_s, reason=reason),
            lambda where, receipts: [self.model.nack(where, one, delay_s, reason) for one in receipts],
        )

    def reject(self, name: str | None, picks: list[int], reason: str, fault: bool) -> None:
        self.hand_in(
            name,
            picks,
            fault,
            lambda q, receipts: q.reject(receipts, reason),
            lambda where, receipts: [self.model.reject(where, one, reason) for one in receipts],
        )

    def extend(self, name: str | None, picks: list[int], lease_s: float, fault: bool) -> None:
        self.hand_in(
            name,
            picks,
            fault,
            lambda q, receipts: q.extend(receipts, lease_s),
            lambda where, receipts: self.model.extend(where, receipts, lease_s),
        )

    # -- bulk -----------------------------------------------------------------------------------

    def move(self, name: str | None, to: str, picks: list[int], fault: bool) -> None:
        known = self.known_ids()
        ids = [known[n % len(known)] for n in picks]
        holding = [one for one, line in self.model.lines.items() if ids[0] in line.items]
        self.move_from(name or next(iter(holding), "a"), to, ids, fault)

    def move_from(self, name: str, to: str, ids: list[str], fault: bool) -> None:
        if name in self.model.lines and (to == name or to not in self.model.lines):
            with pytest.raises(InvalidMessage if to == name else QueueNotFound):
                self.ps.queue(name).move(ids, to)
            return
        outcomes = self.ask(name, lambda q: q.move(ids, to), fault)
        if outcomes is not None:
            expected = [self.model.move(name, one, to) for one in ids]
            agree("outcomes", [_kind(one.error) for one in outcomes], expected)

    def redrive(self, name: str | None, to: str | None, limit: int, fault: bool) -> None:
        self.redrive_from(name or self.busiest(self.model.count_redrivable), to, limit, fault)

    def redrive_from(self, name: str, to: str | None, limit: int, fault: bool) -> None:
        if name in self.model.lines and to is not None and to not in self.model.lines:
            with pytest.raises(QueueNotFound):
                self.ps.queue(name).redrive(limit, to)
            return
        count = self.ask(name, lambda q: q.redrive(limit, to), fault)
        if count is None:
            return
        candidates = self.model.redrivable(name, to)
        agree("redriven", count, min(limit, len(candidates)))
        went = [event.message_id for event in self.read_events(name) if event.kind == Kind.REDRIVEN]
        assert len(went) == count
        for message_id in went:
            self.model.redrive(name, message_id, candidates[message_id])

    def purge(self, name: str, state: State | None, fault: bool) -> None:
        count = self.ask(name, lambda q: q.purge(state), fault)
        if count is not None:
            agree("purged", count, self.model.purge(name, WAITING if state is None else (state,)))

    def throttle(self, key: str, rate_per_s: float, burst: int, delete: bool, fault: bool) -> None:
        def change() -> None:
            if delete:
                self.ps.throttles.delete(key)
            else:
                self.ps.throttles.set(key, rate_per_s, burst)

        if fault and self.failing(change)[0]:
            self.forget_turns()
            return
        if not fault:
            change()
        if delete:
            self.model.buckets.delete(key)
        else:
            self.model.buckets.limit(key, rate_per_s, burst)

    # -- time -----------------------------------------------------------------------------------

    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.model.set_now(self.clock.now_ns())

    def sweep(self, fault: bool) -> None:
        first_seqs = {name: self.first_seq(name) for name in self.model.lines}
        if fault and self.failing(self.ps.sweep)[0]:
            self.forget_turns()
            return
        if not fault:
            self.ps.sweep()
        self.model.sweep()
        for name, line in self.model.lines.items():
            self.read_events(name)
            floor = line.read_by_all(self.last_seq[name])
            removed = self.first_seq(name) > first_seqs[name]
            assert not removed or self.first_seq(name) <= floor + 1, "a required cursor has not read so far"
            self.held[name] = {key: seq for key, seq in self.held[name].items() if seq > floor}

    def close_and_reopen(self) -> None:
        self.ps = self.reopen()
        self.forget_turns()

    # -- cursors --------------------------------------------------------------------------------

    def open_cursor(self, name: str, cursor: str, required: bool) -> None:
        if name in self.model.lines:
            self.read_events(name)  # What was removed before is not held back.
        opened = self.ask(name, lambda q: q.cursor(cursor, required))
        if opened is not None:
            cursors = self.model.lines[name].cursors
            position, was_required = cursors.get(cursor, (self.first_seq(name) - 1, False))
            cursors[cursor] = (position, was_required or required)
            agree("cursor", (opened.position, opened.required), cursors[cursor])

    def commit_cursor(self, name: str, cursor: str, back: int) -> None:
        line = self.model.lines.get(name)
        if line is None:
            return
        seq = self.last_seq[name] - back
        if cursor not in line.cursors or not self.first_seq(name) - 1 <= seq <= self.last_seq[name]:
            with pytest.raises(InvalidMessage):
                self.backend.commit_cursor(name, cursor, seq)
            return
        self.backend.commit_cursor(name, cursor, seq)
        line.cursors[cursor] = (seq, line.cursors[cursor][1])

    def read_cursor(self, name: str, cursor: str, limit: int) -> None:
        line = self.model.lines.get(name)
        if line is None or cursor not in line.cursors:
            return
        position, _ = line.cursors[cursor]
        if position < self.first_seq(name) - 1:
            with pytest.raises(HistoryTruncated):
                self.backend.read_cursor(name, cursor, limit)
            return
        got = self.backend.read_cursor(name, cursor, limit)
        self.read_events(name)
        if not self.events[name] or self.events[name][0].seq <= position + 1:
            agree("read", got, [event for event in self.events[name] if event.seq > position][:limit])

    def drop_cursor(self, name: str, cursor: str) -> None:
        if name in self.model.lines:
            self.backend.drop_cursor(name, cursor)
            self.model.lines[name].cursors.pop(cursor, None)


def _kind(error: PenstockError | None) -> Error:
    return None if error is None else type(error)
