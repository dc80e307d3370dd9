"""The oracle: what the load was told, against what the store holds after a crash."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from penstock.event import Event, Kind
from penstock.message import State
from tests.crash.load import REMEMBERS_DEDUP
from tests.crash.record import Delivered, Failed, Intent, NewItem, Outcome, Record
from tests.crash.truth import Truth

STALE = "StaleReceipt"


@dataclass
class Fate:
    """What is known of one message."""

    tag: str
    queue: str
    acked_version: int = 1
    last_version: int = 1
    #: Something that may have removed it was asked for, or its ttl may have run out.
    may_go: bool = False
    #: Its end was acknowledged: it must not be seen again, unless listed as DONE.
    must_go: bool = False
    expires: bool = False
    #: A bulk job that a crash cut short may still move or purge it, until a sweep has finished all jobs.
    floating: bool = False
    doomed: bool = False


@dataclass
class Ended:
    """An acknowledged end of a lease."""

    queue: str
    lease: Delivered
    op: str


#: The event that must follow a lease's own (and its extensions) once this was acknowledged.
_FOLLOWS = {
    "ack": (Kind.ACKED,),
    "nack": (Kind.NACKED, Kind.DEAD, Kind.EXPIRED),
    "reject": (Kind.DEAD,),
}


@dataclass
class Oracle:
    """Follows one store over many crashes."""

    fates: dict[str, Fate] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    first_ids: dict[tuple[str, str], str] = field(default_factory=dict)
    #: Each may be any of these: the last acknowledged one and, after it, one in flight.
    queues: dict[str, set[bool]] = field(default_factory=dict)
    state: dict[str, set[str]] = field(default_factory=dict)
    positions: dict[tuple[str, str], set[int]] = field(default_factory=dict)
    entries: dict[str, str] = field(default_factory=dict)
    ack_asked: set[str] = field(default_factory=set)
    move_asked: set[str] = field(default_factory=set)
    # -- of this round
    pending: dict[str, NewItem] = field(default_factory=dict)
    pending_queues: dict[str, str] = field(default_factory=dict)
    batches: list[tuple[str, list[str]]] = field(default_factory=list)
    deliveries: list[tuple[str, Delivered]] = field(default_factory=list)
    ended: list[Ended] = field(default_factory=list)
    moves: list[tuple[str, str, str]] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    # -- for the report
    acknowledged: int = 0
    cut_short: Counter[str] = field(default_factory=Counter)

    # -- reading logs ---------------------------------------------------------------------------

    def read(self, log: Iterable[Record]) -> None:
        """One thread's records of this round."""
        intent: Intent | None = None
        for record in log:
            if isinstance(record, Intent):
                assert intent is None, f"{intent} was never answered, and yet {record} came"
                intent = record
                self._asked(record)
            elif isinstance(record, Outcome):
                assert intent is not None
                assert intent.n == record.n
                getattr(self, f"_{intent.op}")(intent, record)
                self.acknowledged += 1
                intent = None
            elif isinstance(record, Failed):
                self.complaints.append(f"the load failed: {record.what}")
        if intent is not None:
            self._in_flight(intent)

    def _asked(self, intent: Intent) -> None:
        ids = [lease.id for lease in intent.leases]
        if intent.op == "ack":
            self.ack_asked.update(ids)
        elif intent.op == "move":
            self.move_asked.update(intent.ids)

    def _in_flight(self, intent: Intent) -> None:
        """The call was cut off: it may have happened, or not. What is not named here changes no promise."""
        self.cut_short[intent.op] += 1
        cut = getattr(self, f"_cut_{intent.op}", None)
        if cut is not None:
            cut(intent)

    def _cut_enqueue(self, intent: Intent) -> None:
        self.pending |= {item.tag: item for item in intent.items}
        self.pending_queues |= {item.tag: intent.queue for item in intent.items}
        given = [item.given_id for item in intent.items if item.given_id and not item.dedup_id]
        self.batches.append((intent.queue, given))

    def _cut_upsert(self, intent: Intent) -> None:
        for item in intent.items:
            self.fates[item.given_id or ""].last_version = item.version

    def _cut_ack(self, intent: Intent) -> None:
        for lease in intent.leases:
            self._seen(intent.queue, lease).may_go = True

    def _cut_purge(self, intent: Intent) -> None:
        for fate in self._of(intent.queue):
            fate.may_go = fate.doomed = True

    def _cut_delete(self, intent: Intent) -> None:
        for fate in self._of(intent.queue):
            fate.may_go = True
        self.queues.setdefault(intent.queue, {True}).add(False)

    def _cut_move(self, intent: Intent) -> None:
        for message_id in intent.ids:
            if message_id in self.fates:
                self.fates[message_id].floating = True

    def _cut_create(self, intent: Intent) -> None:
        self.queues.setdefault(intent.queue, {False}).add(True)

    def _cut_state(self, intent: Intent) -> None:
        self.state.setdefault(intent.name, {""}).add(intent.value)

    def _cut_commit(self, intent: Intent) -> None:
        self.positions.setdefault((intent.queue, intent.name), {0}).add(intent.number)

    def _of(self, queue: str) -> list[Fate]:
        return [fate for fate in self.fates.values() if fate.queue == queue]

    def _seen(self, queue: str, lease: Delivered) -> Fate:
        """A delivery proves that its message was stored, even if its producer was never told."""
        return self.fates.setdefault(lease.id, Fate(lease.tag, queue))

    # -- acknowledged calls ---------------------------------------------------------------------

    def _enqueue(self, intent: Intent, outcome: Outcome) -> None:
        for item, message_id, duplicate in zip(intent.items, outcome.ids, outcome.duplicates, strict=True):
            if message_id is None:
                self.complaints.append(f"enqueue of {item} was refused: {outcome.errors}")
                continue
            if item.dedup_id is not None and intent.queue in REMEMBERS_DEDUP:
                first = self.first_ids.setdefault((intent.queue, item.dedup_id), message_id)
                if first != message_id:
                    self.complaints.append(f"dedup id {item.dedup_id} gave {first}, now {message_id}")
            if not duplicate:
                self._stored(message_id, item, intent.queue)

    def _stored(self, message_id: str, item: NewItem, queue: str) -> None:
        if message_id in self.gone:
            self.complaints.append(f"id {message_id} was given out twice")
        fate = self.fates.setdefault(message_id, Fate(item.tag, queue))
        fate.expires, fate.may_go = item.expires, fate.may_go or item.expires
        if fate.tag != item.tag:
            self.complaints.append(f"{message_id} is {fate.tag} and {item.tag}")

    def _upsert(self, intent: Intent, outcome: Outcome) -> None:
        for item, error in zip(intent.items, outcome.errors, strict=True):
            if error:
                self.complaints.append(f"upsert of {item} was refused: {error}")
            fate = self.fates[item.given_id or ""]
            fate.acked_version = fate.last_version = item.version

    def _lease(self, intent: Intent, outcome: Outcome) -> None:
        for delivered in outcome.deliveries:
            if delivered.id in self.gone:
                self.complaints.append(f"{delivered} of {intent.queue!r} was delivered after its end")
            fate = self._seen(intent.queue, delivered)
            if fate.tag != delivered.tag:
                self.complaints.append(f"{delivered} came with the body of another; its own is {fate.tag}")
            self.deliveries.append((intent.queue, delivered))

    def _ack(self, intent: Intent, outcome: Outcome) -> None:
        for lease, error in zip(intent.leases, outcome.errors, strict=True):
            if not error:
                fate = self._seen(intent.queue, lease)
                fate.must_go = fate.may_go = True
        self._ended(intent, outcome)

    def _nack(self, intent: Intent, outcome: Outcome) -> None:
        self._ended(intent, outcome)

    def _reject(self, intent: Intent, outcome: Outcome) -> None:
        self._ended(intent, outcome)

    def _ended(self, intent: Intent, outcome: Outcome) -> None:
        for lease, error in zip(intent.leases, outcome.errors, strict=True):
            if error not in ("", STALE):
                self.complaints.append(f"{intent.op} of {lease} in {intent.queue!r}: {error}")
            elif not error:
                self.ended.append(Ended(intent.queue, lease, intent.op))

    def _extend(self, intent: Intent, outcome: Outcome) -> None:
        unexpected = [error for error in outcome.errors if error not in ("", STALE)]
        if unexpected:
            self.complaints.append(f"extend in {intent.queue!r}: {unexpected}")

    def _move(self, intent: Intent, outcome: Outcome) -> None:
        for message_id, error in zip(intent.ids, outcome.errors, strict=True):
            if not error:
                self.fates[message_id].queue = intent.target
                self.moves.append((message_id, intent.queue, intent.target))

    def _purge(self, intent: Intent, outcome: Outcome) -> None:
        """Of a queue that only this thread uses: everything in it was purged, and nothing else."""
        there = [fate for fate in self._of(intent.queue) if not fate.must_go]
        settled = [fate for fate in there if not (fate.floating or fate.doomed)]
        if not len(settled) <= outcome.number <= len(there):
            self.complaints.append(
                f"purge of {intent.queue!r} took {outcome.number}; {len(settled)} to {len(there)} were there"
            )
        for fate in there:
            fate.may_go, fate.must_go = True, not fate.floating

    def _delete(self, intent: Intent, outcome: Outcome) -> None:
        for fate in self._of(intent.queue):
            fate.may_go = fate.must_go = True
        self.queues[intent.queue] = {False}

    def _create(self, intent: Intent, outcome: Outcome) -> None:
        self.queues[intent.queue] = {True}

    def _redrive(self, intent: Intent, outcome: Outcome) -> None:
        """Where messages are is the journals' to tell; none of them comes or goes."""

    def _sweep(self, intent: Intent, outcome: Outcome) -> None:
        """Time's work: nothing is acknowledged by it."""

    def _commit(self, intent: Intent, outcome: Outcome) -> None:
        self.positions[(intent.queue, intent.name)] = {intent.number}

    def _state(self, intent: Intent, outcome: Outcome) -> None:
        self.state[intent.name] = {intent.value}

    def _append(self, intent: Intent, outcome: Outcome) -> None:
        self.entries |= {i or "": body for i, body in zip(outcome.ids, intent.ids, strict=True)}

    # -- judging --------------------------------------------------------------------------------

    def judge(self, truth: Truth) -> list[str]:
        """Every promise that the store broke; nothing, if it kept them all."""
        found = [*self.complaints, *truth.problems]
        for fate in self.fates.values():
            item = self.pending.get(fate.tag)  # Delivered, though its producer was never told.
            fate.expires = fate.expires or (item is not None and item.expires)
            fate.may_go = fate.may_go or fate.expires
        found += self._judge_presence(truth)
        found += self._judge_strangers(truth)
        found += self._judge_journals(truth)
        for name, allowed in self.queues.items():
            if (name in truth.journals) not in allowed:
                found.append(
                    f"queue {name!r} exists: {name in truth.journals}, but {allowed} was acknowledged"
                )
        for name, values in self.state.items():
            if truth.state.get(name, "") not in values:
                found.append(f"state {name!r} is {truth.state.get(name)!r}, not one of {values}")
        for cursor, positions in self.positions.items():
            position, base = truth.cursors.get(cursor, 0), truth.bases.get(cursor[0], 0)
            # One that is made anew stands before the first event that the journal still has.
            if position not in positions and not (0 in positions and position == base):
                found.append(f"cursor {cursor} is at {position}, not at one of {positions}")
        for entry_id, body in self.entries.items():
            if truth.entries.get(entry_id) != body:
                found.append(f"entry {entry_id} ({body}) is acknowledged and missing")
        return found

    def _judge_presence(self, truth: Truth) -> Iterable[str]:
        for message_id, fate in self.fates.items():
            places = truth.messages.get(message_id, [])
            what = f"message {message_id} ({fate.tag}, enqueued to {fate.queue!r})"
            if not places and not fate.may_go:
                yield f"{what} is acknowledged and missing"
            if fate.must_go and any(seen.state is not State.DONE for seen in places):
                yield f"{what} came back after its end was acknowledged: {places}"
            for seen in places:
                if seen.tag != fate.tag:
                    yield f"{what} has the body of {seen.tag}"
                if not fate.acked_version <= seen.version <= fate.last_version:
                    yield f"{what} has version {seen.version} of {fate.acked_version} to {fate.last_version}"

    def _judge_strangers(self, truth: Truth) -> Iterable[str]:
        tags: dict[str, str] = {}
        for message_id, places in truth.messages.items():
            if len(places) > 1:
                yield f"message {message_id} is in {len(places)} places: {places}"
            if message_id in self.gone:
                yield f"message {message_id} came back: {places}"
            elif message_id not in self.fates and places[0].tag not in self.pending:
                yield f"message {message_id} comes from nowhere: {places}"
            other = tags.setdefault(places[0].tag, message_id)
            if other != message_id:
                yield f"{places[0].tag} was stored twice, as {message_id} and as {other}"

    def _judge_journals(self, truth: Truth) -> Iterable[str]:
        by_message: dict[str, dict[str, list[Event]]] = {}
        for queue, events in truth.journals.items():
            mine = by_message[queue] = {}
            for event in events:
                mine.setdefault(event.message_id, []).append(event)
            yield from self._judge_unasked(queue, events)
        yield from self._judge_leases(truth, by_message)
        for message_id, source, target in self.moves:
            for queue, kind, other in ((source, Kind.MOVED, target), (target, Kind.ENQUEUED, source)):
                events = by_message.get(queue, {}).get(message_id, [])
                if not any(event.kind is kind and event.extra == other for event in events):
                    yield f"the move of {message_id} from {source!r} to {target!r} left no event in {queue!r}"
        for queue, ids in self.batches:
            stored = [message_id for message_id in ids if message_id in by_message.get(queue, {})]
            if truth.bases.get(queue, 0) == 0 and queue in by_message and 0 < len(stored) < len(ids):
                yield f"an enqueue to {queue!r} was cut in two: {len(stored)} of {len(ids)} are there"

    def _judge_unasked(self, queue: str, events: list[Event]) -> Iterable[str]:
        for event in events:
            if event.kind is Kind.ACKED and event.message_id not in self.ack_asked:
                yield f"{event} in {queue!r}: nobody asked for it"
            if event.kind is Kind.MOVED and event.message_id not in self.move_asked:
                yield f"{event} in {queue!r}: nobody asked for it"

    def _judge_leases(self, truth: Truth, by_message: dict[str, dict[str, list[Event]]]) -> Iterable[str]:
        for queue, delivered in self.deliveries:
            base = truth.bases.get(queue, 0)
            if delivered.token > base:
                event = _at(truth.journals.get(queue, []), delivered.token, base)
                if event is None or (event.kind, event.message_id) != (Kind.LEASED, delivered.id):
                    yield f"{delivered} of {queue!r} was handed out, but its event is {event}"
        for end in self.ended:
            if truth.bases.get(end.queue, 0) < end.lease.token:
                yield from _judge_end(end, by_message.get(end.queue, {}).get(end.lease.id, []))

    def settle(self, truth: Truth, *, swept: bool) -> None:
        """What is there is now certain: the next round starts from it."""
        self.gone |= {message_id for message_id in self.fates if message_id not in truth.messages}
        before, self.fates = self.fates, {}
        for message_id, (seen, *_) in truth.messages.items():
            fate = before.get(message_id) or Fate(
                seen.tag, self.pending_queues[seen.tag], expires=self.pending[seen.tag].expires
            )
            fate.queue = seen.queue
            fate.acked_version = fate.last_version = seen.version
            fate.floating, fate.doomed = fate.floating and not swept, fate.doomed and not swept
            # An ack in flight that happened has made it DONE: retention removes it.
            fate.must_go = fate.must_go or seen.state is State.DONE
            fate.may_go = fate.expires or fate.must_go or fate.doomed
            self.fates[message_id] = fate
        self.queues = {name: {name in truth.journals} for name in self.queues}
        self.state = {name: {truth.state.get(name, "")} for name in self.state}
        self.positions = {cursor: {truth.cursors.get(cursor, 0)} for cursor in self.positions}
        self._forget_round()

    def rebase(self, truth: Truth) -> None:
        """Acknowledged writes were lost, as the mode allows: what is there is all that is known."""
        self.fates, self.gone, self.first_ids = {}, set(), {}
        for message_id, (seen, *_) in truth.messages.items():
            # What is DONE was acked. Whether it has a ttl, or a job waits for it, is not known: it may go.
            fate = Fate(seen.tag, seen.queue, seen.version, seen.version, expires=True, may_go=True)
            fate.must_go, fate.floating, fate.doomed = seen.state is State.DONE, True, True
            self.fates[message_id] = fate
        self.queues = {name: {name in truth.journals} for name in self.queues}
        self.state = {name: {truth.state.get(name, "")} for name in self.state}
        self.positions = {cursor: {truth.cursors.get(cursor, 0)} for cursor in self.positions}
        self.entries = dict(truth.entries)
        self._forget_round()

    def _forget_round(self) -> None:
        self.pending, self.pending_queues, self.batches = {}, {}, []
        self.deliveries, self.ended, self.moves, self.complaints = [], [], [], []


def _at(events: list[Event], seq: int, base: int) -> Event | None:
    place = seq - base - 1
    return events[place] if 0 <= place < len(events) else None


def _judge_end(end: Ended, events: list[Event]) -> Iterable[str]:
    after = [e for e in events if e.seq > end.lease.token and e.kind is not Kind.EXTENDED]
    if not after or after[0].kind not in _FOLLOWS[end.op]:
        yield f"{end.op} of {end.lease} in {end.queue!r} is acknowledged; its journal has {after[:1]}"


def prefix_complaints(cut: Truth, whole: Truth, crashed_ns: int) -> list[str]:
    """Where a store that lost its last writes is no prefix of itself.

    Looking at a store lets time's changes happen, and be recorded: those came after the crash.
    """
    found = list(cut.problems)
    for queue, events in cut.journals.items():
        if queue.startswith("temp-") or queue not in whole.journals:
            continue  # Made and deleted in turn: not the same queue, perhaps.
        base = max(cut.bases[queue], whole.bases[queue])
        kept = [event for event in events if event.seq > base and event.at_ns < crashed_ns]
        full = [event for event in whole.journals[queue] if event.seq > base]
        if kept != full[: len(kept)]:
            found.append(f"the journal of {queue!r} is no prefix of what was written")
    return found
