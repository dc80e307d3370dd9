"""A queue system in plain dicts: what Penstock must do, written as simply as it can be said.

Time acts at once on waiting messages (delays pass, ttls end); leases end only when `lease` or `sweep`
looks. Where the semantics leave a choice (which fairness key is next), the model checks what the system
chose and adopts it.
"""

from __future__ import annotations

from penstock import (
    Delivery,
    InvalidMessage,
    Kind,
    MessageLeased,
    MessageNotFound,
    NewMessage,
    PenstockError,
    QueueSettings,
    StaleReceipt,
    State,
)
from penstock.clock import to_ns
from tests.simulation.line import WAITING, Buckets, Item, Line

Error = type[PenstockError] | None


class Model:
    def __init__(self, now_ns: int) -> None:
        self.now_ns = now_ns
        self.lines: dict[str, Line] = {}
        self.buckets = Buckets()
        self.buckets.now_ns = now_ns
        self._places = 0
        self._together = False

    # -- time -----------------------------------------------------------------------------------

    def set_now(self, now_ns: int) -> None:
        self.now_ns = self.buckets.now_ns = now_ns
        for line in self.lines.values():
            for item in line.of(State.DELAYED):
                if item.visible_ns <= now_ns:
                    item.state, item.since_ns = State.READY, None
            for item in line.of(*WAITING):
                if item.expires_ns is not None and item.expires_ns <= now_ns:
                    self._remove(line, item, Kind.EXPIRED)

    def release_leases(self) -> None:
        self._places += 1
        self._together = True  # They become visible at one time: nothing says in which order.
        ended = [
            (item.until_ns, n, item.id)
            for n, line in enumerate(self.lines.values())
            if self.releases(line)
            for item in line.of(State.LEASED)
            if item.until_ns is not None and item.until_ns <= self.now_ns
        ]
        lines = list(self.lines.values())
        for _, n, message_id in self.in_order(ended):
            line = lines[n]
            item = line.items[message_id]
            dies = item.attempts >= line.settings.max_attempts
            self._fail(line, item, None if dies else self.now_ns, Kind.RELEASED, "")
        self._together = False

    def in_order(self, ended: list[tuple[int, int, str]]) -> list[tuple[int, int, str]]:
        """In order of time: the first of one id has the place in a dead-letter queue."""
        return sorted(ended)

    def releases(self, line: Line) -> bool:
        """Whether leases of this queue end when someone looks, whichever queue they look for."""
        return True

    def sweep(self) -> None:
        self.release_leases()
        for line in self.lines.values():
            for item in line.of(State.DONE, State.DEAD):
                if item.until_ns is not None and item.until_ns <= self.now_ns:
                    self._remove(line, item, Kind.REMOVED)
            line.dedup = {key: first for key, first in line.dedup.items() if first[0] > self.now_ns}

    # -- producing ------------------------------------------------------------------------------

    def enqueue(self, name: str, new: NewMessage, fresh_id: str) -> tuple[Error, str, bool]:
        """(error, id, duplicate); `fresh_id` is what the system called it, if it is new."""
        line = self.lines[name]
        if line.refuses(new):
            return InvalidMessage, "", False
        if new.id in line.items:
            return None, new.id, True
        if new.dedup_id is not None and line.settings.dedup_window_s:
            until_ns, first = line.dedup.get(new.dedup_id, (0, ""))
            if until_ns > self.now_ns:
                return None, first, True
            window_ns = to_ns(line.settings.dedup_window_s)
            line.dedup[new.dedup_id] = (self.now_ns + window_ns, new.id or fresh_id)
        item = Item(new.id or fresh_id, new, self.now_ns, self.now_ns, self._next_place())
        item.expires_ns = None if new.ttl_s is None else self.now_ns + to_ns(new.ttl_s)
        if new.delay_s:
            item.state, item.visible_ns, item.place = State.DELAYED, self.now_ns + to_ns(new.delay_s), None
        self._wait(line, item)
        self._add(line, item)
        return None, item.id, False

    def upsert(self, name: str, new: NewMessage, fresh_id: str) -> tuple[Error, str, bool]:
        line = self.lines[name]
        if new.dedup_id is not None or line.refuses(new):
            return InvalidMessage, "", False
        if new.id not in line.items:
            return self.enqueue(name, new, fresh_id)
        item = line.items[new.id]
        if item.state not in WAITING:
            return (MessageLeased if item.state == State.LEASED else InvalidMessage), "", False
        waits = item.since_ns is not None
        if new.delay_s:
            item.visible_ns, item.place = self.now_ns + to_ns(new.delay_s), None
        elif item.state == State.DELAYED and not waits:
            item.visible_ns = self.now_ns
            item.place = item.place if line.settings.fifo else self._next_place()
        item.state = State.DELAYED if new.delay_s or waits else State.READY
        item.expires_ns = None if new.ttl_s is None else self.now_ns + to_ns(new.ttl_s)
        new.dedup_id = item.new.dedup_id
        item.new = new
        line.log.append((Kind.UPDATED, item.id))
        return None, item.id, False

    # -- consuming ------------------------------------------------------------------------------

    def lease(self, name: str, wanted: int, lease_s: float | None, got: list[Delivery]) -> None:
        """Check that what the system handed out was its to hand out, and take it over."""
        line = self.lines[name]
        length_ns = to_ns(line.settings.lease_s if lease_s is None else lease_s)
        for delivery in got:
            choices = line.deliverable(self.buckets)
            item = next((item for item in choices if item.id == delivery.id), None)
            assert item is not None, f"{delivery.id} was not deliverable; these were: {choices}"
            line.check_turn(item, {choice.new.priority for choice in choices})
            item.state, item.receipt, item.consumer = State.LEASED, delivery.receipt, delivery.consumer
            item.leased_ns, item.until_ns = self.now_ns, self.now_ns + length_ns
            item.attempts += 1
            self.buckets.take(item)
            line.log.append((Kind.LEASED, item.id))
        if len(got) < wanted:
            able = line.deliverable(self.buckets)
            left = [item for item in able if not line.may_be_kept_back(item, self.buckets)]
            assert not left, f"not handed out: {left}"

    def _held(self, name: str, receipt: str) -> Item | None:
        for item in self.lines[name].of(State.LEASED):
            if item.receipt == receipt:
                return item
        return None

    def holds(self, name: str, receipt: str) -> bool:
        return name in self.lines and self._held(name, receipt) is not None

    def ack(self, name: str, receipt: str) -> Error:
        line, item = self.lines[name], self._held(name, receipt)
        if item is None:
            return StaleReceipt
        line.acked += 1
        if line.settings.retention_s:
            item.state, item.until_ns = State.DONE, self.now_ns + to_ns(line.settings.retention_s)
            line.log.append((Kind.ACKED, item.id))
        else:
            self._remove(line, item, Kind.ACKED)
        return None

    def nack(self, name: str, receipt: str, delay_s: float | None, reason: str) -> Error:
        line, item = self.lines[name], self._held(name, receipt)
        if item is None:
            return StaleReceipt
        delay_s = line.retry_delay_s(item.attempts) if delay_s is None else delay_s
        dies = item.attempts >= line.settings.max_attempts
        self._fail(line, item, None if dies else self.now_ns + to_ns(delay_s), Kind.NACKED, reason)
        return None

    def reject(self, name: str, receipt: str, reason: str) -> Error:
        item = self._held(name, receipt)
        if item is None:
            return StaleReceipt
        self._fail(self.lines[name], item, None, Kind.NACKED, reason)
        return None

    def extend(self, name: str, receipts: list[str], lease_s: float) -> list[Error]:
        held = {receipt: self._held(name, receipt) for receipt in receipts}
        for item in held.values():
            if item is not None:
                item.until_ns = self.now_ns + to_ns(lease_s)
                self.lines[name].log.append((Kind.EXTENDED, item.id))
        return [StaleReceipt if held[receipt] is None else None for receipt in receipts]

    def _fail(self, line: Line, item: Item, visible_ns: int | None, kind: Kind, reason: str) -> None:
        """Back in line at `visible_ns`; None: it dies."""
        line.failed += 1
        if visible_ns is None:
            self._kill(line, item, reason)
        elif item.expires_ns is not None and item.expires_ns <= visible_ns:
            self._remove(line, item, Kind.EXPIRED)
        else:
            delayed = visible_ns > self.now_ns
            item.state, item.visible_ns = State.DELAYED if delayed else State.READY, visible_ns
            if not line.settings.fifo:
                item.place = None if delayed else self._next_place()
            line.log.append((kind, item.id))

    def _kill(self, line: Line, item: Item, reason: str) -> None:
        grave = self.lines.get(line.settings.dead_letter or "")
        if grave is not None and item.id not in grave.items:
            self._remove(line, item, Kind.DEAD)
            item.origin, item.buried_attempts = item.origin or line.settings.name, item.attempts
            self._arrive(grave, item, expires_ns=None)
            return
        keep_s = line.settings.dead_retention_s
        item.state, item.reason = State.DEAD, reason
        item.until_ns = None if keep_s is None else self.now_ns + to_ns(keep_s)
        line.log.append((Kind.DEAD, item.id))

    # -- bulk -----------------------------------------------------------------------------------

    def move(self, name: str, message_id: str, target: str) -> Error:
        line, to = self.lines[name], self.lines[target]
        if len(message_id) != 36:
            return InvalidMessage
        item = line.items.get(message_id)
        if item is None:
            return MessageNotFound
        if item.state == State.LEASED:
            return MessageLeased
        has_own_delay = item.state == State.DELAYED and item.since_ns is None
        if item.state == State.DONE or (has_own_delay and to.settings.fifo):
            return InvalidMessage
        if message_id in to.items:
            return InvalidMessage
        self._remove(line, item, Kind.MOVED)
        item.origin = ""
        if item.state == State.DEAD:
            item.expires_ns = None
        self._arrive(to, item, expires_ns=item.expires_ns)
        return None

    def redrivable(self, name: str, target: str | None) -> dict[str, str]:
        """Which messages `redrive` sends, and where to."""
        line, out = self.lines[name], {}
        for item in line.of(State.DEAD, State.READY):
            to = target or item.origin or name
            free = to == name or (to in self.lines and item.id not in self.lines[to].items)
            if free and (item.state == State.DEAD or (item.origin and to != name)):
                out[item.id] = to
        return out

    def count_redrivable(self, name: str) -> int:
        return len(self.redrivable(name, None))

    def redrive(self, name: str, message_id: str, to: str) -> None:
        line = self.lines[name]
        item = line.items[message_id]
        if to != name:
            self._remove(line, item, Kind.REDRIVEN)
            item.origin, item.state = "", State.READY
            self._arrive(self.lines[to], item, expires_ns=None)
            return
        item.state, item.attempts, item.expires_ns = State.READY, 0, None
        item.visible_ns, item.place = self.now_ns, self._next_place()
        self._wait(line, item)
        line.log.append((Kind.REDRIVEN, item.id))

    def purge(self, name: str, states: tuple[State, ...]) -> int:
        gone = self.lines[name].of(*states)
        for item in gone:
            self._remove(self.lines[name], item, Kind.PURGED)
        return len(gone)

    def due(self) -> list[tuple[int, str, str, str]]:
        """(time, what, queue, id) of all that time will do."""
        out: list[tuple[int, str, str, str]] = []
        for name, line in self.lines.items():
            for item in line.items.values():
                if item.state == State.DELAYED:
                    out.append((item.visible_ns, "delay", name, item.id))
                if item.state in WAITING and item.expires_ns is not None:
                    out.append((item.expires_ns, "ttl", name, item.id))
                if item.state not in WAITING and item.until_ns is not None:
                    what = "lease" if item.state == State.LEASED else "retention"
                    out.append((item.until_ns, what, name, item.id))
            out += [(until_ns, "dedup", name, "") for until_ns, _ in line.dedup.values()]
        return out

    # -- steps ----------------------------------------------------------------------------------

    def _wait(self, line: Line, item: Item) -> None:
        """One that comes into a queue with a delay, at the end of its line."""
        item.since_ns = None
        if line.settings.delay_s:
            item.since_ns, item.state = self.now_ns, State.DELAYED
            item.visible_ns = self.now_ns + to_ns(line.settings.delay_s)

    def change(self, name: str, settings: QueueSettings) -> None:
        """A queue's delay counts for what waits for it already."""
        line = self.lines[name]
        line.settings = settings
        for item in line.of(State.DELAYED):
            if item.since_ns is not None:
                item.visible_ns = item.since_ns + to_ns(settings.delay_s)
        self.set_now(self.now_ns)

    def _next_place(self) -> int:
        self._places += not self._together
        return self._places

    def _add(self, line: Line, item: Item) -> None:
        line.items[item.id] = item
        line.enqueued += 1
        line.log.append((Kind.ENQUEUED, item.id))

    def _remove(self, line: Line, item: Item, kind: Kind) -> None:
        del line.items[item.id]
        line.log.append((kind, item.id))

    def _arrive(self, line: Line, item: Item, expires_ns: int | None) -> None:
        """From another queue: it starts anew at the end of the line, or stays delayed."""
        item.attempts, item.expires_ns = 0, expires_ns
        if item.state != State.DELAYED or item.since_ns is not None:
            item.state, item.visible_ns, item.place = State.READY, self.now_ns, self._next_place()
            self._wait(line, item)
        self._add(line, item)
